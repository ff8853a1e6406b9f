//! Dead letters: records, and parts of deliveries, that a carrier gave up; and the operator who
//! redrives them. The desk's rules are those of [`operator::dead_letters::rules`].

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use operator::dead_letters::rules::{
    LetterState, OperationEntry, Operations, OperatorAction, OperatorWork, Pace, StartedTask,
    TaskId, TaskOutcome,
};
use protocol::bounds::Bounds;
use protocol::delivery::{FailedPart, Obligation, Settlement, Source};
use protocol::ledger::{DeadReason, LedgerEntry, LedgerEvent, dead_entries};
use protocol::message::Target;
use protocol::record::{Task, Work, redrive, redrive_targets, retry_task};
use protocol::{ConversationId, MessageId, Timestamp};

use crate::carrier::CarrierEvent;
use crate::effects::Effect;
use crate::plan::{Sabotage, StoreKey};
use crate::world::{Event, World};

/// Letters in hand at a time.
const BATCH: NonZeroU32 = NonZeroU32::new(50).expect("not zero");
/// Time until another process works at the desk.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// A dead letter: the record that died, for these targets, or as a whole if there are none.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    task: Arc<Task>,
    targets: Vec<Target>,
}

impl Letter {
    /// Place among the letters of a task: those of a conversation in order of acceptance.
    fn order(&self) -> (Option<ConversationId>, Option<MessageId>) {
        (self.task.work.conversation(), self.task.work.message())
    }

    /// Targets of the record that redrives it, and whether it is for live sessions, too.
    fn recipients(&self) -> (&[Target], bool) {
        (self.task.work.targets(), self.task.work.is_live())
    }
}

/// A record on its way to the dead letters.
#[derive(Debug)]
pub(crate) struct Burial {
    source: Source,
    task: Arc<Task>,
    reason: DeadReason,
}

/// The desk's worker. Its knowledge is in the log of operations.
#[derive(Debug, Default)]
pub(crate) struct Operator {
    /// Counts the workers.
    life: u32,
    /// Number of tasks so far; names them.
    tasks: u32,
    /// True while the worker has letters whose outcomes are not in the log.
    is_busy: bool,
}

/// Letters whose records are in the log, with their outcomes.
#[derive(Debug)]
pub(crate) struct Redriven {
    task: TaskId,
    /// Time before they were published.
    at: Timestamp,
    outcomes: Vec<(String, TaskOutcome)>,
}

#[derive(Debug)]
pub(crate) enum OperatorEvent {
    /// An operator has all open letters redriven.
    Redrive,
    /// Next step of the worker.
    Work { life: u32 },
    /// The ledger of the letters' messages.
    Mark { life: u32, redriven: Box<Redriven> },
    /// The outcomes, in the log of operations.
    Close { life: u32, redriven: Box<Redriven> },
}

impl World {
    /// True while a store refuses this.
    pub(crate) fn refuses(&self, key: StoreKey) -> bool {
        let now = self.elapsed();
        let mut refusals = self.plan.letters.refusals.iter();
        refusals.any(|refusal| {
            refusal.key == key && (refusal.starts_at..refusal.ends_at).contains(&now)
        })
    }

    /// Takes a record to the dead letters: the letter, the ledger, then the offset.
    pub(crate) fn bury(&mut self, source: Source, task: Arc<Task>, reason: DeadReason) {
        let burial = Box::new(Burial {
            source,
            task,
            reason,
        });
        let wait = if self.sabotage == Some(Sabotage::LetterBehindCommit) {
            self.carrier.offsets.settle(source);
            self.up_to(Duration::from_secs(2))
        } else {
            self.hop()
        };
        self.bury_after(wait, 0, burial);
    }

    fn bury_after(&mut self, wait: Duration, step: u8, burial: Box<Burial>) {
        let life = self.carrier.life;
        let event = CarrierEvent::Bury { life, step, burial };
        self.after(wait, Event::Carrier(event));
    }

    pub(crate) fn bury_step(&mut self, step: u8, burial: Box<Burial>) {
        let (source, work) = (burial.source, &burial.task.work);
        match step {
            0 => {
                let letter = Letter {
                    task: burial.task.clone(),
                    targets: work.targets().to_vec(),
                };
                let name = source.letter(work.targets());
                self.apply(Effect::Bury { name, letter });
                self.flush();
            }
            1 => {
                let recipients = (work.targets(), work.is_live());
                let (reason, now) = (burial.reason, self.carrier_wall());
                let entries = work.message();
                let entries = entries.map(|id| dead_entries(id, source, recipients, reason, now));
                self.apply(Effect::Ledger(entries.unwrap_or_default()));
            }
            _ => {
                self.carrier.offsets.settle(source);
                return self.commit_later();
            }
        }
        let hop = self.hop();
        self.bury_after(hop, step + 1, burial);
    }

    /// Writes the letter of a part of a delivery.
    pub(crate) fn bury_part(&mut self, settlement: &Settlement, part: &FailedPart) {
        let (task, now) = (&settlement.task, self.carrier_wall());
        let rest = retry_task(
            task,
            &part.obligations,
            task.retry_count,
            now,
            part.cause.text(),
        );
        let letter = Letter {
            task: Arc::new(rest),
            targets: part
                .obligations
                .iter()
                .flat_map(Obligation::targets)
                .collect(),
        };
        let name = part.name.clone();
        self.apply(Effect::Bury { name, letter });
    }

    /// The desk, as the log of operations has it.
    fn desk(&self) -> Operations {
        let mut desk = Operations::default();
        let entries = self.disk.operations.iter();
        entries.for_each(|entry| desk.read(entry));
        desk
    }

