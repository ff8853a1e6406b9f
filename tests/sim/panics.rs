//! Records whose handling panics: the frames of their messages and changes cannot be made.

use std::collections::BTreeSet;

use api::codec::EventFrames;
use bytes::Bytes;
use protocol::event::{Encode, Event};
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::record::{TaskRecord, Work};
use protocol::writer::{DeadRecord, Handover, Plan};
use protocol::{SendId, TraceContext};

use crate::plan::Sabotage;
use crate::world::World;

/// Encodes frames, but panics for those of these sends.
pub(crate) struct PoisonFrames(BTreeSet<SendId>);

impl Encode for PoisonFrames {
    fn encode(&self, event: &Event<'_>, trace: Option<TraceContext>) -> Bytes {
        let send_id = match event {
            Event::Message(placed) | Event::SenderCopy(placed) => Some(placed.message.send_id),
            Event::Changed { change, .. } => Some(change.asked.send_id),
            Event::List(_) => None,
        };
        if send_id.is_some_and(|send_id| self.0.contains(&send_id)) {
            // A planned panic says nothing on standard error.
            std::panic::resume_unwind(Box::new("a planned panic"));
        }
        EventFrames.encode(event, trace)
    }
}

impl World {
    /// Frames as the carrier makes them now.
    pub(crate) fn frames(&self) -> PoisonFrames {
        let now = self.elapsed();
        let poison = self.plan.letters.poison.iter().filter(|poison| {
            let is_over = self.panicking_sends.contains(&poison.send);
            poison.ends_at.map_or(!is_over, |ends_at| now < ends_at)
        });
        PoisonFrames(poison.map(|poison| poison.send).collect())
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
