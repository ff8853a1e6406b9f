//! "I have read up to here", said along with a send: moves the sender's read register, later and
//! never beyond what the conversation has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backend::conversations::ConversationStore;
use protocol::{ConversationId, Seq, Timestamp, UserId};

use crate::deadline::within;

/// How far a sender has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenUpTo {
    pub(crate) user: UserId,
    pub(crate) conversation: ConversationId,
    pub(crate) seq: Seq,
}

/// Writes registers. What fails is said again with the next send, or by a receipt.
pub(crate) async fn remember(
    conversations: Arc<dyn ConversationStore>,
    now: Timestamp,
    deadline: Duration,
    batch: Vec<SeenUpTo>,
) {
    let mut furthest: BTreeMap<(UserId, ConversationId), Seq> = BTreeMap::new();
    for seen in batch {
        let register = furthest.entry((seen.user, seen.conversation)).or_default();
        *register = seen.seq.max(*register);
    }
    let keys: Vec<_> = furthest.keys().copied().collect();
    let Ok(listed) = within(deadline, conversations.get(&keys)).await else {
        return;
    };
    let reads: Vec<_> = furthest
        .into_iter()
        .zip(listed)
        .filter_map(|(((user, conversation), seq), listed)| {
            let listed = listed?;
            let seq = seq.min(listed.row.end.seq);
            (seq > listed.read_seq).then_some((user, conversation, seq))
        })
        .collect();
    if !reads.is_empty() {
        // A failure is counted with the store's; nothing else is to be done about it.
        let _ = within(deadline, conversations.set_read(reads, now)).await;
    }
}
