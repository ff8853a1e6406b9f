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
    cleared: Tally,
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

    fn around(&self, seen: NewestSeen) -> Neighbours {
        let index = seen.seq.0 as usize;
        let tally = Tally {
            seq: seen.seq,
            incoming: seen.seq.0,
        };
        Neighbours {
            seen: self
                .messages
                .get(index - 1)
                .map(|&offset| (id(offset), tally)),
            next: self.messages.get(index).map(|&offset| at(offset)),
        }
    }

    fn clear(&mut self, seen: NewestSeen) -> ClearResult {
        self.offset += 1;
        self.clear_at(self.offset, seen)
    }

    fn clear_at(&mut self, offset: u64, seen: NewestSeen) -> ClearResult {
        let clearing = clear(at(offset), seen, self.around(seen), self.cleared);
        if let ClearResult::Cleared(cleared) = clearing {
            self.cleared = cleared;
        }
        clearing
    }

    fn is_listed(&self) -> bool {
        is_listed(Seq(self.messages.len() as u64), self.cleared)
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
    let seen = writer.message();
    writer.message();
    assert_eq!(writer.clear(seen), ClearResult::Expired);
    assert!(writer.is_listed());
}

// proves S4-18, S4-20 in part, S4-23: it goes, and the next message brings it back.
#[test]
fn it_goes_and_comes_back_with_the_next_message() {
    let mut writer = Writer::default();
    let seen = writer.message();
    assert!(matches!(writer.clear(seen), ClearResult::Cleared(_)));
    assert!(!writer.is_listed());
    let up_to = writer.cleared;
    let again = writer.clear(seen);
    assert_eq!(again, ClearResult::Cleared(up_to), "asked again: the same");
    writer.message();
    assert!(writer.is_listed());
    assert_eq!(writer.clear(seen), ClearResult::Expired, "a late repeat");
}

#[test]
fn who_has_another_history_clears_nothing() {
    let mut writer = Writer::default();
    let seen = writer.message();
    let elsewhere = NewestSeen { id: id(99), ..seen };
    assert_eq!(writer.clear(elsewhere), ClearResult::Expired);
    let ahead = NewestSeen {
        seq: Seq(9),
        id: id(99),
    };
    assert_eq!(writer.clear(ahead), ClearResult::Expired);
}

/// A crash after the next message was placed and before the clear was written: the redelivered
/// record finds what it found the first time.
#[test]
fn a_record_that_comes_again_is_judged_as_before() {
    let mut writer = Writer::default();
    let seen = writer.message();
    writer.offset += 1;
    let record = writer.offset;
    let mut undisturbed = writer.clone();
    assert!(matches!(
        undisturbed.clear_at(record, seen),
        ClearResult::Cleared(_)
    ));
    undisturbed.message();
    writer.message();
    assert!(matches!(
        writer.clear_at(record, seen),
        ClearResult::Cleared(_)
    ));
    assert_eq!(writer.cleared, undisturbed.cleared);
    assert!(writer.is_listed());
}

proptest! {
    /// Devices look at some time and ask at any later one, and records are redelivered at any time;
    /// an unseen message never goes.
    #[test]
    fn only_what_was_seen_goes(
        steps in vec((0..4_u8, 0..4_usize), 0..60),
        again in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut writer = Writer::default();
        let mut seen: [Option<NewestSeen>; 4] = [None; 4];
        let mut seen_by_any = Seq::ZERO;
        let mut asked = Vec::new();
        for (step, device) in steps {
            match (step, seen[device]) {
                (0, _) => _ = writer.message(),
                (1, _) => {
                    seen[device] = writer.end();
                    seen_by_any = writer.end().map_or(Seq::ZERO, |end| end.seq);
                }
                (_, Some(seen)) => {
                    let (before, end) = (writer.cleared, writer.messages.len() as u64);
                    let clearing = writer.clear(seen);
                    prop_assert_eq!(clearing == ClearResult::Expired, seen.seq.0 < end);
                    prop_assert!(writer.cleared >= before, "it only grows");
                    asked.push((writer.offset, seen));
                }
                (_, None) => {}
            }
            prop_assert!(writer.cleared.seq <= seen_by_any);
        }
        let cleared = writer.cleared;
        for index in again {
            if !asked.is_empty() {
                let (record, seen) = asked[index.index(asked.len())];
                writer.clear_at(record, seen);
                prop_assert_eq!(writer.cleared, cleared, "coming again changes nothing");
            }
        }
    }
}

/// The negative twin: a writer that compares with the end at handling time judges a redelivered
/// record otherwise, and an acknowledged clear is lost.
#[test]
fn a_comparison_with_the_end_loses_a_clear_that_comes_again() {
    let mut writer = Writer::default();
    let seen = writer.message();
    let by_the_end = |writer: &Writer| writer.end() == Some(seen);
    assert!(by_the_end(&writer), "the first time it is cleared");
    writer.message();
    assert!(!by_the_end(&writer), "the second time it is expired");
}
