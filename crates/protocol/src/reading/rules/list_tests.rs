//! The list difference, with rows that land later than their stamps.
//!
//! The requirements distinguish two versions, that of a conversation (changed by hand) and that of
//! its newest message, and ask for the union of rows newer by either (S4-28, S4-31). A row here has
//! one, the later of both, and the query looks back by a margin. The client already has any
//! surplus.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::list_from;
use crate::Timestamp;

const START: i64 = 1_790_000_000_000;
/// More than twice the time from a row's stamp until it can be read.
const MARGIN: Duration = Duration::from_millis(100);
const LATE_MAX: i64 = 40;

#[derive(Clone, Copy, Debug)]
enum WriteKind {
    Message,
    /// A user clears the conversation.
    Clear,
}

#[derive(Clone, Debug)]
enum Step {
    /// A change of a conversation, and the delay from its stamp until it can be read.
    Write {
        conversation: u8,
        kind: WriteKind,
        late: i64,
    },
    /// A device asks for changes.
    Sync {
        device: usize,
    },
    Wait {
        millis: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![3 => Just(WriteKind::Message), 1 => Just(WriteKind::Clear)];
    prop_oneof![
        5 => (0..6_u8, kind, 0..=LATE_MAX)
            .prop_map(|(conversation, kind, late)| Step::Write { conversation, kind, late }),
        3 => (0..3_usize).prop_map(|device| Step::Sync { device }),
        3 => (1..120_i64).prop_map(|millis| Step::Wait { millis }),
    ]
}

/// Two registers that only grow, each with its last stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    seq: u64,
    cleared_seq: u64,
    message_version: i64,
    clear_version: i64,
}

impl Row {
    fn version(&self) -> i64 {
        self.message_version.max(self.clear_version)
    }

    fn contents(&self) -> (u64, u64) {
        (self.seq, self.cleared_seq)
    }
}

#[derive(Default)]
struct Server {
    now: i64,
    rows: BTreeMap<u8, Row>,
    /// Decided rows that have not landed, each with the time from which it can be read.
    pending_rows: Vec<(i64, u8, Row)>,
    decided_rows: BTreeMap<u8, Row>,
}

impl Server {
    /// The single writer decides in order, and its rows land in that order, too.
    fn write(&mut self, conversation: u8, kind: WriteKind, late: i64) {
        let row = self.decided_rows.entry(conversation).or_default();
        match kind {
            WriteKind::Message => {
                row.seq += 1;
                row.message_version = self.now;
            }
            WriteKind::Clear => {
                row.cleared_seq = row.seq;
                row.clear_version = self.now;
            }
        }
        let earlier_rows = self
            .pending_rows
            .iter()
            .filter(|(_, conversation_number, _)| *conversation_number == conversation);
        let lands = earlier_rows.map(|(at, ..)| *at).max().unwrap_or_default();
        // A row that took longer than half of the margin is written again with a new stamp.
        let lands = lands.max(self.now + late).min(self.now + LATE_MAX);
        self.pending_rows.push((lands, conversation, *row));
    }

    fn wait(&mut self, millis: i64) {
        self.now += millis;
        let now = self.now;
        self.pending_rows
            .sort_by_key(|(at, _, row)| (*at, row.seq, row.cleared_seq));
        for (_, conversation, row) in self.pending_rows.extract_if(.., |(at, ..)| *at <= now) {
            self.rows.insert(conversation, row);
        }
    }
}

#[derive(Default)]
struct Device {
    list_version: i64,
    has: BTreeMap<u8, (u64, u64)>,
}

