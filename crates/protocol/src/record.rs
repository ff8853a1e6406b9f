//! Records of the log: what the topics `message` and `retry-<n>` ask of a carrier.
//!
//! Another crate encodes and decodes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::bounds::Bounds;
use crate::delivery::{DeliveryTask, Obligation, Origin, Source};
use crate::history::Version;
use crate::keys::{self, Topic};
use crate::message::Target;
use crate::presence::SessionKey;
use crate::trace::Step;
use crate::{ConversationId, Message, MessageId, Placed, Refusal, Timestamp, TraceContext, UserId};

/// A record and its place in the log.
#[derive(Clone, Copy, Debug)]
pub struct TaskRecord<'a> {
    pub source: Source,
    pub task: &'a Task,
}

impl TaskRecord<'_> {
    /// Version of all that this record writes, in a log of this epoch.
    pub fn version(&self, epoch: u32) -> Version {
        Version {
            epoch,
            offset: self.source.offset,
        }
    }

    /// Trace context of its placement, from which its deliveries follow.
    pub fn placing(&self) -> Option<TraceContext> {
        let place = [u64::from(self.source.partition), self.source.offset];
        (self.task.trace).map(|trace| trace.step(Step::Place, &place))
    }
}

/// The value of a record on the topics `message` and `retry-<n>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Number of times that it was published again after a failure.
    pub retry_count: u32,
    /// Time of the first publication.
    pub first_at: Timestamp,
    pub trace: Option<TraceContext>,
    pub work: Work,
}

impl Task {
    /// A task on its first publication.
    pub fn new(work: Work, at: Timestamp) -> Task {
        Task {
            retry_count: 0,
            first_at: at,
            trace: None,
            work,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Message(MessageTask),
    Deliver(RetryTask),
    Kickout(KickoutTask),
}

impl Work {
    pub fn message(&self) -> Option<MessageId> {
        match self {
            Work::Message(task) => Some(task.message.id),
            Work::Deliver(task) => Some(task.placed.message.id),
            Work::Kickout(_) => None,
        }
    }

    pub fn conversation(&self) -> Option<ConversationId> {
        match self {
            Work::Message(task) => task.message.conversation(),
            Work::Deliver(task) => Some(task.placed.conversation),
            Work::Kickout(_) => None,
        }
    }

    /// Targets that it is for; none if it is for all recipients, or for live sessions only.
    pub fn targets(&self) -> &[Target] {
        match self {
            Work::Deliver(task) => &task.targets,
            Work::Message(_) | Work::Kickout(_) => &[],
        }
    }

    /// Whether it is for live sessions, too, besides its targets.
    pub fn is_live(&self) -> bool {
        match self {
            Work::Deliver(task) => !task.live_users.is_empty(),
            Work::Message(_) | Work::Kickout(_) => false,
        }
    }

    /// Name of the dead letter that it sends on its way again.
    pub fn letter(&self) -> Option<&str> {
        match self {
            Work::Message(task) => task.letter.as_deref(),
            Work::Deliver(task) => task.letter.as_deref(),
            Work::Kickout(_) => None,
        }
    }
}

/// Key under which a task is published; `None` if the task concerns nobody.
pub fn publish_key(work: &Work) -> Option<[u8; 17]> {
    match work {
        Work::Message(MessageTask { message, .. }) => message.conversation().map(keys::record_key),
        Work::Deliver(RetryTask { placed, .. }) => Some(keys::record_key(placed.conversation)),
        Work::Kickout(KickoutTask { sessions, .. }) => {
            sessions.first().map(|key| keys::control_key(key.user))
        }
    }
}

/// A message to be placed and delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageTask {
    pub message: Message,
    /// The sender's session, which gets the position.
    pub origin: Option<Origin>,
    /// Published before, outcome unknown: an earlier record may hold the same id.
    pub maybe_repeat: bool,
    /// The dedupe key was lost: look for the send_id among what was placed since the first try.
    pub unsure: bool,
    /// Maximum time from the id of the first try to `accepted_at`, the lead of ids over the clock
    /// included.
    pub age: Duration,
    /// Name of the dead letter that it sends on its way again.
    pub letter: Option<String>,
    /// Bounds of the station that accepted it, or of the desk that redrives it.
    pub bounds: Bounds,
}

/// A placed message that some targets still miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryTask {
    pub placed: Placed,
    /// Position of a change among the changes; 0 for a message.
    pub rev: u64,
    /// Targets that failed.
    pub targets: Vec<Target>,
    /// Users whose live sessions get it, too; nothing is stored for their other platforms.
    pub live_users: Vec<UserId>,
    /// Earliest time of the next attempt.
    pub due_at: Timestamp,
    /// Failure of the last attempt.
    pub cause: String,
    /// Name of the dead letter that it sends on its way again.
    pub letter: Option<String>,
}

