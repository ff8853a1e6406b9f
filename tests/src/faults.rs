//! Faults of all parts, and counts of calls to them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use api::task::Value;
use backend::hook::{Calls, Faults};
use backend::queue::Record;
use protocol::MessageId;
use protocol::record::{Task, Work};

pub const HISTORY: Calls = Calls::to("messages");
/// Publishes of messages; other calls to the log go on.
pub const MESSAGES: Calls = Calls::to("queue").named("publish").of_kind("message");
pub const MAILBOX: Calls = Calls::to("mailbox");
/// Routes of messages, and stores for absent users.
pub const ROUTES: Calls = MAILBOX.named("route_or_store");

/// Stores that hold history and lists.
const STORES: [&str; 5] = ["messages", "heads", "conversations", "changes", "groups"];

/// Number of reads of the stores that hold history and lists, since the last call.
pub fn reads(faults: &Faults) -> usize {
    STORES.iter().map(|store| faults.reads(store)).sum()
}

/// Has consumers skip the next `count` messages, as if they had never existed; those after them are
/// consumed and committed. Returns the messages lost so far.
pub fn lose_messages(faults: &Faults, count: usize) -> Arc<Mutex<BTreeSet<MessageId>>> {
    let lost_ids = Arc::new(Mutex::new(BTreeSet::new()));
    let shared_ids = lost_ids.clone();
    faults.lose_records(move |op, record| {
        let mut lost_ids = shared_ids.lock().expect("no panic");
        let message = message_id(record).filter(|_| op.name == "poll" && lost_ids.len() < count);
        message.is_some_and(|id| lost_ids.insert(id))
    });
    lost_ids
}

fn message_id(record: &Record) -> Option<MessageId> {
    match Task::decode(record.value.clone()).ok()?.work {
        Work::Message(task) => Some(task.message.id),
        Work::Deliver(_) | Work::Kickout(_) => None,
    }
}
