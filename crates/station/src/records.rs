//! Records of the topic `message`, each in the one partition that its key belongs to.

use api::task::Value;
use backend::queue::{NewRecord, Partition, Queue};
use bytes::Bytes;
use protocol::keys::{Topic, control_key, partition_of, record_key};
use protocol::presence::SessionKey;
use protocol::record::{KickoutTask, MessageTask, Task, Work};
use protocol::{ConversationId, Refusal, Timestamp, TraceContext, UserId};

/// Knows how many partitions there are, which never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    partitions: u32,
}

impl Records {
    pub(crate) fn of(queue: &dyn Queue) -> Records {
        Records {
            partitions: queue.partitions(Topic::Message),
        }
    }

    pub(crate) fn message(
        &self,
        conversation: ConversationId,
        task: MessageTask,
        trace: Option<TraceContext>,
        at: Timestamp,
    ) -> NewRecord {
        self.record(record_key(conversation), Work::Message(task), trace, at)
    }

    /// Ends these sessions of `user`.
    pub(crate) fn kickout(
        &self,
        user: UserId,
        sessions: Vec<SessionKey>,
        refusal: Refusal,
        at: Timestamp,
    ) -> NewRecord {
        let task = KickoutTask { sessions, refusal };
        self.record(control_key(user), Work::Kickout(task), None, at)
    }

    fn record(
        &self,
        key: [u8; 17],
        work: Work,
        trace: Option<TraceContext>,
        at: Timestamp,
    ) -> NewRecord {
        let task = Task {
            trace,
            ..Task::new(work, at)
        };
        NewRecord {
            partition: Partition {
                topic: Topic::Message,
                number: partition_of(&key, self.partitions),
            },
            key: Bytes::copy_from_slice(&key),
            headers: task.headers(),
            value: task.encode(),
        }
    }
}
