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

fn stored_position(offset: u64, seq: u64, prev: Option<i64>) -> StoredPosition {
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
    let row = stored_position(10, 1, None);
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
    let own_row = stored_position(12, 3, Some(300));
    assert_eq!(
        head.compare(at(12), Some(own_row)),
        PlaceRuling::Place(own_row.position)
    );
    // An earlier record: published twice.
    let first = stored_position(10, 1, None);
    assert_eq!(
        head.compare(at(12), Some(first)),
        PlaceRuling::Repeat(first.position)
    );
}

#[test]
fn handled_record_without_row_gets_no_position_later() {
    assert_eq!(skewed().compare(at(9), None), PlaceRuling::Unplaced);
}

#[test]
fn a_row_where_the_head_cannot_have_put_it_means_another_writer() {
    let misplaced = stored_position(12, 7, Some(300));
    assert_eq!(
        skewed().compare(at(12), Some(misplaced)),
        PlaceRuling::Overtaken
    );
}

#[test]
fn a_refused_record_is_a_repeat_once_its_id_was_placed_later() {
    let head = skewed();
    let later_row = stored_position(11, 2, Some(500));
    assert_eq!(
        head.compare(at(9), Some(later_row)),
        PlaceRuling::Repeat(later_row.position)
    );
    // The head of that row is not saved yet, or this one was read before.
    for beyond_head in [
        stored_position(12, 3, Some(300)),
        stored_position(11, 3, Some(300)),
    ] {
        assert_eq!(
            head.compare(at(9), Some(beyond_head)),
            PlaceRuling::PlacedLater
        );
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
    is_refused: bool,
}

/// One conversation's store, as a crash leaves it.
#[derive(Default)]
struct World {
    rows: BTreeMap<MessageId, StoredPosition>,
    head: Head,
    committed_offset: usize,
    /// Every position that receivers ever saw of each id.
    shown_positions: BTreeMap<MessageId, Vec<Position>>,
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
    let record =
        (1..40i64, proptest::bool::weighted(0.15)).prop_map(|(number, is_refused)| SentRecord {
            id: id(number),
            is_refused,
        });
    proptest::collection::vec(record, 1..40)
}

impl World {
    /// Runs the writer from the committed offset until the log ends or the life does.
    fn live(&mut self, log: &[SentRecord], life: Life, bug: Bug) -> Result<(), String> {
        let Life {
            batch,
            mut effects,
            batches_a_commit,
        } = life;
        let mut is_dead = || {
            let has_ended = effects == 0;
            effects = effects.saturating_sub(1);
            has_ended
        };
        let mut head = self.head;
        let start = self.committed_offset;
        for (n, records) in log[start..].chunks(batch).enumerate() {
            let first = start + n * batch;
            let next = first + records.len();
            for (offset, &SentRecord { id, is_refused }) in (first as u64..).zip(records) {
                let ruling = self.ruling(&head, at(offset), id, bug);
                // A new id's row is never read.
                let is_new = matches!(head.place(at(offset), id), Placement::New(_));
                let is_unplaced = match self.rows.get(&id) {
                    Some(_) if !is_new => ruling == PlaceRuling::PlacedLater,
                    _ => true,
                };
                if is_refused && is_unplaced {
                    continue;
                }
                match ruling {
                    PlaceRuling::Place(position) => {
                        if is_dead() {
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
                        self.shown_positions.entry(id).or_default().push(position);
                        head = moved(&head, version, id, bug);
                    }
                    PlaceRuling::Keep(position) => {
                        self.shown_positions.entry(id).or_default().push(position)
                    }
                    PlaceRuling::Repeat(_) => {}
                    unexpected @ (PlaceRuling::Unplaced
                    | PlaceRuling::PlacedLater
                    | PlaceRuling::Overtaken) => {
                        return Err(format!("{unexpected:?}: {id} of record {offset}"));
                    }
                }
            }
            let is_commit = (n + 1) % batches_a_commit == 0 || next == log.len();
            if bug == Bug::CommitBeforeHead && is_commit {
                self.committed_offset = next;
            }
            if is_dead() {
                return Ok(());
            }
            self.head = head;
            if is_dead() {
                return Ok(());
            }
            if is_commit {
                self.committed_offset = next;
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
                let is_later = row.is_some_and(|row| row.version > record);
                if is_later && bug == Bug::LaterRowsOvertake {
                    PlaceRuling::Overtaken
                } else {
                    head.compare(record, row)
                }
            }
        }
    }

    /// Every id of the log has exactly one position, in the order of first appearance, and was
    /// never shown at another.
    fn check(&self, log: &[SentRecord]) -> Result<(), String> {
        let mut prev = None;
        let mut seq = Seq::ZERO;
        let accepted_ids: Vec<MessageId> = (log.iter().filter(|record| !record.is_refused))
            .map(|record| record.id)
            .collect();
        for (n, id) in accepted_ids.iter().enumerate() {
            if accepted_ids[..n].contains(id) {
                continue;
            }
            seq = seq.next();
            let expected = Position { seq, prev };
            prev = Some(*id);
            let row = self.rows.get(id).ok_or_else(|| format!("{id}: no row"))?;
            if row.position != expected {
                return Err(format!("{id}: {:?} for {expected:?}", row.position));
            }
            let positions = &self.shown_positions[id];
            if positions.iter().any(|&position| position != expected) {
                return Err(format!("{id}: shown at {positions:?} for {expected:?}"));
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
fn check_history(log: &[SentRecord], lives: &[Life], bug: Bug) -> Result<(), String> {
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
    let result = runner.run(&(log(), lives()), |(log, lives)| {
        check_history(&log, &lives, bug).map_err(TestCaseError::fail)
    });
    matches!(result, Err(TestError::Fail(..)))
}

proptest! {
    /// Positions are dense, follow the log and never change, whatever crashes, clocks and repeats do.
    #[test]
    fn positions_are_a_function_of_the_log(log in log(), lives in lives()) {
        prop_assert_eq!(check_history(&log, &lives, Bug::None), Ok(()));
    }
}

/// A refused id is placed later, and the rows of that batch exist without the head: the id is new
/// to the head then, and refused again.
#[test]
fn refused_record_is_refused_again_if_only_its_row_exists() {
    let log =
        [(1, false), (35, true), (2, false), (35, false)].map(|(number, is_refused)| SentRecord {
            id: id(number),
            is_refused,
        });
    for effects in 0..12 {
        for batch in 1..5 {
            let life = Life {
                batch,
                effects,
                batches_a_commit: 2,
            };
            let lives = [life, life];
            assert_eq!(check_history(&log, &lives, Bug::None), Ok(()), "{life:?}");
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
