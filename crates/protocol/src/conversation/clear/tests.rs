use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn id(n: u64) -> MessageId {
    MessageId::new(n as i64).expect("positive")
}

fn at(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

/// One conversation and one of its users, as the writer stores them. The other side writes all
/// messages.
#[derive(Clone, Debug, Default)]
struct Writer {
    /// The record of each message; its id is the offset.
    messages: Vec<u64>,
    offset: u64,
    cleared_tally: Tally,
}

impl Writer {
    fn message(&mut self) -> NewestSeen {
        self.offset += 1;
        self.messages.push(self.offset);
        self.end().expect("just placed")
    }

    fn end(&self) -> Option<NewestSeen> {
        let seq = Seq(self.messages.len() as u64);
        self.messages.last().map(|&offset| NewestSeen {
            seq,
            id: id(offset),
        })
    }

    fn around(&self, newest_seen: NewestSeen) -> Neighbours {
        let index = newest_seen.seq.0 as usize;
        let tally = Tally {
            seq: newest_seen.seq,
            incoming: newest_seen.seq.0,
        };
        Neighbours {
            newest_seen: self
                .messages
                .get(index - 1)
                .map(|&offset| (id(offset), tally)),
            next: self.messages.get(index).map(|&offset| at(offset)),
        }
    }

    fn clear(&mut self, newest_seen: NewestSeen) -> ClearResult {
        self.offset += 1;
        self.clear_at(self.offset, newest_seen)
    }

    fn clear_at(&mut self, offset: u64, newest_seen: NewestSeen) -> ClearResult {
        let result = clear(
            at(offset),
            newest_seen,
            self.around(newest_seen),
            self.cleared_tally,
        );
        if let ClearResult::Cleared(tally) = result {
            self.cleared_tally = tally;
        }
        result
    }

    fn is_listed(&self) -> bool {
        is_listed(Seq(self.messages.len() as u64), self.cleared_tally)
    }
}

// proves S4-19, S4-21: a delete made while away is expired where the chat went on elsewhere.
#[test]
fn a_chat_that_went_on_meanwhile_stays() {
    let mut writer = Writer::default();
    let seen_on_a = writer.message();
    let seen_on_b = writer.message();
    assert_eq!(writer.clear(seen_on_a), ClearResult::Expired);
    assert!(writer.is_listed());
    assert!(matches!(writer.clear(seen_on_b), ClearResult::Cleared(_)));
}

// proves S4-22: a message that is in the log before the delete keeps the conversation.
#[test]
fn a_message_before_the_delete_is_handled_keeps_it() {
    let mut writer = Writer::default();
    let newest_seen = writer.message();
    writer.message();
    assert_eq!(writer.clear(newest_seen), ClearResult::Expired);
    assert!(writer.is_listed());
}

// proves S4-18, S4-20 in part, S4-23: it goes, and the next message brings it back.
#[test]
fn it_goes_and_comes_back_with_the_next_message() {
    let mut writer = Writer::default();
    let newest_seen = writer.message();
    assert!(matches!(writer.clear(newest_seen), ClearResult::Cleared(_)));
    assert!(!writer.is_listed());
    let cleared_tally = writer.cleared_tally;
    let second_result = writer.clear(newest_seen);
    assert_eq!(
        second_result,
        ClearResult::Cleared(cleared_tally),
        "asked again: the same"
    );
    writer.message();
    assert!(writer.is_listed());
    assert_eq!(
        writer.clear(newest_seen),
        ClearResult::Expired,
        "a late repeat"
    );
}

#[test]
fn clear_with_unknown_history_is_expired() {
    let mut writer = Writer::default();
    let newest_seen = writer.message();
    let unknown_message = NewestSeen {
        id: id(99),
        ..newest_seen
    };
    assert_eq!(writer.clear(unknown_message), ClearResult::Expired);
    let beyond_end = NewestSeen {
        seq: Seq(9),
        id: id(99),
    };
    assert_eq!(writer.clear(beyond_end), ClearResult::Expired);
}

/// A crash after the next message was placed and before the clear was written: the redelivered
/// record finds what it found the first time.
#[test]
fn a_record_that_comes_again_is_judged_as_before() {
    let mut writer = Writer::default();
    let newest_seen = writer.message();
    writer.offset += 1;
    let record = writer.offset;
    let mut expected = writer.clone();
    assert!(matches!(
        expected.clear_at(record, newest_seen),
        ClearResult::Cleared(_)
    ));
    expected.message();
    writer.message();
    assert!(matches!(
        writer.clear_at(record, newest_seen),
        ClearResult::Cleared(_)
    ));
    assert_eq!(writer.cleared_tally, expected.cleared_tally);
    assert!(writer.is_listed());
}

proptest! {
    /// Devices look at some time and ask at any later one, and records are redelivered at any time;
    /// an unseen message never goes.
    #[test]
    fn only_what_was_seen_goes(
        steps in vec((0..4_u8, 0..4_usize), 0..60),
        redelivered in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut writer = Writer::default();
        let mut newest_seen: [Option<NewestSeen>; 4] = [None; 4];
        let mut last_seen_seq = Seq::ZERO;
        let mut clears = Vec::new();
        for (step, device) in steps {
            match (step, newest_seen[device]) {
                (0, _) => _ = writer.message(),
                (1, _) => {
                    newest_seen[device] = writer.end();
                    last_seen_seq = writer.end().map_or(Seq::ZERO, |end| end.seq);
                }
                (_, Some(newest_seen)) => {
                    let (previous, end) = (writer.cleared_tally, writer.messages.len() as u64);
                    let result = writer.clear(newest_seen);
                    prop_assert_eq!(result == ClearResult::Expired, newest_seen.seq.0 < end);
                    prop_assert!(writer.cleared_tally >= previous, "it only grows");
                    clears.push((writer.offset, newest_seen));
                }
                (_, None) => {}
            }
            prop_assert!(writer.cleared_tally.seq <= last_seen_seq);
        }
        let final_tally = writer.cleared_tally;
        for index in redelivered {
            if !clears.is_empty() {
                let (record, newest_seen) = clears[index.index(clears.len())];
                writer.clear_at(record, newest_seen);
                prop_assert_eq!(writer.cleared_tally, final_tally, "coming again changes nothing");
            }
        }
    }
}

/// The negative twin: a writer that compares with the end at handling time judges a redelivered
/// record otherwise, and an acknowledged clear is lost.
#[test]
fn a_comparison_with_the_end_loses_a_clear_that_comes_again() {
    let mut writer = Writer::default();
    let newest_seen = writer.message();
    let is_at_end = |writer: &Writer| writer.end() == Some(newest_seen);
    assert!(is_at_end(&writer), "the first time it is cleared");
    writer.message();
    assert!(!is_at_end(&writer), "the second time it is expired");
}
