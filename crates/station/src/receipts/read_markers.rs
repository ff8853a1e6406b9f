//! "I have read up to here", said along with a send: moves the sender's read register, after the
//! answer and never beyond the end of the conversation.

use std::collections::BTreeMap;
use std::time::Duration;

use backend::Backends;
use backend::conversations::ConversationStore;
use protocol::{ConversationId, Seq, UserId};

use crate::read::ListCache;
use crate::stores::within;

/// Read place of a sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadMarker {
    pub(crate) user: UserId,
    pub(crate) conversation: ConversationId,
    pub(crate) seq: Seq,
}

/// Writes registers. A place that fails is said again with the next send, or by a receipt.
pub(crate) async fn write_read_markers(
    backends: Backends,
    list_cache: ListCache,
    deadline: Duration,
    batch: Vec<ReadMarker>,
) {
    let mut furthest: BTreeMap<(UserId, ConversationId), Seq> = BTreeMap::new();
    for marker in batch {
        let register = furthest
            .entry((marker.user, marker.conversation))
            .or_default();
        *register = marker.seq.max(*register);
    }
    let is_group = |conversation: &ConversationId| matches!(conversation, ConversationId::Group(_));
    let (group_moves, private_moves): (Moves, Moves) =
        (furthest.into_iter()).partition(|((_, conversation), _)| is_group(conversation));
    let reads = tokio::join!(
        bounded_by_rows(&*backends.conversations, deadline, private_moves),
        bounded_by_heads(&backends, deadline, group_moves),
    );
    let mut reads: Vec<_> = reads.0.into_iter().chain(reads.1).flatten().collect();
    reads.sort();
    if !reads.is_empty() {
        // A failure is counted with the store's, and nothing else can be done about it. If a cache
        // entry is not invalidated, the user's other devices learn of it once the entry expires.
        let _ = list_cache.set_read(reads).await;
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
    let entries = within(deadline, conversations.get(&keys)).await.ok()?;
    let bounds = entries.into_iter().map(|entry| {
        let entry = entry?;
        Some((entry.row.end.seq, entry.read_seq))
    });
    Some(bounded(moves, bounds))
}

/// Same for groups, which have no rows.
async fn bounded_by_heads(backends: &Backends, deadline: Duration, moves: Moves) -> Option<Reads> {
    let keys: Vec<_> = moves.iter().map(|(key, _)| *key).collect();
    let targets: Vec<_> = keys.iter().map(|(_, conversation)| *conversation).collect();
    let results = tokio::try_join!(
        within(deadline, backends.heads.load(&targets)),
        within(deadline, backends.conversations.registers(&keys)),
    );
    let (heads, registers) = results.ok()?;
    let bounds = heads.into_iter().zip(registers);
    let bounds = bounds.map(|(head, registers)| Some((head?.seq, registers.read_seq)));
    Some(bounded(moves, bounds))
}

fn bounded(moves: Moves, bounds: impl Iterator<Item = Option<(Seq, Seq)>>) -> Reads {
    let moves = moves.into_iter().zip(bounds);
    moves
        .filter_map(|(((user, conversation), seq), bounds)| {
            let (end, read_seq) = bounds?;
            let seq = seq.min(end);
            (seq > read_seq).then_some((user, conversation, seq))
        })
        .collect()
}
