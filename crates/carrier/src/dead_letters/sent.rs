//! Whom the record of a letter that goes on its way again is for.

use api::dead_letter::DeadLetter;
use api::task::{NotificationTask, Task, Work};
use bytes::Bytes;
use protocol::message::Target;
use protocol::{ConversationId, MessageId};

use super::types::Kind;
use crate::work::{conversation_of, message_of};

/// What a record is about, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) message: Option<MessageId>,
    pub(super) conversation: Option<ConversationId>,
    /// Empty where it is for all whom the message is for.
    pub(super) targets: Vec<Target>,
}

impl Sent {
    pub(super) fn of(kind: Kind, value: &Bytes) -> Sent {
        match kind {
            Kind::Message => Task::decode(value.clone()).map(|task| Sent::of_task(&task)),
            Kind::Notification => NotificationTask::decode(value.clone()).map(|task| Sent {
                message: Some(task.notification.message),
                conversation: Some(task.notification.conversation),
                targets: vec![task.notification.target],
            }),
        }
        .unwrap_or_default()
    }

    fn of_task(task: &Task) -> Sent {
        Sent {
            message: message_of(&task.work),
            conversation: conversation_of(&task.work),
            targets: match &task.work {
                Work::Deliver(deliver) => deliver.targets.clone(),
                Work::Message(_) | Work::Kickout(_) => Vec::new(),
            },
        }
    }

    /// What the ledger is to say is on its way again; `None` is the whole message. Whom an edit left out keeps
    /// the end that the letter was. Where the letter is gone it is not known whether the whole message died:
    /// that is said too, and says nothing of a letter of some targets.
    pub(super) fn on_its_way(&self, letter: Option<&DeadLetter>) -> Vec<Option<Target>> {
        let named = self.targets.iter().copied().map(Some);
        match letter {
            None => [None].into_iter().chain(named).collect(),
            Some(letter) if letter.targets.is_empty() => vec![None],
            Some(letter) if self.targets.is_empty() => {
                letter.targets.iter().copied().map(Some).collect()
            }
            Some(_) => named.collect(),
        }
    }
}
