use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};

use super::*;

fn id(value: i64) -> MessageId {
    MessageId::new(value).expect("positive")
}

fn at(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

fn standing(offset: u64, seq: u64, prev: Option<i64>) -> StoredPosition {
    StoredPosition {
        version: at(offset),
        position: Position {
            seq: Seq(seq),
            prev: prev.map(id),
        },
        sent: 0,
    }
}

/// A head after records 10 and 11 placed ids 500 and 300 (a clock behind).
fn skewed() -> Head {
    Head::default()
        .moved_by(at(10), id(500), Some(Side::Low))
        .moved_by(at(11), id(300), Some(Side::High))
}

#[test]
fn the_first_message_stands_at_one_and_has_none_before() {
    let first = Position {
        seq: Seq(1),
        prev: None,
    };
    // Offset 0 of epoch 0 is a record like any other.
    assert_eq!(
        Head::default().place(Version::default(), id(7)),
        Placement::New(first)
    );
}

#[test]
fn the_next_message_follows_the_last_one_not_the_largest_id() {
    let next = Position {
        seq: Seq(3),
        prev: Some(id(300)),
    };
    assert_eq!(skewed().place(at(12), id(501)), Placement::New(next));
}

#[test]
fn a_redelivery_keeps_its_position() {
    let head = skewed();
    assert_eq!(head.place(at(10), id(500)), Placement::Redelivery);
    let row = standing(10, 1, None);
    assert_eq!(
        head.compare(at(10), Some(row)),
        PlaceRuling::Keep(row.position)
    );
}

#[test]
fn an_id_behind_the_largest_is_compared_with_its_row() {
    let head = skewed();
    assert_eq!(head.place(at(12), id(400)), Placement::CheckRow);
    // No row: a clock was behind.
    assert_eq!(
        head.compare(at(12), None),
        PlaceRuling::Place(head.next_position())
    );
    // The same record: rows written, head not.
    let half = standing(12, 3, Some(300));
    assert_eq!(
        head.compare(at(12), Some(half)),
        PlaceRuling::Place(half.position)
    );
    // An earlier record: published twice.
    let first = standing(10, 1, None);
    assert_eq!(
        head.compare(at(12), Some(first)),
        PlaceRuling::Repeat(first.position)
    );
}

#[test]
fn what_was_handled_and_left_no_row_gets_no_position_later() {
    assert_eq!(skewed().compare(at(9), None), PlaceRuling::Unplaced);
}

#[test]
fn a_row_where_the_head_cannot_have_put_it_means_another_writer() {
    let elsewhere = standing(12, 7, Some(300));
    assert_eq!(
        skewed().compare(at(12), Some(elsewhere)),
        PlaceRuling::Overtaken
    );
}

#[test]
fn a_refused_record_is_a_repeat_once_its_id_was_placed_later() {
    let head = skewed();
    let placed_later = standing(11, 2, Some(500));
    assert_eq!(
        head.compare(at(9), Some(placed_later)),
        PlaceRuling::Repeat(placed_later.position)
    );
    // The head of that row is not saved yet, or this one was read before.
    for beyond in [standing(12, 3, Some(300)), standing(11, 3, Some(300))] {
        assert_eq!(head.compare(at(9), Some(beyond)), PlaceRuling::PlacedLater);
    }
}

#[test]
fn a_new_epoch_begins_again_at_offset_zero() {
    let record = Version {
        epoch: 2,
        offset: 0,
    };
    let head = skewed();
    assert_eq!(
        head.place(record, id(600)),
        Placement::New(head.next_position())
    );
}

/// Planted bug of a writer; the search must find each one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Commits before the head is saved: after a crash the next record takes a seq twice.
    CommitBeforeHead,
    /// Gives every record the next position, redelivered or not.
    PlacesRedeliveries,
    /// Takes every id behind the largest for a clock's doing.
    PlacesRepeats,
    /// Takes the row of an id that was refused first for another writer's.
    LaterRowsOvertake,
}

