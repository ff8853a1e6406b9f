//! Values of records on the topics `message`, `retry-<n>` and `notification`: their bytes.

pub mod reading;

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use protocol::bounds::Bounds;
use protocol::delivery::{Obligation, Origin};
use protocol::message::Target;
use protocol::notify::Notification;
use protocol::record::{KickoutTask, MessageTask, RetryTask, Task, Work};
use protocol::{Code, MessageId, Refusal, SessionId, Timestamp, TraceContext, UserId};

use crate::convert::{conversation, field, life, list, millis, platform, platform_number, present};
use crate::trace::{headers, trace_text};
use crate::v1;
use crate::v1::task::Body;

/// The value of a record on the topic `notification`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationTask {
    pub notification: Notification,
    pub retry_count: u32,
    pub trace: Option<TraceContext>,
    /// Name of the dead letter that it sends on its way again.
    pub letter: Option<String>,
}

/// The value of a record.
pub trait Value: Sized {
    fn encode(&self) -> Bytes;

    /// # Errors
    /// A refusal means a dead letter: the same bytes will never be a value of this kind.
    fn decode(bytes: Bytes) -> Result<Self, Refusal>;

    /// Headers for ordinary tools: its `traceparent`, where it has one.
    fn headers(&self) -> Vec<(String, Bytes)>;
}

impl Value for Task {
    fn encode(&self) -> Bytes {
        v1::Task::from(self).encode_to_vec().into()
    }

    fn decode(bytes: Bytes) -> Result<Task, Refusal> {
        v1::Task::decode(bytes).map_err(no_task)?.try_into()
    }

    fn headers(&self) -> Vec<(String, Bytes)> {
        headers(self.trace)
    }
}

impl Value for NotificationTask {
    fn encode(&self) -> Bytes {
        v1::NotificationTask::from(self).encode_to_vec().into()
    }

    fn decode(bytes: Bytes) -> Result<NotificationTask, Refusal> {
        v1::NotificationTask::decode(bytes)
            .map_err(no_task)?
            .try_into()
    }

    fn headers(&self) -> Vec<(String, Bytes)> {
        headers(self.trace)
    }
}

/// Splits a retry of these obligations, as `retry` makes one of some of them, into tasks of at most
/// `bytes_max` each, and a little less, so that a letter or a redrive of one is not larger either.
/// Each user is in one of them. A retry that is too large for one user alone stays whole.
pub fn split(
    obligations: &[Obligation],
    bytes_max: usize,
    retry: impl Fn(&[Obligation]) -> Task,
) -> Vec<Task> {
    let whole = retry(obligations);
    let bytes_max = bytes_max.saturating_sub(GROWTH);
    if obligations.len() < 2 || v1::Task::from(&whole).encoded_len() <= bytes_max {
        return vec![whole];
    }
    let head = v1::Task::from(&retry(&[]));
    // Lengths in front of what is nested take a few bytes.
    let room = bytes_max.saturating_sub(head.encoded_len() + 16);
    if room == 0 {
        return vec![whole];
    }
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (index, obligation) in obligations.iter().enumerate() {
        let more = encoded_len(obligation);
        if bytes + more > room && index > from {
            parts.push(retry(&obligations[from..index]));
            (from, bytes) = (index, 0);
        }
        bytes += more;
    }
    parts.push(retry(&obligations[from..]));
    parts
}

/// Bytes that a task may grow by without becoming too large: the name of a letter, another cause.
const GROWTH: usize = 512;

/// Bytes in a task: a tag and a length for each target, a number for a user.
fn encoded_len(obligation: &Obligation) -> usize {
    let targets = obligation.targets();
    let targets = targets.map(|target| v1::DeliverTarget::from(target).encoded_len() + 2);
    let live = prost::encoding::encoded_len_varint(obligation.user.get().cast_unsigned()) + 1;
    targets.sum::<usize>() + if obligation.live { live } else { 0 }
}

fn no_task(error: prost::DecodeError) -> Refusal {
    Refusal::new(
        Code::Malformed,
        format!("the record is not a task: {error}"),
    )
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
            bounds: wire.bounds.map_or(LEGACY_BOUNDS, Bounds::from),
        })
    }
}

