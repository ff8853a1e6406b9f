use crate::history::contract;
use crate::scylla::fixture::on_cql;

use super::*;

on_cql!("history", ScyllaHistory::new:
    a_private_message_is_two_rows,
    one_read_returns_all_peers,
    forward_bounds_are_exclusive,
    backward_bounds_are_exclusive,
    an_empty_range_is_an_empty_list,
    paging_visits_each_id_once,
    any_range_equals_the_sorted_list,
    a_conversation_is_read_by_position,
    a_page_ends_before_a_hole,
    only_a_later_version_replaces,
    a_send_is_found_by_its_send_id,
    a_send_id_finds_its_messages,
    sends_that_differ_in_any_byte_are_told_apart,
    places_say_where_rows_stand,
    receipts_only_move_forward,
    deleted_is_for_good,
    a_row_written_again_keeps_its_status,
);

mod borders;
mod failures;
mod registers;

use std::sync::Arc;
use std::time::Duration;

use protocol::history::Version;
use protocol::message::{Content, Message, Placed, Position, Recipient};
use protocol::{DeviceId, Options, Seq};

use crate::fresh::{Fresh, at};

/// Two users, and what the first says to the second.
struct Talk {
    a: UserId,
    b: UserId,
}

impl Talk {
    fn new(fresh: &Fresh) -> Talk {
        Talk {
            a: fresh.user(),
            b: fresh.user(),
        }
    }

    fn conversation(&self) -> ConversationId {
        ConversationId::private(self.a, self.b).expect("two users")
    }

    /// What the record at `offset` makes of a message.
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
        let pair = PrivateRow::pair_of(&placed, version);
        pair.expect("private").to_vec()
    }

    /// Saves a message said in this millisecond, at the position and offset of the same number.
    async fn say(&self, store: &ScyllaHistory, millis: u64, seq: u64) -> MessageId {
        let id = MessageId::floor_of(at(millis));
        let rows = self.rows(id, seq, seq, "hello");
        store.save_private(rows).await.expect("saves");
        id
    }
}
