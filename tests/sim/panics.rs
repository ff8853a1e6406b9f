//! Records whose handling panics.

use std::collections::BTreeSet;

use protocol::SendId;
use protocol::event::Encode;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::record::{TaskRecord, Work};
use protocol::writer::{DeadRecord, Handover, Plan};
use tests::poison::PoisonFrames;

use crate::plan::Sabotage;
use crate::world::World;

impl World {
    /// Frames as the carrier makes them now.
    pub(crate) fn frames(&self) -> impl Encode + use<> {
        let now = self.elapsed();
        let poison = self.plan.letters.poison.iter().filter(|poison| {
            let is_over = self.panicking_sends.contains(&poison.send);
            poison.ends_at.map_or(!is_over, |ends_at| now < ends_at)
        });
        let sends: BTreeSet<SendId> = poison.map(|poison| poison.send).collect();
        PoisonFrames(move |send_id| sends.contains(&send_id))
    }

    /// Notes the records of a plan that panicked, and plants bugs in their treatment.
    pub(crate) fn note_panics(&mut self, records: &[TaskRecord<'_>], plan: &mut Plan) {
        let dead = plan.handover.dead.iter();
        let dead = dead.filter(|dead| dead.reason == DeadReason::HandlerPanic);
        let indexes: Vec<usize> = dead.map(|dead| dead.index).collect();
        for index in &indexes {
            if let Work::Message(task) = &records[*index].task.work {
                self.panicking_sends.insert(task.message.send_id);
            }
        }
        if indexes.is_empty() {
            return;
        }
        match self.sabotage {
            Some(Sabotage::PanicEndsPart) => {
                plan.stages.clear();
                let dead = (0..records.len()).map(|index| DeadRecord {
                    index,
                    reason: DeadReason::HandlerPanic,
                    error: String::new(),
                });
                plan.handover = Handover {
                    dead: dead.collect(),
                    ..Handover::default()
                };
            }
            Some(Sabotage::PanicUnburied) => {
                let handover = &mut plan.handover;
                handover.dead.retain(|dead| !indexes.contains(&dead.index));
                let sources = indexes.iter().map(|index| records[*index].source);
                handover
                    .settled_records
                    .extend(sources.map(|source| (source, Vec::new())));
            }
            _ => {}
        }
    }

    /// Checks that no record dies of a panic but those that panic: their neighbours are unharmed.
    pub(crate) fn judge_panics(&self) -> Result<(), String> {
        let log = self.disk.log.iter();
        let log = log.filter(|((topic, _), _)| *topic == Topic::Message);
        for record in log.flat_map(|(_, records)| records) {
            let Work::Message(task) = &record.task.work else {
                continue;
            };
            let (id, send_id) = (task.message.id, task.message.send_id);
            let mut poison = self.plan.letters.poison.iter();
            let is_poison = poison.any(|poison| poison.send == send_id);
            if self.judge.reason(id) == Some(DeadReason::HandlerPanic) && !is_poison {
                return Err(format!("{id} died of the panic of another record"));
            }
        }
        Ok(())
    }
}