/// Bounds of records of older stations: carriers of any settings took them, whatever their size.
const LEGACY_BOUNDS: Bounds = Bounds {
    record_bytes: usize::MAX,
    ..Bounds::DEFAULT
};

impl From<v1::Bounds> for Bounds {
    fn from(wire: v1::Bounds) -> Self {
        let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Bounds {
            record_bytes: count(wire.record_bytes),
            group_members: count(wire.group_members),
            // Absent in records of older stations.
            group_push: match wire.group_push {
                Some(group_push) => count(group_push),
                None => Bounds::DEFAULT.group_push,
            },
            change_within: Duration::from_millis(wire.change_within_ms),
        }
    }
}

impl From<Bounds> for v1::Bounds {
    fn from(bounds: Bounds) -> Self {
        v1::Bounds {
            record_bytes: bounds.record_bytes as u64,
            group_members: bounds.group_members as u64,
            group_push: Some(bounds.group_push as u64),
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

impl TryFrom<v1::DeliverTask> for RetryTask {
    type Error = Refusal;

    fn try_from(wire: v1::DeliverTask) -> Result<Self, Refusal> {
        Ok(RetryTask {
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

impl From<&RetryTask> for v1::DeliverTask {
    fn from(task: &RetryTask) -> Self {
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
            letter: text_or_none(wire.letter),
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
            letter: task.letter.clone().unwrap_or_default(),
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

    /// A retry of one and the same delivery.
    fn retry(obligations: &[Obligation]) -> Task {
        let task = arbitrary::task().prop_filter_map("a delivery", |task| match task.work {
            Work::Deliver(_) => Some(task),
            Work::Message(_) | Work::Kickout(_) => None,
        });
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let mut task = task.new_tree(&mut runner).expect("a task").current();
        if let Work::Deliver(deliver) = &mut task.work {
            let live = obligations.iter().filter(|obligation| obligation.live);
            deliver.targets = obligations.iter().flat_map(Obligation::targets).collect();
            deliver.live_users = live.map(|obligation| obligation.user).collect();
        }
        task
    }

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    /// Users from one on, of a thousand millions apart.
    fn web(count: i64, live: bool) -> Vec<Obligation> {
        let obligation = |number| Obligation {
            user: user(number * 1_000_000_000_000),
            platforms: vec![protocol::Platform::Web],
            live,
        };
        (1..=count).map(obligation).collect()
    }

    #[test]
    fn a_task_for_100_000_is_split_and_names_each_of_them_once() {
        const MAX_BYTES: usize = 256 << 10;
        let obligations = web(100_000, true);
        let whole = retry(&obligations).encode();
        assert!(whole.len() > 1 << 20, "{}", whole.len());
        let parts = split(&obligations, MAX_BYTES, retry);
        let sizes: Vec<_> = parts.iter().map(|part| part.encode().len()).collect();
        assert!(
            sizes.iter().all(|size| *size <= MAX_BYTES - 512),
            "{sizes:?}"
        );
        assert!(sizes.len() <= 10, "no smaller than they must be: {sizes:?}");
        let (mut all, mut alive) = (Vec::new(), Vec::new());
        for part in parts {
            let Work::Deliver(deliver) = part.work else {
                panic!("a delivery");
            };
            let users_of_part: Vec<_> = deliver.targets.iter().map(|target| target.user).collect();
            assert_eq!(users_of_part, deliver.live_users, "a user is in one part");
            all.extend(deliver.targets);
            alive.extend(deliver.live_users);
        }
        let targets: Vec<Target> = obligations.iter().flat_map(Obligation::targets).collect();
        let users: Vec<UserId> = obligations
            .iter()
            .map(|obligation| obligation.user)
            .collect();
        assert_eq!((all, alive), (targets, users));
    }

    #[test]
    fn a_fitting_or_unsplittable_retry_stays_whole() {
        let obligations = web(100, false);
        let whole = retry(&obligations);
        let size = whole.encode().len();
        assert_eq!(
            split(&obligations, size + 512, retry),
            std::slice::from_ref(&whole)
        );
        assert_eq!(split(&obligations, size + 511, retry).len(), 2);
        assert_eq!(split(&obligations, 0, retry), [whole]);
    }

    #[test]
    fn an_empty_record_is_refused() {
        let refusal = Task::decode(Bytes::new()).expect_err("no body");
        assert_eq!(refusal.code, Code::Malformed);
    }
}