/// A record's id, and the verdict of its conversation's rules on it.
#[derive(Clone, Copy, Debug)]
struct SentRecord {
    id: MessageId,
    refused: bool,
}

/// One conversation's store, as a crash leaves it.
#[derive(Default)]
struct World {
    rows: BTreeMap<MessageId, StoredPosition>,
    head: Head,
    committed: usize,
    /// Every position that receivers ever saw of each id.
    shown: BTreeMap<MessageId, Vec<Position>>,
}

/// One life of the writer. It ends after so many effects, at any point.
#[derive(Clone, Copy, Debug)]
struct Life {
    batch: usize,
    effects: usize,
    /// Batches per commit: commits lag behind the effects.
    batches_a_commit: usize,
}

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let life =
        (1..5usize, 0..24usize, 1..4usize).prop_map(|(batch, effects, batches_a_commit)| Life {
            batch,
            effects,
            batches_a_commit,
        });
    proptest::collection::vec(life, 0..8)
}

/// Records in the order of the log: clocks differ, some ids were published more than once, and some
/// were refused at one place of the log and accepted at another.
fn log() -> impl Strategy<Value = Vec<SentRecord>> {
    let sent =
        (1..40i64, proptest::bool::weighted(0.15)).prop_map(|(number, refused)| SentRecord {
            id: id(number),
            refused,
        });
    proptest::collection::vec(sent, 1..40)
}

impl World {
    /// Runs the writer from the committed offset until the log ends or the life does.
    fn live(&mut self, log: &[SentRecord], life: Life, bug: Bug) -> Result<(), String> {
        let Life {
            batch,
            mut effects,
            batches_a_commit,
        } = life;
        let mut dies = || {
            let dead = effects == 0;
            effects = effects.saturating_sub(1);
            dead
        };
        let mut head = self.head;
        let start = self.committed;
        for (n, records) in log[start..].chunks(batch).enumerate() {
            let first = start + n * batch;
            let next = first + records.len();
            for (offset, &SentRecord { id, refused }) in (first as u64..).zip(records) {
                let ruling = self.ruling(&head, at(offset), id, bug);
                // A new id's row is never read.
                let is_new = matches!(head.place(at(offset), id), Placement::New(_));
                let is_unplaced = match self.rows.get(&id) {
                    Some(_) if !is_new => ruling == PlaceRuling::PlacedLater,
                    _ => true,
                };
                if refused && is_unplaced {
                    continue;
                }
                match ruling {
                    PlaceRuling::Place(position) => {
                        if dies() {
                            return Ok(());
                        }
                        let version = at(offset);
                        self.rows.insert(
                            id,
                            StoredPosition {
                                version,
                                position,
                                sent: 0,
                            },
                        );
                        self.shown.entry(id).or_default().push(position);
                        head = moved(&head, version, id, bug);
                    }
                    PlaceRuling::Keep(position) => self.shown.entry(id).or_default().push(position),
                    PlaceRuling::Repeat(_) => {}
                    lost @ (PlaceRuling::Unplaced
                    | PlaceRuling::PlacedLater
                    | PlaceRuling::Overtaken) => {
                        return Err(format!("{lost:?}: {id} of record {offset}"));
                    }
                }
            }
            let commits = (n + 1) % batches_a_commit == 0 || next == log.len();
            if bug == Bug::CommitBeforeHead && commits {
                self.committed = next;
            }
            if dies() {
                return Ok(());
            }
            self.head = head;
            if dies() {
                return Ok(());
            }
            if commits {
                self.committed = next;
            }
        }
        Ok(())
    }

