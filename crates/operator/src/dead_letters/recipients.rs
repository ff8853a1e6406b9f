//! Recipients of the record that redrives a letter.

use api::dead_letter::DeadLetter;
use api::task::{NotificationTask, Value};
use bytes::Bytes;
use protocol::message::Target;
use protocol::record::{Task, redrive_targets};
use protocol::{ConversationId, MessageId};

use super::types::Kind;

/// Subject of a record, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordSubject {
    pub(super) message: Option<MessageId>,
    pub(super) conversation: Option<ConversationId>,
    /// Empty if the record is for all recipients of the message.
    pub(super) targets: Vec<Target>,
    /// Whether the record is for live sessions, too.
    pub(super) is_live: bool,
}

impl RecordSubject {
    pub(super) fn of(kind: Kind, value: &Bytes) -> RecordSubject {
        match kind {
            Kind::Message => {
                Task::decode(value.clone()).map(|task| RecordSubject::from_task(&task))
            }
            Kind::Notification => {
                NotificationTask::decode(value.clone()).map(|task| RecordSubject {
                    message: Some(task.notification.message),
                    conversation: Some(task.notification.conversation),
                    targets: vec![task.notification.target],
                    is_live: false,
                })
            }
        }
        .unwrap_or_default()
    }

    fn from_task(task: &Task) -> RecordSubject {
        RecordSubject {
            message: task.work.message(),
            conversation: task.work.conversation(),
            targets: task.work.targets().to_vec(),
            is_live: task.work.is_live(),
        }
    }

    /// Targets that the ledger should show on their way again: see [`redrive_targets`].
    pub(super) fn on_its_way(&self, letter: Option<&DeadLetter>) -> Vec<Option<Target>> {
        redrive_targets(&self.targets, self.is_live, letter.map(|it| &*it.targets))
    }
}
