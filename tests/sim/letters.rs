//! Dead letters: records, and parts of deliveries, that a carrier gave up; and the operator who
//! redrives them. The desk's rules are those of [`operator::dead_letters::rules`].

use std::sync::Arc;
use std::time::Duration;

use operator::dead_letters::rules::{
    FoldStep, LetterState, OperationEntry, Operations, OperatorAction, OperatorWork, Pace,
    StartedTask, TaskClaim, TaskId, TaskOutcome,
};
use protocol::bounds::Bounds;
use protocol::delivery::{FailedPart, Obligation, Settlement, Source};
use protocol::ledger::{DeadReason, LedgerEntry, LedgerEvent, dead_entries};
use protocol::message::Target;
use protocol::record::retry as retry_task;
use protocol::record::{Task, Work, redrive, redrive_targets};
use protocol::{ConversationId, MessageId};

use crate::carrier::CarrierEvent;
use crate::effects::Effect;
use crate::plan::{Sabotage, StoreKey};
use crate::world::{Event, World};

/// Letters claimed at a time at most.
const MAX_CLAIMS: usize = 50;
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
}

/// Claims whose records are in the log, with their outcomes.
#[derive(Debug)]
pub(crate) struct OpenClaims {
    task: TaskId,
    outcomes: Vec<(TaskClaim, TaskOutcome)>,
}

#[derive(Debug)]
pub(crate) enum OperatorEvent {
    /// An operator has all open letters redriven.
    Redrive,
    /// Next step of the worker.
    Work { life: u32 },
    /// The ledger of the claims' messages.
    Mark { life: u32, claims: Box<OpenClaims> },
    /// The end of the claims, in the log of operations.
    Close { life: u32, claims: Box<OpenClaims> },
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
                claims,
            } if event_life == life => self.mark(claims),
            OperatorEvent::Close {
                life: event_life,
                claims,
            } if event_life == life => self.close(*claims),
            OperatorEvent::Work { .. }
            | OperatorEvent::Mark { .. }
            | OperatorEvent::Close { .. } => {}
        }
    }

    /// Ends the process that works at the desk; another one does after a while.
    pub(crate) fn crash_operator(&mut self) {
        self.operator.life += 1;
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

    /// One step: claims letters, or publishes the records of those that are claimed.
    fn work_at_desk(&mut self) {
        let desk = self.desk();
        match desk.next(MAX_CLAIMS) {
            None => {}
            Some(FoldStep::Claim { task, letters }) => {
                let (task, at) = (task.id().clone(), self.now);
                let claims = letters.into_iter().map(|letter| TaskClaim {
                    letter,
                    at,
                    to: None,
                    version: None,
                });
                let claims = claims.collect();
                self.operate(OperatorAction::Claimed { task, claims });
                self.work_later();
            }
            Some(FoldStep::Finish { task, claims }) => {
                let task = task.id().clone();
                let mut outcomes = Vec::new();
                for claim in claims {
                    let outcome = self.redrive_letter(&desk, &claim);
                    outcomes.push((claim, outcome));
                }
                self.flush();
                let claims = Box::new(OpenClaims { task, outcomes });
                let (life, hop) = (self.operator.life, self.hop());
                self.after(hop, Event::Operator(OperatorEvent::Mark { life, claims }));
            }
        }
    }

    /// Publishes the record of a claim, unless an earlier worker has.
    fn redrive_letter(&mut self, desk: &Operations, claim: &TaskClaim) -> TaskOutcome {
        let name = &claim.letter;
        let Some(letter) = self.disk.letters.get(name) else {
            return TaskOutcome::NoSuchLetter;
        };
        let task = Task::clone(&letter.task);
        let (topic, mut task) = redrive(task, name, Bounds::default(), self.now);
        let outcome = TaskOutcome::from_topic(topic).expect("a topic of redrives");
        let mut log = self
            .disk
            .log
            .iter()
            .filter(|((record_topic, _), _)| *record_topic == topic);
        let is_published = log.any(|(_, records)| {
            let mut letters = records.iter().map(|record| record.task.work.letter());
            letters.any(|letter| letter == Some(name.as_str()))
        });
        if is_published {
            return outcome;
        }
        if let Err(outcome) = desk.may(OperatorWork::Redrive, name, self.now) {
            return outcome;
        }
        if self.sabotage == Some(Sabotage::LetterNameless)
            && let Work::Message(message) = &mut task.work
        {
            message.letter = None;
        }
        self.append_task(topic, Arc::new(task));
        outcome
    }

    fn mark(&mut self, claims: Box<OpenClaims>) {
        let mut entries = Vec::new();
        for (claim, outcome) in &claims.outcomes {
            let letter = self.disk.letters.get(&claim.letter);
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
                at: claim.at,
                target,
                event: LedgerEvent::Redriven {
                    letter: claim.letter.clone(),
                },
            }));
        }
        self.apply(Effect::Ledger(entries));
        let (life, hop) = (self.operator.life, self.hop());
        self.after(hop, Event::Operator(OperatorEvent::Close { life, claims }));
    }

    fn close(&mut self, claims: OpenClaims) {
        let OpenClaims { task, outcomes } = claims;
        let outcomes = outcomes.into_iter();
        let outcomes = outcomes.map(|(claim, outcome)| (claim.letter, outcome));
        let outcomes = outcomes.collect();
        self.operate(OperatorAction::Done { task, outcomes });
        self.work_later();
    }
}
