use crate::history::contract;
use crate::scylla::fixture::on_cql;

use super::*;

contract::checks!(on_cql!("history", ScyllaHistory::new));

mod borders;
mod columns;
mod failures;
mod registers;

use std::sync::Arc;
use std::time::Duration;

use protocol::history::Version;
use protocol::message::{Content, Message, Placed, Position, Recipient};
use protocol::{DeviceId, Options, Seq};

use crate::test_ids::{TestIds, at};

/// Two users; the first writes to the second.
struct Talk {
    a: UserId,
    b: UserId,
}

impl Talk {
    fn new(fresh: &TestIds) -> Talk {
        Talk {
            a: fresh.user(),
            b: fresh.user(),
        }
    }

    fn conversation(&self) -> ConversationId {
        ConversationId::private(self.a, self.b).expect("two users")
    }

    /// Rows of a message placed by the record at `offset`.
    fn rows(&self, id: MessageId, seq: u64, offset: u64, text: &str) -> Vec<PrivateRow> {
        let placed = Placed {
            conversation: self.conversation(),
            position: Position {
                seq: Seq(seq),
                prev: None,
            },
            message: Message {
                id,
                from: self.a,
                to: Recipient::User(self.b),
                accepted_at: id.timestamp(),
                device: DeviceId::new("d").expect("a name"),
                send_id: SendId::from_bytes(u128::from(id.get() as u64).to_be_bytes()),
                options: Options::CHAT,
                content: Content::text(text),
            },
        };
        let version = Version { epoch: 1, offset };
        let pair = PrivateRow::pair_of(&placed, placed.position.seq.0, version);
        pair.expect("private").to_vec()
    }

    /// Saves a message sent in this millisecond, at the position and offset of the same number.
    async fn say(&self, store: &ScyllaHistory, millis: u64, seq: u64) -> MessageId {
        let id = MessageId::floor_of(at(millis));
        let rows = self.rows(id, seq, seq, "hello");
        store.save_private(rows).await.expect("saves");
        id
    }
}