impl Device {
    /// Returns the conversations that came.
    fn sync(&mut self, server: &Server, margin: Duration) -> BTreeSet<u8> {
        let at = |millis| Timestamp::from_millis(START + millis);
        let list_version = match self.list_version {
            0 => Timestamp::ZERO,
            list_version => at(list_version),
        };
        let from = list_from(list_version, margin, at(server.now)).expect("not ahead");
        let new_rows: Vec<(u8, Row)> = (server.rows.iter())
            .filter(|(_, row)| at(row.version()) >= from)
            .map(|(conversation, row)| (*conversation, *row))
            .collect();
        self.has.extend(
            new_rows
                .iter()
                .map(|(number, row)| (*number, row.contents())),
        );
        self.list_version = server.now;
        new_rows
            .into_iter()
            .map(|(conversation, _)| conversation)
            .collect()
    }
}

fn run(steps: &[Step], margin: Duration) -> (Server, Vec<Device>) {
    let mut server = Server {
        now: 1,
        ..Server::default()
    };
    let mut devices: Vec<Device> = (0..3).map(|_| Device::default()).collect();
    for step in steps {
        match *step {
            Step::Write {
                conversation,
                kind,
                late,
            } => server.write(conversation, kind, late),
            Step::Sync { device } => _ = devices[device].sync(&server, margin),
            Step::Wait { millis } => server.wait(millis),
        }
    }
    server.wait(1000);
    for device in &mut devices {
        device.sync(&server, margin);
    }
    (server, devices)
}

proptest! {
    // proves S4-02 in part, S4-08, S4-28 in part, S4-31 in part:
    // whoever asks with the version of an earlier list has what the server
    // has, however late rows were written.
    #[test]
    fn every_device_ends_with_what_the_server_has(steps in vec(step(), 0..80)) {
        let (server, devices) = run(&steps, MARGIN);
        let expected: BTreeMap<u8, (u64, u64)> = (server.rows.iter())
            .map(|(conversation, row)| (*conversation, row.contents()))
            .collect();
        for device in devices {
            prop_assert_eq!(&device.has, &expected);
        }
    }

    // proves S4-25 in part to S4-28, S4 Pitfall A: the union of what is newer by either version is among what comes, and what comes
    // beside it is not older than the margin.
    #[test]
    fn the_union_of_both_versions_comes(steps in vec(step(), 0..60)) {
        let (server, mut devices) = run(&steps, MARGIN);
        let mut server = server;
        let list_version = devices[0].list_version;
        server.write(1, WriteKind::Message, 0);
        server.write(2, WriteKind::Clear, 0);
        server.wait(1000);
        let newer = |version: fn(&Row) -> i64, than: i64| -> BTreeSet<u8> {
            let rows = server.rows.iter().filter(|(_, row)| version(row) >= than);
            rows.map(|(conversation, _)| *conversation).collect()
        };
        let by_hand = newer(|row| row.clear_version, list_version);
        let by_message = newer(|row| row.message_version, list_version);
        let union: BTreeSet<u8> = by_hand.union(&by_message).copied().collect();
        let listed_now = devices[0].sync(&server, MARGIN);
        prop_assert!(listed_now.is_superset(&union));
        let looked_back = newer(Row::version, list_version - MARGIN.as_millis() as i64);
        prop_assert_eq!(listed_now, looked_back);
    }

    // proves S4-07 in part
    #[test]
    fn where_nothing_changed_nothing_comes(steps in vec(step(), 0..40)) {
        let (server, mut devices) = run(&steps, MARGIN);
        let mut server = server;
        server.wait(1000);
        devices[0].sync(&server, MARGIN);
        prop_assert!(devices[0].sync(&server, MARGIN).is_empty());
    }
}

/// The negative twin: without the margin, a row that lands late is missed for good.
#[test]
fn without_a_margin_a_late_row_is_lost() {
    let steps = [
        Step::Write {
            conversation: 1,
            kind: WriteKind::Message,
            late: 40,
        },
        Step::Wait { millis: 10 },
        Step::Sync { device: 0 },
        Step::Wait { millis: 100 },
    ];
    let (_, devices) = run(&steps, Duration::ZERO);
    assert!(devices[0].has.is_empty(), "it never comes");
    let (_, devices) = run(&steps, MARGIN);
    assert_eq!(devices[0].has, BTreeMap::from([(1, (1, 0))]));
}
