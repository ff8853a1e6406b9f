//! What is queued: the values of records on the topics `message`, `retry-<n>` and `notification`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use protocol::bounds::Bounds;
use protocol::delivery::{self, Owed};
use protocol::message::Target;
use protocol::notify::Notification;
use protocol::presence::{BoatLife, SessionKey};
use protocol::{
    Code, Message, MessageId, Placed, Refusal, SessionId, Timestamp, TraceContext, UserId,
};

use crate::convert::{conversation, field, life, list, millis, platform, platform_number, present};
use crate::trace::{headers, trace_text};
use crate::v1;
use crate::v1::task::Body;

/// The value of a record on the topics `message` and `retry-<n>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// How often it was published again after a failure.
    pub retry_count: u32,
    /// When it was first published.
    pub first_at: Timestamp,
    pub trace: Option<TraceContext>,
    pub work: Work,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Message(MessageTask),
    Deliver(DeliverTask),
    Kickout(KickoutTask),
}

/// A message to be placed and delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageTask {
    pub message: Message,
    /// Who sent it, to be told its place.
    pub origin: Option<Origin>,
    /// Published before, outcome unknown: an earlier record may hold the same id.
    pub maybe_repeat: bool,
    /// The dedupe key was lost: look for the send_id among what was placed since the first try.
    pub unsure: bool,
    /// How long before `accepted_at` the first try was.
    pub age: Duration,
    /// A redriven dead letter names itself.
    pub letter: Option<String>,
    /// Of the station that accepted it, or the desk that sends it on its way again.
    pub bounds: Bounds,
}

/// The session that sent a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub session: SessionId,
    pub life: BoatLife,
}

/// A placed message that some targets still miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliverTask {
    pub placed: Placed,
    /// The place of a change among the changes; 0 of a message.
    pub rev: u64,
    /// Only what failed.
    pub targets: Vec<Target>,
    /// Users of whom whatever sessions live get it, too; on other platforms nothing is stored.
    pub live_users: Vec<UserId>,
    /// Not before this time.
    pub due_at: Timestamp,
    /// Why the last attempt failed.
    pub cause: String,
    /// A redriven dead letter names itself.
    pub letter: Option<String>,
}

impl DeliverTask {
    /// What is owed by it.
    pub fn owed(&self) -> Vec<Owed> {
        let mut owed: Vec<Owed> = Vec::new();
        let mut known: BTreeMap<UserId, usize> = BTreeMap::new();
        let mut place = |user: UserId| {
            *known.entry(user).or_insert_with(|| {
                owed.push(Owed {
                    user,
                    platforms: Vec::new(),
                    live: false,
                });
                owed.len() - 1
            })
        };
        let places: Vec<usize> = self.targets.iter().map(|t| place(t.user)).collect();
        let live: Vec<usize> = self.live_users.iter().map(|user| place(*user)).collect();
        for (place, target) in places.into_iter().zip(&self.targets) {
            if !owed[place].platforms.contains(&target.platform) {
                owed[place].platforms.push(target.platform);
            }
        }
        live.into_iter().for_each(|place| owed[place].live = true);
        owed
    }
}

/// The task as it is queued again, for what is still owed.
pub fn again(
    task: &delivery::Task,
    owed: &[Owed],
    retry_count: u32,
    due_at: Timestamp,
    cause: &str,
) -> Task {
    let live = owed.iter().filter(|owed| owed.live);
    Task {
        retry_count,
        first_at: task.first_at,
        trace: task.trace,
        work: Work::Deliver(DeliverTask {
            placed: task.placed.clone(),
            rev: task.rev,
            targets: owed.iter().flat_map(Owed::targets).collect(),
            live_users: live.map(|owed| owed.user).collect(),
            due_at,
            cause: cause.to_owned(),
            letter: task.letter.as_deref().map(str::to_owned),
        }),
    }
}

/// Bytes that a task may grow by without becoming too large: the name of a letter, another cause.
const GROWTH: usize = 512;

/// Ends exactly these sessions, all of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KickoutTask {
    pub sessions: Vec<SessionKey>,
    /// The last frame they get. Its `retry_after` is not carried.
    pub refusal: Refusal,
}

/// The value of a record on the topic `notification`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationTask {
    pub notification: Notification,
    pub retry_count: u32,
    pub trace: Option<TraceContext>,
}