impl RetryTask {
    /// Obligations of its targets and live users, a user once.
    pub fn owed(&self) -> Vec<Obligation> {
        let mut obligations: Vec<Obligation> = Vec::new();
        let mut index_by_user: BTreeMap<UserId, usize> = BTreeMap::new();
        let mut index_of = |user: UserId| {
            *index_by_user.entry(user).or_insert_with(|| {
                obligations.push(Obligation {
                    user,
                    platforms: Vec::new(),
                    live: false,
                });
                obligations.len() - 1
            })
        };
        let target_indices: Vec<usize> = self.targets.iter().map(|t| index_of(t.user)).collect();
        let live_indices: Vec<usize> = self.live_users.iter().map(|user| index_of(*user)).collect();
        for (index_of, target) in target_indices.into_iter().zip(&self.targets) {
            if !obligations[index_of].platforms.contains(&target.platform) {
                obligations[index_of].platforms.push(target.platform);
            }
        }
        live_indices
            .into_iter()
            .for_each(|index_of| obligations[index_of].live = true);
        obligations
    }
}

/// The end of exactly these sessions, all of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KickoutTask {
    pub sessions: Vec<SessionKey>,
    /// Their last frame. Its `retry_after` is not carried.
    pub refusal: Refusal,
}

/// A retry of `task` as a record, for obligations that are still open.
pub fn retry_task(
    task: &DeliveryTask,
    obligations: &[Obligation],
    retry_count: u32,
    due_at: Timestamp,
    cause: &str,
) -> Task {
    let live = obligations.iter().filter(|obligation| obligation.live);
    Task {
        retry_count,
        first_at: task.first_at,
        trace: task.trace,
        work: Work::Deliver(RetryTask {
            placed: task.placed.clone(),
            rev: task.rev,
            targets: obligations.iter().flat_map(Obligation::targets).collect(),
            live_users: live.map(|obligation| obligation.user).collect(),
            due_at,
            cause: cause.to_owned(),
            letter: task.letter.as_deref().map(str::to_owned),
        }),
    }
}

/// Redrives a dead letter: the topic and the task of the record that redrives it. A delivery
/// goes to the retries, a message to the log of its conversation, with the bounds of the desk.
pub fn redrive(mut task: Task, letter: &str, bounds: Bounds, now: Timestamp) -> (Topic, Task) {
    task.retry_count = 0;
    let topic = match &mut task.work {
        Work::Deliver(delivery) => {
            delivery.letter = Some(letter.to_owned());
            delivery.due_at = now;
            Topic::Retry(1)
        }
        Work::Message(message) => {
            message.letter = Some(letter.to_owned());
            message.bounds = bounds;
            Topic::Message
        }
        Work::Kickout(_) => Topic::Message,
    };
    (topic, task)
}

/// Targets that the ledger shows on their way again, once a record for `targets` redrives a letter;
/// `None` stands for the whole message, and for live sessions, which are no target. `is_live`: the
/// record is for live sessions, too. `letter`: targets of the letter, none if the whole message
/// died.
///
/// A target that an edit left out stays as the letter ended it, even if only live sessions are
/// left. A record that names no targets stands for those of its letter. Without the letter it is
/// unknown whether the whole message died: `None` is then added, and says nothing about a letter of
/// some targets.
pub fn redrive_targets(
    targets: &[Target],
    is_live: bool,
    letter: Option<&[Target]>,
) -> Vec<Option<Target>> {
    let named_targets: &[Target] = match letter {
        Some([]) => &[],
        Some(letter) if targets.is_empty() && !is_live => letter,
        Some(_) | None => targets,
    };
    let is_whole = is_live || letter.is_none_or(<[Target]>::is_empty);
    let named_targets = named_targets.iter().copied().map(Some);
    is_whole
        .then_some(None)
        .into_iter()
        .chain(named_targets)
        .collect()
}

