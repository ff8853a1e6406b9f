//! Contract of every message store. Each check uses users and groups of its own, so that all may
//! share one store. What holds for private conversations and groups alike is tried in both.

mod positions;
mod ranges;
mod registers;
mod rows;
mod sends;

use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, Version};
use protocol::message::{Content, Message, Placed, Position, Recipient};
use protocol::message_row::{MessageRow, Owner};
use protocol::writer::SendKey;
use protocol::{ConversationId, DeviceId, GroupId, MessageId, Options, SendId, Seq, UserId};

pub(crate) use self::positions::*;
pub(crate) use self::ranges::*;
pub(crate) use self::registers::*;
pub(crate) use self::rows::*;
pub(crate) use self::sends::*;
use super::MessageStore;
use crate::test_ids::{TestIds, content};

const MAX_ROWS: usize = 1000;

fn version(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

/// A writer, and the user or group that they write to.
#[derive(Clone, Copy)]
pub(super) struct Talk<'a> {
    fresh: &'a TestIds,
    pub(super) from: UserId,
    pub(super) to: Recipient,
}

impl<'a> Talk<'a> {
    pub(super) fn private(fresh: &'a TestIds) -> Talk<'a> {
        Talk {
            fresh,
            from: fresh.user(),
            to: Recipient::User(fresh.user()),
        }
    }

    pub(super) fn group(fresh: &'a TestIds) -> Talk<'a> {
        Talk {
            fresh,
            from: fresh.user(),
            to: Recipient::Group(fresh.group()),
        }
    }

    /// One of each kind.
    pub(super) fn each(fresh: &'a TestIds) -> [Talk<'a>; 2] {
        [Talk::private(fresh), Talk::group(fresh)]
    }

    /// The same writer in another conversation of the same kind.
    fn elsewhere(&self) -> Talk<'a> {
        let to = match self.to {
            Recipient::User(_) => Recipient::User(self.fresh.user()),
            Recipient::Group(_) => Recipient::Group(self.fresh.group()),
        };
        Talk { to, ..*self }
    }

    /// Another writer to the same user or group.
    pub(super) fn another(&self) -> Talk<'a> {
        Talk {
            from: self.fresh.user(),
            ..*self
        }
    }

    /// The receiver of a private conversation writes.
    pub(super) fn back(&self) -> Talk<'a> {
        let Recipient::User(from) = self.to else {
            panic!("a group writes nothing");
        };
        Talk {
            from,
            to: Recipient::User(self.from),
            ..*self
        }
    }

    pub(super) fn conversation(&self) -> ConversationId {
        match self.to {
            Recipient::User(to) => ConversationId::private(self.from, to).expect("two users"),
            Recipient::Group(group) => ConversationId::Group(group),
        }
    }

    /// Owner of the rows that the writer reads.
    pub(super) fn writers(&self) -> Owner {
        Owner::of(self.conversation(), self.from)
    }

    /// Owner of the rows that the receiver reads.
    pub(super) fn receivers(&self) -> Owner {
        match self.to {
            Recipient::User(to) => Owner::User(to),
            Recipient::Group(group) => Owner::Group(group),
        }
    }

    pub(super) fn receiver(&self) -> UserId {
        self.receivers().user().expect("a private conversation")
    }

    pub(super) fn group_id(&self) -> GroupId {
        match self.to {
            Recipient::Group(group) => group,
            Recipient::User(_) => panic!("no group"),
        }
    }

    pub(super) fn message(&self, id: MessageId, seq: u64) -> Placed {
        Placed {
            conversation: self.conversation(),
            position: Position {
                seq: Seq(seq),
                prev: MessageId::new(id.get() - 1).ok().filter(|_| seq > 1),
            },
            message: Message {
                id,
                from: self.from,
                to: self.to,
                accepted_at: id.timestamp(),
                device: DeviceId::new("pixel-9").expect("a name"),
                send_id: self.fresh.send_id(),
                options: Options::CHAT,
                content: content(),
            },
        }
    }

    /// All rows of a message placed by the record at `offset`, the writer's first.
    pub(super) fn rows(&self, id: MessageId, seq: u64, offset: u64) -> Vec<MessageRow> {
        MessageRow::from_placed(&self.message(id, seq), seq, version(offset))
    }

    /// The writer's row of a message.
    pub(super) fn row(&self, id: MessageId, seq: u64, offset: u64) -> MessageRow {
        self.rows(id, seq, offset).swap_remove(0)
    }

    /// Saves messages at these positions, by the records of the same number; returns their ids.
    pub(super) async fn say(
        &self,
        store: &dyn MessageStore,
        seqs: impl IntoIterator<Item = u64>,
    ) -> Vec<MessageId> {
        let (mut ids, mut rows) = (Vec::new(), Vec::new());
        for seq in seqs {
            let id = self.fresh.message();
            ids.push(id);
            rows.extend(self.rows(id, seq, seq));
        }
        store.save(rows).await.expect("saves");
        ids
    }

    /// Search for what the writer sent here, from this id on.
    fn send(&self, send_id: SendId, lower_bound: MessageId) -> SendKey {
        SendKey {
            from: self.from,
            conversation: self.conversation(),
            send_id,
            min_id: lower_bound,
        }
    }
}