impl Task {
    /// Published for the first time.
    pub fn new(work: Work, at: Timestamp) -> Task {
        Task {
            retry_count: 0,
            first_at: at,
            trace: None,
            work,
        }
    }

    /// The same work as tasks of at most `bytes_max` each, and a little less, so that a letter or a redrive of one
    /// is not larger either. Each user is in one of them. What is too large even for one user stays whole.
    pub fn split(self, bytes_max: usize) -> Vec<Task> {
        let Work::Deliver(deliver) = &self.work else {
            return vec![self];
        };
        let bytes_max = bytes_max.saturating_sub(GROWTH);
        let whole = v1::Task::from(&self).encoded_len();
        if whole <= bytes_max || deliver.targets.len() + deliver.live_users.len() < 2 {
            return vec![self];
        }
        let head = self.part(deliver, &[]);
        // Lengths in front of what is nested take a few bytes.
        let room = bytes_max.saturating_sub(v1::Task::from(&head).encoded_len() + 16);
        if room == 0 {
            return vec![self];
        }
        let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
        for owed in deliver.owed() {
            let more = encoded_len(&owed);
            if bytes + more > room && !part.is_empty() {
                parts.push(self.part(deliver, &std::mem::take(&mut part)));
                bytes = 0;
            }
            bytes += more;
            part.push(owed);
        }
        parts.push(self.part(deliver, &part));
        parts
    }

    /// The same for these alone.
    fn part(&self, deliver: &DeliverTask, owed: &[Owed]) -> Task {
        let live = owed.iter().filter(|owed| owed.live);
        Task {
            retry_count: self.retry_count,
            first_at: self.first_at,
            trace: self.trace,
            work: Work::Deliver(DeliverTask {
                placed: deliver.placed.clone(),
                rev: deliver.rev,
                targets: owed.iter().flat_map(Owed::targets).collect(),
                live_users: live.map(|owed| owed.user).collect(),
                due_at: deliver.due_at,
                cause: deliver.cause.clone(),
                letter: deliver.letter.clone(),
            }),
        }
    }

    pub fn encode(&self) -> Bytes {
        v1::Task::from(self).encode_to_vec().into()
    }

    /// What ordinary tools show beside the record: its `traceparent`, where it has one.
    pub fn headers(&self) -> Vec<(String, Bytes)> {
        headers(self.trace)
    }

    /// A refusal means a dead letter: the same bytes will never be a task.
    pub fn decode(bytes: Bytes) -> Result<Task, Refusal> {
        v1::Task::decode(bytes).map_err(no_task)?.try_into()
    }
}

impl NotificationTask {
    pub fn encode(&self) -> Bytes {
        v1::NotificationTask::from(self).encode_to_vec().into()
    }

    /// As [`Task::headers`].
    pub fn headers(&self) -> Vec<(String, Bytes)> {
        headers(self.trace)
    }

    /// A refusal means a dead letter: the same bytes will never be a task.
    pub fn decode(bytes: Bytes) -> Result<NotificationTask, Refusal> {
        v1::NotificationTask::decode(bytes)
            .map_err(no_task)?
            .try_into()
    }
}

/// What it takes in a task: a tag and a length for each target, a number for a user.
fn encoded_len(owed: &Owed) -> usize {
    let targets = owed.targets();
    let targets = targets.map(|target| v1::DeliverTarget::from(target).encoded_len() + 2);
    let live = prost::encoding::encoded_len_varint(owed.user.get().cast_unsigned()) + 1;
    targets.sum::<usize>() + if owed.live { live } else { 0 }
}

fn no_task(error: prost::DecodeError) -> Refusal {
    Refusal::new(Code::Malformed, format!("the record is no task: {error}"))
}