    fn ruling(&self, head: &Head, record: Version, id: MessageId, bug: Bug) -> PlaceRuling {
        match (head.place(record, id), bug) {
            (Placement::New(position), _) => PlaceRuling::Place(position),
            (Placement::Redelivery, Bug::PlacesRedeliveries)
            | (Placement::CheckRow, Bug::PlacesRepeats) => PlaceRuling::Place(head.next_position()),
            (Placement::Redelivery | Placement::CheckRow, bug) => {
                let row = self.rows.get(&id).copied();
                match row.is_some_and(|row| row.version > record) {
                    true if bug == Bug::LaterRowsOvertake => PlaceRuling::Overtaken,
                    _ => head.compare(record, row),
                }
            }
        }
    }

    /// Every id of the log has exactly one position, in the order of first appearance, and was
    /// never shown at another.
    fn check(&self, log: &[SentRecord]) -> Result<(), String> {
        let mut prev = None;
        let mut seq = Seq::ZERO;
        let welcome: Vec<MessageId> = (log.iter().filter(|sent| !sent.refused))
            .map(|sent| sent.id)
            .collect();
        for (n, id) in welcome.iter().enumerate() {
            if welcome[..n].contains(id) {
                continue;
            }
            seq = seq.next();
            let wanted = Position { seq, prev };
            prev = Some(*id);
            let row = self.rows.get(id).ok_or_else(|| format!("{id}: no row"))?;
            if row.position != wanted {
                return Err(format!("{id}: {:?} for {wanted:?}", row.position));
            }
            let shown = &self.shown[id];
            if shown.iter().any(|&position| position != wanted) {
                return Err(format!("{id}: shown at {shown:?} for {wanted:?}"));
            }
        }
        Ok(())
    }
}

fn moved(head: &Head, version: Version, id: MessageId, bug: Bug) -> Head {
    if bug == Bug::PlacesRedeliveries {
        Head {
            version: head.version.max(version),
            seq: head.seq.next(),
            last_id: Some(id),
            ..*head
        }
    } else {
        head.moved_by(version, id, None)
    }
}

/// Lives and dies as given, then lives for good.
fn history_of(log: &[SentRecord], lives: &[Life], bug: Bug) -> Result<(), String> {
    let last = Life {
        batch: 3,
        effects: usize::MAX,
        batches_a_commit: 1,
    };
    let mut world = World::default();
    for &life in lives.iter().chain([&last]) {
        world.live(log, life, bug)?;
    }
    world.check(log)
}

fn finds(bug: Bug) -> bool {
    let mut runner = TestRunner::deterministic();
    let found = runner.run(&(log(), lives()), |(log, lives)| {
        history_of(&log, &lives, bug).map_err(TestCaseError::fail)
    });
    matches!(found, Err(TestError::Fail(..)))
}

proptest! {
    /// Positions are dense, follow the log and never change, whatever crashes, clocks and repeats do.
    #[test]
    fn positions_are_a_function_of_the_log(log in log(), lives in lives()) {
        prop_assert_eq!(history_of(&log, &lives, Bug::None), Ok(()));
    }
}

/// A refused id is placed later, and the rows of that batch exist without the head: the id is new
/// to the head then, and refused again.
#[test]
fn what_is_refused_is_refused_again_where_only_the_row_is_there() {
    let log =
        [(1, false), (35, true), (2, false), (35, false)].map(|(number, refused)| SentRecord {
            id: id(number),
            refused,
        });
    for effects in 0..12 {
        for batch in 1..5 {
            let life = Life {
                batch,
                effects,
                batches_a_commit: 2,
            };
            let lives = [life, life];
            assert_eq!(history_of(&log, &lives, Bug::None), Ok(()), "{life:?}");
        }
    }
}

#[test]
fn the_same_search_finds_each_planted_bug() {
    assert!(!finds(Bug::None));
    for bug in [
        Bug::CommitBeforeHead,
        Bug::PlacesRedeliveries,
        Bug::PlacesRepeats,
        Bug::LaterRowsOvertake,
    ] {
        assert!(finds(bug), "{bug:?} was not found");
    }
}
