//! Faults of all parts, and counts of what is asked of them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use api::task::{Task, Work};
use backend::hook::{Calls, Faults};
use backend::queue::Record;
use protocol::MessageId;

pub const HISTORY: Calls = Calls::to("history");
/// The log takes no messages; everything else goes on.
pub const MESSAGES: Calls = Calls::to("queue").named("publish").of_kind("message");
pub const MAILBOX: Calls = Calls::to("mailbox");
/// Routes of messages, and stores for those who are away.
pub const ROUTES: Calls = MAILBOX.named("route_or_store");

/// The stores that history and lists lie in.
const STORES: [&str; 6] = [
    "history",
    "heads",
    "conversations",
    "changes",
    "groups",
    "group_history",
];

/// Questions to the stores that history and lists lie in, since this was asked last.
pub fn reads(faults: &Faults) -> usize {
    STORES.iter().map(|store| faults.reads(store)).sum()
}

/// The next so many messages that a consumer would be shown are passed over, as if they had never been there; what comes
/// after them is consumed and committed. Answers those that were lost so far.
pub fn lose_messages(faults: &Faults, count: usize) -> Arc<Mutex<BTreeSet<MessageId>>> {
    let lost = Arc::new(Mutex::new(BTreeSet::new()));
    let losing = lost.clone();
    faults.lose_records(move |op, record| {
        let mut lost = losing.lock().expect("no panic");
        let message = message_of(record).filter(|_| op.name == "poll" && lost.len() < count);
        message.is_some_and(|id| lost.insert(id))
    });
    lost
}

fn message_of(record: &Record) -> Option<MessageId> {
    match Task::decode(record.value.clone()).ok()?.work {
        Work::Message(task) => Some(task.message.id),
        Work::Deliver(_) | Work::Kickout(_) => None,
    }
}