/// Name of the letter of a record, shared by its deliveries.
pub(crate) fn shared_letter(work: &Work) -> Option<Arc<str>> {
    work.letter().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::trace::{MessageLife, OpenObligation};
    use crate::ledger::{DeadReason, LedgerEntry, LedgerEvent};
    use crate::message::Content;
    use crate::{DeviceId, Options, Platform, Position, Recipient, SendId, Seq};

    const NOON: Timestamp = Timestamp::from_millis(1_750_000_000_000);

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn target(platform: Platform) -> Target {
        Target {
            user: user(2),
            platform,
        }
    }

    fn message() -> Message {
        Message {
            id: MessageId::new(9).expect("positive"),
            from: user(1),
            to: Recipient::User(user(2)),
            accepted_at: NOON,
            device: DeviceId::new("d").expect("short"),
            send_id: SendId::from_bytes([1; 16]),
            options: Options::CHAT,
            content: Content::text("x"),
        }
    }

    fn dead(work: Work) -> Task {
        Task {
            retry_count: 6,
            ..Task::new(work, NOON)
        }
    }

    #[test]
    fn messages_are_redriven_to_their_log_deliveries_to_retries() {
        let bounds = Bounds {
            group_members: 5,
            group_push: 3,
            ..Bounds::DEFAULT
        };
        let work = Work::Message(MessageTask {
            message: message(),
            origin: None,
            maybe_repeat: false,
            unsure: false,
            age: Duration::ZERO,
            letter: None,
            bounds: Bounds::DEFAULT,
        });
        let (topic, task) = redrive(dead(work), "message-0-1", bounds, NOON);
        let Work::Message(message_task) = &task.work else {
            panic!("{task:?}");
        };
        assert_eq!((topic, task.retry_count), (Topic::Message, 0));
        assert_eq!(message_task.letter.as_deref(), Some("message-0-1"));
        assert_eq!(message_task.bounds, bounds);

        let later = NOON + Duration::from_secs(60);
        let work = Work::Deliver(RetryTask {
            placed: Placed {
                conversation: message().conversation().expect("two users"),
                position: Position {
                    seq: Seq(1),
                    prev: None,
                },
                message: message(),
            },
            rev: 0,
            targets: vec![target(Platform::Web)],
            live_users: Vec::new(),
            due_at: NOON,
            cause: String::new(),
            letter: None,
        });
        let (topic, task) = redrive(dead(work), "retry-1-0-4", bounds, later);
        let Work::Deliver(delivery) = &task.work else {
            panic!("{task:?}");
        };
        assert_eq!((topic, task.retry_count), (Topic::Retry(1), 0));
        assert_eq!(delivery.letter.as_deref(), Some("retry-1-0-4"));
        assert_eq!(delivery.due_at, later);
        assert_eq!(task.first_at, NOON, "a message does not grow younger");
    }

    #[test]
    fn targets_that_an_edit_left_out_are_not_on_their_way() {
        let (ios, web) = (target(Platform::Ios), target(Platform::Web));
        let both_targets = [ios, web];
        assert_eq!(redrive_targets(&[], false, Some(&[])), [None]);
        assert_eq!(redrive_targets(&[], true, Some(&[])), [None]);
        assert_eq!(
            redrive_targets(&[web], false, Some(&both_targets)),
            [Some(web)]
        );
        assert_eq!(
            redrive_targets(&[], false, Some(&both_targets)),
            both_targets.map(Some)
        );
        assert_eq!(redrive_targets(&[], true, Some(&both_targets)), [None]);
        assert_eq!(
            redrive_targets(&[web], true, Some(&both_targets)),
            [None, Some(web)]
        );
        assert_eq!(redrive_targets(&[web], false, None), [None, Some(web)]);
    }

    // A mailbox that refuses a user fails their platforms and their live sessions; both are in one
    // letter, and the death of the latter bears no target. Neither it nor its redrive is of the
    // whole message.
    #[test]
    fn live_sessions_of_a_letter_neither_end_nor_reopen_the_message() {
        let web = target(Platform::Web);
        let entry = |target, event| LedgerEntry {
            message: message().id,
            at: NOON,
            target,
            event,
        };
        let letter = || "retry-1-0-4".to_owned();
        let dead = || LedgerEvent::Dead {
            reason: DeadReason::MaxRetries,
            letter: letter(),
        };
        let life = |is_live| {
            let redriven = redrive_targets(&[web], is_live, Some(&[web])).into_iter();
            let redriven = redriven.map(|redriven_target| {
                entry(redriven_target, LedgerEvent::Redriven { letter: letter() })
            });
            let mut entries = vec![entry(Some(web), dead()), entry(None, dead())];
            entries.extend(redriven);
            MessageLife::of(message().id, &entries)
        };
        for life in [true, false].map(life) {
            assert_eq!(life.dead, None);
            assert!(!life.is_redriven);
            assert!(life.open().contains(&OpenObligation::Target(web)));
        }
    }
}