    /// Letters that nobody has dealt with.
    pub(crate) fn open_letters(&self) -> Vec<String> {
        let (desk, now) = (self.desk(), self.now);
        let letters = self.disk.letters.iter();
        let open = letters.filter(|(name, _)| desk.standing(name, now) == LetterState::Open);
        let open = open.map(|(name, letter)| (letter.order(), name.clone()));
        let mut open: Vec<_> = open.collect();
        open.sort();
        open.into_iter().map(|(_, name)| name).collect()
    }

    /// Whether a record of this message died.
    pub(crate) fn has_letter(&self, id: MessageId) -> bool {
        let mut letters = self.disk.letters.values();
        letters.any(|letter| letter.task.work.message() == Some(id))
    }

    pub(crate) fn operator_event(&mut self, event: OperatorEvent) {
        let life = self.operator.life;
        match event {
            OperatorEvent::Redrive => self.begin_redrive(),
            OperatorEvent::Work { life: event_life } if event_life == life => self.work_at_desk(),
            OperatorEvent::Mark {
                life: event_life,
                redriven,
            } if event_life == life => self.mark(redriven),
            OperatorEvent::Close {
                life: event_life,
                redriven,
            } if event_life == life => self.close(*redriven),
            OperatorEvent::Work { .. }
            | OperatorEvent::Mark { .. }
            | OperatorEvent::Close { .. } => {}
        }
    }

    /// Ends the process that works at the desk; another one does after a while.
    pub(crate) fn crash_operator(&mut self) {
        self.operator.life += 1;
        self.operator.is_busy = false;
        let life = self.operator.life;
        self.after(RESTART_DELAY, Event::Operator(OperatorEvent::Work { life }));
    }

    fn begin_redrive(&mut self) {
        let letters = self.open_letters();
        if letters.is_empty() {
            return;
        }
        self.operator.tasks += 1;
        let name = format!("redrive-{}", self.operator.tasks);
        let task: TaskId = name.parse().expect("letters, digits and -");
        self.operate(OperatorAction::Begun(StartedTask {
            task: task.clone(),
            work: OperatorWork::Redrive,
            letters: letters.len() as u64,
            pace: Pace::default(),
            about: String::new(),
            why: String::new(),
            batch: Some(BATCH),
        }));
        self.operate(OperatorAction::Chosen { task, letters });
        self.work_later();
    }

    /// Writes an entry into the log of operations.
    fn operate(&mut self, act: OperatorAction) {
        let entry = OperationEntry {
            at: self.now,
            by: "desk".to_owned(),
            act,
        };
        self.apply(Effect::Operate(entry));
        self.flush();
    }

    fn work_later(&mut self) {
        let (life, hop) = (self.operator.life, self.hop());
        self.after(hop, Event::Operator(OperatorEvent::Work { life }));
    }

    /// One step: publishes the records of the letters in hand.
    fn work_at_desk(&mut self) {
        let desk = self.desk();
        let Some((task, letters)) = desk.next().filter(|_| !self.operator.is_busy) else {
            return;
        };
        self.operator.is_busy = true;
        let mut redriven = Box::new(Redriven {
            task: task.id().clone(),
            at: self.now,
            outcomes: Vec::new(),
        });
        for letter in letters {
            let outcome = self.redrive_letter(&desk, &letter);
            redriven.outcomes.push((letter, outcome));
        }
        self.flush();
        let (life, hop) = (self.operator.life, self.hop());
        self.after(hop, Event::Operator(OperatorEvent::Mark { life, redriven }));
    }

    /// Publishes the record of a letter, as an earlier worker may have done.
    fn redrive_letter(&mut self, desk: &Operations, name: &str) -> TaskOutcome {
        let Some(letter) = self.disk.letters.get(name) else {
            return TaskOutcome::NoSuchLetter;
        };
        if let Err(outcome) = desk.may(OperatorWork::Redrive, name, self.now) {
            return outcome;
        }
        let task = Task::clone(&letter.task);
        let (topic, mut task) = redrive(task, name, Bounds::default(), self.now);
        if self.sabotage == Some(Sabotage::LetterNameless)
            && let Work::Message(message) = &mut task.work
        {
            message.letter = None;
        }
        self.append_task(topic, Arc::new(task));
        TaskOutcome::from_topic(topic).expect("a topic of redrives")
    }

    fn mark(&mut self, redriven: Box<Redriven>) {
        let mut entries = Vec::new();
        for (name, outcome) in &redriven.outcomes {
            let letter = self.disk.letters.get(name);
            let Some(letter) = letter.filter(|_| outcome.is_redriven()) else {
                continue;
            };
            let Some(message) = letter.task.work.message() else {
                continue;
            };
            let (targets, is_live) = letter.recipients();
            let targets = redrive_targets(targets, is_live, Some(&letter.targets));
            entries.extend(targets.into_iter().map(|target| LedgerEntry {
                message,
                at: redriven.at,
                target,
                event: LedgerEvent::Redriven {
                    letter: name.clone(),
                },
            }));
        }
        self.apply(Effect::Ledger(entries));
        let (life, hop) = (self.operator.life, self.hop());
        self.after(
            hop,
            Event::Operator(OperatorEvent::Close { life, redriven }),
        );
    }

    fn close(&mut self, redriven: Redriven) {
        let Redriven { task, outcomes, .. } = redriven;
        self.operate(OperatorAction::Done { task, outcomes });
        self.operator.is_busy = false;
        self.work_later();
    }
}