fn text_or_none(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

impl TryFrom<v1::Task> for Task {
    type Error = Refusal;

    fn try_from(wire: v1::Task) -> Result<Self, Refusal> {
        let work = match present("task.body (message, deliver, kickout)", wire.body)? {
            Body::Message(message) => Work::Message(message.try_into()?),
            Body::Deliver(deliver) => Work::Deliver(deliver.try_into()?),
            Body::Kickout(kickout) => Work::Kickout(kickout.try_into()?),
        };
        Ok(Task {
            retry_count: wire.retry_count,
            first_at: Timestamp::from_millis(wire.first_at),
            trace: TraceContext::parse(&wire.traceparent),
            work,
        })
    }
}

impl From<&Task> for v1::Task {
    fn from(task: &Task) -> Self {
        let body = match &task.work {
            Work::Message(message) => Body::Message(message.into()),
            Work::Deliver(deliver) => Body::Deliver(deliver.into()),
            Work::Kickout(kickout) => Body::Kickout(kickout.into()),
        };
        v1::Task {
            retry_count: task.retry_count,
            traceparent: trace_text(task.trace),
            first_at: task.first_at.millis(),
            body: Some(body),
        }
    }
}

impl TryFrom<v1::MessageTask> for MessageTask {
    type Error = Refusal;

    fn try_from(wire: v1::MessageTask) -> Result<Self, Refusal> {
        let origin = match wire.session {
            0 => None,
            session => Some(Origin {
                session: field("task.session", SessionId::new(session))?,
                life: life(wire.life)?,
            }),
        };
        Ok(MessageTask {
            message: present("task.message", wire.message)?.try_into()?,
            origin,
            maybe_repeat: wire.maybe_repeat,
            unsure: wire.unsure,
            age: Duration::from_millis(wire.age_ms),
            letter: text_or_none(wire.letter),
            bounds: wire.bounds.map_or(OLD, Bounds::from),
        })
    }
}

/// Bounds of records of older stations: what carriers of any settings took, whatever its size.
const OLD: Bounds = Bounds {
    record_bytes: usize::MAX,
    ..Bounds::DEFAULT
};

impl From<v1::Bounds> for Bounds {
    fn from(wire: v1::Bounds) -> Self {
        let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Bounds {
            record_bytes: count(wire.record_bytes),
            group_members: count(wire.group_members),
            change_within: Duration::from_millis(wire.change_within_ms),
        }
    }
}

impl From<Bounds> for v1::Bounds {
    fn from(bounds: Bounds) -> Self {
        v1::Bounds {
            record_bytes: bounds.record_bytes as u64,
            group_members: bounds.group_members as u64,
            change_within_ms: millis(bounds.change_within),
        }
    }
}

impl From<&MessageTask> for v1::MessageTask {
    fn from(task: &MessageTask) -> Self {
        v1::MessageTask {
            message: Some((&task.message).into()),
            session: task
                .origin
                .as_ref()
                .map_or(0, |origin| origin.session.get()),
            life: task.origin.as_ref().map(|origin| (&origin.life).into()),
            maybe_repeat: task.maybe_repeat,
            unsure: task.unsure,
            age_ms: millis(task.age),
            letter: task.letter.clone().unwrap_or_default(),
            bounds: Some(task.bounds.into()),
        }
    }
}

impl TryFrom<v1::DeliverTask> for DeliverTask {
    type Error = Refusal;

    fn try_from(wire: v1::DeliverTask) -> Result<Self, Refusal> {
        Ok(DeliverTask {
            placed: present("task.message", wire.message)?.try_into()?,
            rev: wire.rev,
            targets: list("task.targets", wire.targets, usize::MAX)?,
            live_users: wire
                .live_users
                .into_iter()
                .map(|user| field("task.live_users", UserId::new(user)))
                .collect::<Result<_, _>>()?,
            due_at: Timestamp::from_millis(wire.due_at),
            cause: wire.cause,
            letter: text_or_none(wire.letter),
        })
    }
}

impl From<&DeliverTask> for v1::DeliverTask {
    fn from(task: &DeliverTask) -> Self {
        v1::DeliverTask {
            message: Some((&task.placed).into()),
            rev: task.rev,
            targets: task.targets.iter().map(|&target| target.into()).collect(),
            live_users: task.live_users.iter().map(|user| user.get()).collect(),
            due_at: task.due_at.millis(),
            cause: task.cause.clone(),
            letter: task.letter.clone().unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::KickoutTask> for KickoutTask {
    type Error = Refusal;

    fn try_from(wire: v1::KickoutTask) -> Result<Self, Refusal> {
        let refusal = v1::Refusal {
            code: wire.code,
            text: wire.text,
            retry_after_ms: 0,
        };
        Ok(KickoutTask {
            sessions: list("task.sessions", wire.sessions, usize::MAX)?,
            refusal: refusal.try_into()?,
        })
    }
}

impl From<&KickoutTask> for v1::KickoutTask {
    fn from(task: &KickoutTask) -> Self {
        v1::KickoutTask {
            sessions: task.sessions.iter().map(v1::SessionKey::from).collect(),
            code: u32::from(task.refusal.code.number()),
            text: task.refusal.text.clone(),
        }
    }
}

impl TryFrom<v1::NotificationTask> for NotificationTask {
    type Error = Refusal;

    fn try_from(wire: v1::NotificationTask) -> Result<Self, Refusal> {
        Ok(NotificationTask {
            notification: Notification {
                message: field("task.msg_id", MessageId::new(wire.msg_id))?,
                from: field("task.from_id", UserId::new(wire.from_id))?,
                target: Target {
                    user: field("task.user", UserId::new(wire.user))?,
                    platform: platform("task.platform", wire.platform)?,
                },
                conversation: conversation(wire.conversation)?,
                accepted_at: Timestamp::from_millis(wire.tm),
            },
            retry_count: wire.retry_count,
            trace: TraceContext::parse(&wire.traceparent),
        })
    }
}

impl From<&NotificationTask> for v1::NotificationTask {
    fn from(task: &NotificationTask) -> Self {
        let notification = task.notification;
        v1::NotificationTask {
            msg_id: notification.message.get(),
            from_id: notification.from.get(),
            user: notification.target.user.get(),
            platform: platform_number(notification.target.platform),
            conversation: Some(notification.conversation.into()),
            tm: notification.accepted_at.millis(),
            retry_count: task.retry_count,
            traceparent: trace_text(task.trace),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    use super::*;
    use crate::convert::arbitrary;

    proptest! {
        #[test]
        fn tasks_survive_the_log(task in arbitrary::task()) {
            prop_assert_eq!(Task::decode(task.encode()), Ok(task));
        }

        #[test]
        fn notifications_survive_the_log(task in arbitrary::notification()) {
            prop_assert_eq!(NotificationTask::decode(task.encode()), Ok(task));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_read_never_a_panic(bytes: Vec<u8>) {
            drop(Task::decode(bytes.clone().into()));
            drop(NotificationTask::decode(bytes.into()));
        }
    }

    fn to_many(targets: Vec<Target>, live_users: Vec<UserId>) -> Task {
        let task = arbitrary::task().prop_filter_map("a delivery", |task| match task.work {
            Work::Deliver(_) => Some(task),
            Work::Message(_) | Work::Kickout(_) => None,
        });
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let mut task = task.new_tree(&mut runner).expect("a task").current();
        if let Work::Deliver(deliver) = &mut task.work {
            deliver.targets = targets;
            deliver.live_users = live_users;
        }
        task
    }

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    /// Users from one on, of a thousand millions apart.
    fn web(count: i64) -> Vec<Target> {
        let target = |number| Target {
            user: user(number * 1_000_000_000_000),
            platform: protocol::Platform::Web,
        };
        (1..=count).map(target).collect()
    }

    #[test]
    fn a_task_for_100_000_is_split_and_names_each_of_them_once() {
        const MOST: usize = 256 << 10;
        let targets = web(100_000);
        let live: Vec<_> = targets.iter().map(|target| target.user).collect();
        let task = to_many(targets.clone(), live.clone());
        assert!(task.encode().len() > 1 << 20, "{}", task.encode().len());
        let parts = task.split(MOST);
        let sizes: Vec<_> = parts.iter().map(|part| part.encode().len()).collect();
        assert!(sizes.iter().all(|size| *size <= MOST - 512), "{sizes:?}");
        assert!(sizes.len() <= 10, "no smaller than they must be: {sizes:?}");
        let (mut all, mut alive) = (Vec::new(), Vec::new());
        for part in parts {
            let Work::Deliver(deliver) = part.work else {
                panic!("a delivery");
            };
            let here: Vec<_> = deliver.targets.iter().map(|target| target.user).collect();
            assert_eq!(here, deliver.live_users, "a user is in one part");
            all.extend(deliver.targets);
            alive.extend(deliver.live_users);
        }
        assert_eq!((all, alive), (targets, live));
    }

    #[test]
    fn what_fits_stays_whole_and_so_does_what_no_splitting_helps() {
        let task = to_many(web(100), Vec::new());
        let size = task.encode().len();
        assert_eq!(task.clone().split(size + 512), std::slice::from_ref(&task));
        assert_eq!(task.clone().split(size + 511).len(), 2);
        assert_eq!(task.clone().split(0), [task]);
    }

    #[test]
    fn an_empty_record_is_refused() {
        let refusal = Task::decode(Bytes::new()).expect_err("no body");
        assert_eq!(refusal.code, Code::Malformed);
    }
}
