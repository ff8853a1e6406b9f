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
    made: MadeMessage,
}

/// A conversation, in the order in which its writer gets the messages.
#[derive(Default)]
struct Conversation {
    head: Head,
    rows: Vec<Row>,
}

impl Conversation {
    fn place(&mut self, made: MadeMessage) {
        let version = Version {
            epoch: 1,
            offset: self.rows.len() as u64 + 1,
        };
        let seq = self.head.next_position().seq;
        self.head = self.head.moved_by(version, made.id, None);
        self.rows.push(Row { seq, made });
    }

    /// Messages behind the cursor, and the next cursor.
    fn read<C: Ord + Copy>(
        &self,
        cursor: Option<C>,
        of: fn(&Row) -> C,
    ) -> (Vec<MessageId>, Option<C>) {
        let behind = self.rows.iter().filter(|row| Some(of(row)) > cursor);
        let end = self.rows.iter().map(of).max().max(cursor);
        (behind.map(|row| row.made.id).collect(), end)
    }
}

fn made(at: u64, node: u64) -> MadeMessage {
    let id = MessageId::new((at * 10 + node) as i64).expect("positive");
    MadeMessage { at, id }
}

fn by_seq(row: &Row) -> Seq {
    row.seq
}

fn by_id(row: &Row) -> MessageId {
    row.made.id
}

fn by_time(row: &Row) -> u64 {
    row.made.at
}

/// Reads after each arrival; true if every message was read exactly once.
fn reads_all<C: Ord + Copy>(arrivals: &[MadeMessage], of: fn(&Row) -> C) -> bool {
    let (mut conversation, mut cursor, mut read) = (Conversation::default(), None, Vec::new());
    for &made in arrivals {
        conversation.place(made);
        let (page, next) = conversation.read(cursor, of);
        read.extend(page);
        cursor = next;
    }
    let expected: BTreeSet<MessageId> = arrivals.iter().map(|made| made.id).collect();
    read.len() == arrivals.len() && read.into_iter().collect::<BTreeSet<_>>() == expected
}

// proves S3-45: a smaller id that is placed after a larger one was read is read all the same. The negative
// twin, a cursor of ids, passes it over.
#[test]
fn a_smaller_id_that_comes_later_is_not_passed_over() {
    let arrivals = [made(100, 1), made(105, 2), made(103, 1), made(106, 2)];
    assert!(reads_all(&arrivals, by_seq));
    assert!(!reads_all(&arrivals, by_id));
}

// proves S3-47: X and Y were read, then Z arrives, of the same time. The negative twin, a cursor of times,
// passes it over.
#[test]
fn one_of_the_same_time_that_comes_later_is_not_passed_over() {
    let arrivals = [made(101, 1), made(102, 1), made(102, 2)];
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
            let all: BTreeSet<MadeMessage> = made_at.into_iter().map(|(at, node)| made(at, node)).collect();
            all.into_iter().collect::<Vec<_>>()
        }).prop_shuffle(),
    ) {
        prop_assert!(reads_all(&arrivals, by_seq));
    }
}
