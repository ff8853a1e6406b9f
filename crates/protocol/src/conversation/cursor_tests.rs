//! A reader that goes page by page with a cursor must not miss a message that is placed late. Ids
//! and times come from several stations; only the conversation's own positions come from one
//! writer.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::Head;
use crate::history::Version;
use crate::{MessageId, Seq};

/// A message as stations make it: its time of acceptance, and an id of that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MadeMessage {
    at: u64,
    id: MessageId,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    seq: Seq,
    message: MadeMessage,
}

/// A conversation, in the order in which its writer gets the messages.
#[derive(Default)]
struct Conversation {
    head: Head,
    rows: Vec<Row>,
}

impl Conversation {
    fn place(&mut self, made_message: MadeMessage) {
        let version = Version {
            epoch: 1,
            offset: self.rows.len() as u64 + 1,
        };
        let seq = self.head.next_position().seq;
        self.head = self.head.moved_by(version, made_message.id, None);
        self.rows.push(Row {
            seq,
            message: made_message,
        });
    }

    /// Messages behind the cursor, and the next cursor.
    fn read<C: Ord + Copy>(
        &self,
        cursor: Option<C>,
        key: fn(&Row) -> C,
    ) -> (Vec<MessageId>, Option<C>) {
        let later_rows = self.rows.iter().filter(|row| Some(key(row)) > cursor);
        let end = self.rows.iter().map(key).max().max(cursor);
        (later_rows.map(|row| row.message.id).collect(), end)
    }
}

fn message_at(at: u64, node: u64) -> MadeMessage {
    let id = MessageId::new((at * 10 + node) as i64).expect("positive");
    MadeMessage { at, id }
}

fn by_seq(row: &Row) -> Seq {
    row.seq
}

fn by_id(row: &Row) -> MessageId {
    row.message.id
}

fn by_time(row: &Row) -> u64 {
    row.message.at
}

/// Reads after each arrival; true if every message was read exactly once.
fn reads_all<C: Ord + Copy>(arrivals: &[MadeMessage], key: fn(&Row) -> C) -> bool {
    let (mut conversation, mut cursor, mut read_ids) = (Conversation::default(), None, Vec::new());
    for &made_message in arrivals {
        conversation.place(made_message);
        let (page, next) = conversation.read(cursor, key);
        read_ids.extend(page);
        cursor = next;
    }
    let expected: BTreeSet<MessageId> = arrivals
        .iter()
        .map(|made_message| made_message.id)
        .collect();
    read_ids.len() == arrivals.len() && read_ids.into_iter().collect::<BTreeSet<_>>() == expected
}

// proves S3-45: a smaller id that is placed after a larger one was read is read all the same. The negative
// twin, a cursor of ids, passes it over.
#[test]
fn a_smaller_id_that_comes_later_is_not_passed_over() {
    let arrivals = [
        message_at(100, 1),
        message_at(105, 2),
        message_at(103, 1),
        message_at(106, 2),
    ];
    assert!(reads_all(&arrivals, by_seq));
    assert!(!reads_all(&arrivals, by_id));
}

// proves S3-47: X and Y were read, then Z arrives, of the same time. The negative twin, a cursor of times,
// passes it over.
#[test]
fn one_of_the_same_time_that_comes_later_is_not_passed_over() {
    let arrivals = [message_at(101, 1), message_at(102, 1), message_at(102, 2)];
    assert!(reads_all(&arrivals, by_seq));
    assert!(!reads_all(&arrivals, by_time));
}

proptest! {
    // proves S3-46 in part, S3-48 in part, S3-49 in part, S3 Pitfall A in part:
    // whatever clocks and nodes do, the positions of the one writer are enough, without
    // looking back: they are the one clock that a database's time would be.
    #[test]
    fn positions_pass_over_nothing(
        arrivals in vec((1..40_u64, 0..10_u64), 1..40).prop_map(|made_at| {
            let messages: BTreeSet<MadeMessage> = made_at.into_iter().map(|(at, node)| message_at(at, node)).collect();
            messages.into_iter().collect::<Vec<_>>()
        }).prop_shuffle(),
    ) {
        prop_assert!(reads_all(&arrivals, by_seq));
    }
}
