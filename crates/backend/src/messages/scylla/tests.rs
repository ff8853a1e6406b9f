use std::sync::Arc;
use std::time::Duration;

use protocol::message::Content;

use super::*;
use crate::messages::contract::{self, Talk};
use crate::scylla::fixture::on_cql;
use crate::test_ids::{TestIds, at};

contract::checks!(on_cql!("messages", ScyllaMessages::new));

mod borders;
mod columns;
mod failures;
mod registers;

/// Rows of a message placed by the record at `offset`, with this text.
fn rows(talk: &Talk<'_>, id: MessageId, (seq, offset): (u64, u64), text: &str) -> Vec<MessageRow> {
    let mut rows = talk.rows(id, seq, offset);
    for row in &mut rows {
        row.placed.message.content = Content::text(text);
    }
    rows
}

/// Saves a message sent in this millisecond, at the position and offset of the same number.
async fn say_at(store: &ScyllaMessages, talk: &Talk<'_>, millis: u64, seq: u64) -> MessageId {
    let id = MessageId::floor_of(at(millis));
    let message_rows = rows(talk, id, (seq, seq), "hello");
    store.save(message_rows).await.expect("saves");
    id
}

/// Rows of the conversation, as the receiver reads it.
async fn page(
    store: &ScyllaMessages,
    talk: &Talk<'_>,
    range: HistoryRange,
    limit: usize,
) -> Result<Vec<MessageRow>> {
    let (owner, conversation) = (talk.receivers(), talk.conversation());
    store.page(owner, conversation, range, limit).await
}

fn forward(after_seq: u64) -> HistoryRange {
    HistoryRange::Forward {
        after: Seq(after_seq),
    }
}
