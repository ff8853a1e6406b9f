//! "I have read up to here", said along with a send: moves the sender's read register, after the
//! answer and never beyond the end of the conversation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backend::conversations::ConversationStore;
use backend::heads::HeadStore;
use protocol::{ConversationId, Seq, UserId};

use crate::deadline::within;
use crate::read::ListCache;

/// Read place of a sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadMarker {
    pub(crate) user: UserId,
    pub(crate) conversation: ConversationId,
    pub(crate) seq: Seq,
}

/// Writes registers. A place that fails is said again with the next send, or by a receipt.
pub(crate) async fn remember(
    conversations: Arc<dyn ConversationStore>,
    heads: Arc<dyn HeadStore>,
    cached: ListCache,
    deadline: Duration,
    batch: Vec<ReadMarker>,
) {
    let mut furthest: BTreeMap<(UserId, ConversationId), Seq> = BTreeMap::new();
    for seen in batch {
        let register = furthest.entry((seen.user, seen.conversation)).or_default();
        *register = seen.seq.max(*register);
    }
    let is_group = |of: &ConversationId| matches!(of, ConversationId::Group(_));
    let (in_groups, private): (Moves, Moves) =
        (furthest.into_iter()).partition(|((_, of), _)| is_group(of));
    let reads = tokio::join!(
        bounded_by_rows(conversations.as_ref(), deadline, private),
        bounded_by_heads(conversations.as_ref(), heads.as_ref(), deadline, in_groups),
    );
    let mut reads: Vec<_> = reads.0.into_iter().chain(reads.1).flatten().collect();
    reads.sort();
    if !reads.is_empty() {
        // A failure is counted with the store's, and nothing else can be done about it. If a cache
        // entry is not invalidated, the user's other devices learn of it once the entry expires.
        let _ = cached.set_read(reads).await;
    }
}

type Moves = Vec<((UserId, ConversationId), Seq)>;
type Reads = Vec<(UserId, ConversationId, Seq)>;

/// Moves that advance a register, cut at the end of its conversation.
async fn bounded_by_rows(
    conversations: &dyn ConversationStore,
    deadline: Duration,
    moves: Moves,
) -> Option<Reads> {
    let keys: Vec<_> = moves.iter().map(|(key, _)| *key).collect();
    let listed = within(deadline, conversations.get(&keys)).await.ok()?;
    let bounds = listed.into_iter().map(|listed| {
        let listed = listed?;
        Some((listed.row.end.seq, listed.read_seq))
    });
    Some(bounded(moves, bounds))
}

/// Same for groups, which have no rows.
async fn bounded_by_heads(
    conversations: &dyn ConversationStore,
    heads: &dyn HeadStore,
    deadline: Duration,
    moves: Moves,
) -> Option<Reads> {
    let keys: Vec<_> = moves.iter().map(|(key, _)| *key).collect();
    let of: Vec<_> = keys.iter().map(|(_, conversation)| *conversation).collect();
    let read = tokio::try_join!(
        within(deadline, heads.load(&of)),
        within(deadline, conversations.registers(&keys)),
    );
    let (heads, registers) = read.ok()?;
    let bounds = heads.into_iter().zip(registers);
    let bounds = bounds.map(|(head, registers)| Some((head?.seq, registers.read_seq)));
    Some(bounded(moves, bounds))
}

fn bounded(moves: Moves, bounds: impl Iterator<Item = Option<(Seq, Seq)>>) -> Reads {
    let moves = moves.into_iter().zip(bounds);
    moves
        .filter_map(|(((user, conversation), seq), bounds)| {
            let (end, read) = bounds?;
            let seq = seq.min(end);
            (seq > read).then_some((user, conversation, seq))
        })
        .collect()
}
