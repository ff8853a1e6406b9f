use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::history::Version;

fn id(n: u64) -> MessageId {
    MessageId::new(n as i64).expect("positive")
}

/// One conversation and one of its users, as the writer keeps them. The other side writes all messages.
#[derive(Clone, Debug, Default)]
struct Writer {
    head: Head,
    offset: u64,
    cleared: Tally,
}

impl Writer {
    fn message(&mut self) -> Seen {
        self.offset += 1;
        let version = Version {
            epoch: 1,
            offset: self.offset,
        };
        self.head = self.head.moved_by(version, id(self.offset));
        self.end().expect("just placed")
    }

    fn end(&self) -> Option<Seen> {
        let seq = self.head.seq;
        self.head.last_id.map(|id| Seen { seq, id })
    }

    fn clear(&mut self, seen: Seen) -> Clearing {
        let end = Tally {
            seq: self.head.seq,
            incoming: self.head.seq.0,
        };
        let clearing = self.head.clear(seen, end, self.cleared);
        if let Clearing::Cleared(cleared) = clearing {
            self.cleared = cleared;
        }
        clearing
    }

    fn is_listed(&self) -> bool {
        is_listed(self.head.seq, self.cleared)
    }
}

// proves S4-19, S4-21: a delete made while away is expired where the chat went on elsewhere.
#[test]
fn a_chat_that_went_on_meanwhile_stays() {
    let mut writer = Writer::default();
    let seen_on_a = writer.message();
    let seen_on_b = writer.message();
    assert_eq!(writer.clear(seen_on_a), Clearing::Expired);
    assert!(writer.is_listed());
    assert!(matches!(writer.clear(seen_on_b), Clearing::Cleared(_)));
}

// proves S4-22: a message that is in the log before the delete keeps the conversation.
#[test]
fn a_message_before_the_delete_is_handled_keeps_it() {
    let mut writer = Writer::default();
    let seen = writer.message();
    writer.message();
    assert_eq!(writer.clear(seen), Clearing::Expired);
    assert!(writer.is_listed());
}

// proves S4-18, S4-20, S4-23: it goes, and the next message brings it back.
#[test]
fn it_goes_and_comes_back_with_the_next_message() {
    let mut writer = Writer::default();
    let seen = writer.message();
    assert!(matches!(writer.clear(seen), Clearing::Cleared(_)));
    assert!(!writer.is_listed());
    assert_eq!(writer.clear(seen), Clearing::Nothing, "asked again");
    writer.message();
    assert!(writer.is_listed());
    assert_eq!(writer.clear(seen), Clearing::Expired, "a late repeat");
}

#[test]
fn who_has_another_history_clears_nothing() {
    let mut writer = Writer::default();
    let seen = writer.message();
    let elsewhere = Seen { id: id(99), ..seen };
    assert_eq!(writer.clear(elsewhere), Clearing::Expired);
    let ahead = Seen {
        seq: Seq(9),
        id: id(99),
    };
    assert_eq!(writer.clear(ahead), Clearing::Expired);
}

proptest! {
    /// Devices look at some time and ask at any later one; what nobody had seen never goes.
    #[test]
    fn only_what_was_seen_goes(steps in vec((any::<bool>(), 0..4_usize, any::<bool>()), 0..60)) {
        let mut writer = Writer::default();
        let mut seen: [Option<Seen>; 4] = [None; 4];
        let mut seen_by_any = Seq::ZERO;
        for (arrives, device, asks) in steps {
            if arrives {
                writer.message();
            } else if !asks {
                seen[device] = writer.end();
                seen_by_any = seen_by_any.max(writer.head.seq);
            } else if let Some(seen) = seen[device] {
                let before = writer.cleared;
                let clearing = writer.clear(seen);
                prop_assert_eq!(clearing == Clearing::Expired, seen.seq < writer.head.seq);
                prop_assert!(writer.cleared >= before, "it only grows");
            }
            prop_assert!(writer.cleared.seq <= seen_by_any);
        }
    }
}

/// The negative twin: whoever compares when the client asks, and not at its place in the log, loses a message
/// from the list.
#[test]
fn a_comparison_before_the_log_hides_an_unseen_message() {
    let mut writer = Writer::default();
    let seen = writer.message();
    let early = writer.clone().clear(seen);
    writer.message();
    let Clearing::Cleared(_) = early else {
        panic!("{early:?}");
    };
    // Applied late, without another look: all that stands now.
    writer.cleared = Tally {
        seq: writer.head.seq,
        incoming: 2,
    };
    assert!(!writer.is_listed(), "an unseen message is hidden");
}