fn send_id(row: &MessageRow) -> SendId {
    row.placed.message.send_id
}

fn with_send_id(mut rows: Vec<MessageRow>, send_id: SendId) -> Vec<MessageRow> {
    for row in &mut rows {
        row.placed.message.send_id = send_id;
    }
    rows
}

fn with_content(mut rows: Vec<MessageRow>, content: &Content) -> Vec<MessageRow> {
    for row in &mut rows {
        row.placed.message.content = content.clone();
    }
    rows
}

async fn find(
    store: &dyn MessageStore,
    owner: Owner,
    bounds: (Option<MessageId>, Option<MessageId>),
    order: Order,
    limit: usize,
) -> Vec<MessageId> {
    let (after_id, before_id) = bounds;
    let range = IdRange {
        after_id,
        before_id,
    };
    let rows = store.find(owner, range, order, limit).await;
    rows.expect("reads").iter().map(MessageRow::id).collect()
}

/// Positions of a page, as the writer reads it.
async fn read(
    store: &dyn MessageStore,
    talk: &Talk<'_>,
    range: HistoryRange,
    limit: usize,
) -> Vec<Seq> {
    let rows = store.page(talk.writers(), talk.conversation(), range, limit);
    let rows = rows.await.expect("reads");
    rows.iter().map(MessageRow::seq).collect()
}

fn forward(after_seq: u64) -> HistoryRange {
    HistoryRange::Forward {
        after: Seq(after_seq),
    }
}

fn backward(before_seq: Option<u64>) -> HistoryRange {
    HistoryRange::Backward {
        before: before_seq.map(Seq),
    }
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            a_private_message_is_two_rows,
            a_message_of_a_group_is_one_row,
            senders_row_is_written_first,
            many_write_at_once,
            only_a_later_version_replaces,
            both_kinds_share_a_call,
            a_row_of_another_conversation_is_refused,
            one_read_returns_all_peers,
            one_read_returns_all_senders,
            forward_bounds_are_exclusive,
            backward_bounds_are_exclusive,
            an_empty_range_is_an_empty_list,
            paging_visits_each_id_once,
            any_range_equals_the_sorted_list,
            a_conversation_is_read_by_position,
            a_page_ends_before_a_hole,
            a_zombie_takes_no_position,
            positions_name_messages,
            places_say_where_rows_stand,
            places_are_counted_by_both_sides,
            own_messages_are_counted_between_places,
            many_own_messages_are_counted,
            a_private_send_is_found_by_its_send_id,
            a_send_to_a_group_is_found_by_its_send_id,
            sends_that_differ_in_any_byte_are_told_apart,
            a_send_id_finds_its_messages,
            duplicate_keys_get_duplicate_answers,
            receipts_only_move_forward,
            a_private_message_is_deleted_for_good,
            a_message_of_a_group_is_deleted_for_good,
            a_row_written_again_keeps_its_status,
        );
    };
}
pub(crate) use checks;
