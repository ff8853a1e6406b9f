//! Journals that lost something, and what only looks like it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use super::damage::{check, cut_torn_write};
use super::journal::Journal;
use super::mark::DurableMark;
use super::records::Extent;
use super::tests::copy_of;
use super::{Engine, EngineOptions, JournalDamage, ScanOrder, Table, WriteBatch};
use crate::{Error, Kind};

/// What is done to a directory or a journal, with its name.
type Harm<'a, T> = (&'a str, &'a dyn Fn(&T));
type Model = BTreeMap<Bytes, Bytes>;

fn open(dir: &Path) -> Result<Engine, Error> {
    Engine::open(dir, EngineOptions::default())
}

fn contents(engine: &Engine) -> Model {
    let pairs = engine.range(Table::Log, .., ScanOrder::Forward, usize::MAX);
    pairs.unwrap().into_iter().collect()
}

fn batch(key: u32, bytes: usize) -> WriteBatch {
    // Noise, which compression leaves alone; and one value in five that it does not.
    let mut state = u64::from(key) + 1;
    let noise = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        if key % 5 == 4 { 7 } else { (state >> 56) as u8 }
    };
    let mut batch = WriteBatch::new();
    batch.put(
        Table::Log,
        key.to_be_bytes().to_vec(),
        (0..bytes).map(noise).collect::<Vec<u8>>(),
    );
    batch.put(Table::Offsets, "next", key.to_be_bytes().to_vec());
    batch
}

async fn commit(engine: &Engine, key: u32, bytes: usize) {
    let committed = engine.commit(batch(key, bytes), None).unwrap();
    committed.await.unwrap();
}

/// Commits of [`store`].
const COMMITS: u32 = 12;

/// A store of some commits, as `kill -9` leaves it, and what it had after each of them.
async fn store() -> (TempDir, Vec<Model>) {
    let dir = TempDir::new().unwrap();
    let engine = open(dir.path()).unwrap();
    let mut history = vec![Model::new()];
    for key in 0..COMMITS {
        commit(&engine, key, 300 + 1500 * (key as usize % 5)).await;
        history.push(contents(&engine));
    }
    let killed = copy_of(dir.path());
    // Fewer of the zeros behind, which take their time.
    let end = extent(killed.path(), 0).bytes;
    journal(killed.path(), 0).set_len(end + 10_000).unwrap();
    (killed, history)
}

fn journal(dir: &Path, number: u64) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true);
    options.open(dir.join(format!("{number}.jnl"))).unwrap()
}

fn extent(dir: &Path, number: u64) -> Extent {
    Extent::default().extend(&journal(dir, number)).unwrap()
}

fn flip(dir: &Path, at: u64) {
    let file = journal(dir, 0);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

#[tokio::test]
async fn a_journal_that_lost_something_is_refused_and_cut_to_what_is_left() {
    let (killed, history) = store().await;
    let Extent {
        bytes: end,
        records,
        ..
    } = extent(killed.path(), 0);
    // Our reader knows all that the store writes: the format, and the commits.
    assert_eq!(records, u64::from(COMMITS) + 1);
    let harms: [Harm<'_, Path>; 6] = [
        ("a page in the middle", &|dir| {
            journal(dir, 0)
                .write_all_at(&[0; 4096], end / 2 / 4096 * 4096)
                .unwrap();
        }),
        ("the first page", &|dir| {
            journal(dir, 0).write_all_at(&[0; 4096], 0).unwrap()
        }),
        ("a byte near the end", &|dir| flip(dir, end - 2)),
        ("its end", &|dir| journal(dir, 0).set_len(end - 1).unwrap()),
        ("all of its bytes", &|dir| {
            journal(dir, 0).set_len(0).unwrap()
        }),
        ("itself", &|dir| {
            std::fs::remove_file(dir.join("0.jnl")).unwrap()
        }),
    ];
    for (name, harm) in harms {
        let dir = copy_of(killed.path());
        harm(dir.path());
        let error = match open(dir.path()) {
            Ok(engine) => panic!(
                "{name}: opened with {} of {COMMITS}",
                contents(&engine).len()
            ),
            Err(error) => error,
        };
        assert_eq!(error.kind, Kind::Corrupt, "{name}");
        let text = error.source.to_string();
        for part in [
            "0.jnl is ",
            "packetboat repair --data ",
            "Nothing was changed",
        ] {
            assert!(text.contains(part), "{name}: {text}");
        }
        let found = Engine::examine(dir.path()).unwrap().expect(name);
        assert!(found.aside.is_empty());
        let lost = records - found.readable;
        assert!(lost > 0 && found.bytes > 0, "{name}: {found:?}");
        assert!(found.unreachable < lost, "{name}: {found:?}");
        assert!(open(dir.path()).is_err(), "{name}: looking changes nothing");

        let repaired = Engine::repair(dir.path()).unwrap().expect(name);
        let aside = repaired.aside.clone();
        assert_eq!(
            JournalDamage {
                aside: vec![],
                ..repaired
            },
            found
        );
        let is_copied = aside == [dir.path().join("0.jnl.damaged")] && aside[0].exists();
        assert_eq!(is_copied, name != "itself", "{aside:?}");
        assert_eq!(Engine::repair(dir.path()).unwrap(), None, "{name}");
        let engine = open(dir.path()).unwrap();
        let kept = found.readable.saturating_sub(1);
        assert_eq!(contents(&engine), history[kept as usize], "{name}");
        commit(&engine, 77, 10).await;
        drop(engine);
        assert_eq!(contents(&open(dir.path()).unwrap()).len() as u64, kept + 1);
    }
}

#[tokio::test]
async fn damage_at_any_place_is_refused_or_harmless() {
    let (killed, history) = store().await;
    let all = history.last().unwrap();
    let end = extent(killed.path(), 0).bytes;
    let (dir, mut harmless) = (copy_of(killed.path()), 0);
    // A prime, so that every field of a record has its turn; and every byte of the last records.
    for at in (0..end).step_by(97).chain(end - 150..end) {
        flip(dir.path(), at);
        if check(dir.path()).is_ok() {
            let flipped = copy_of(dir.path());
            assert!(contents(&open(flipped.path()).unwrap()) == *all, "{at}");
            harmless += 1;
        }
        flip(dir.path(), at);
    }
    assert!(
        harmless < 9,
        "the number of the last record, and no more: {harmless}"
    );
    for page in 0..=(end - 1) / 4096 {
        let file = journal(dir.path(), 0);
        let mut bytes = vec![0; 4096.min(end - page * 4096) as usize];
        file.read_exact_at(&mut bytes, page * 4096).unwrap();
        file.write_all_at(&vec![0; bytes.len()], page * 4096)
            .unwrap();
        assert_eq!(check(dir.path()).unwrap_err().kind, Kind::Corrupt, "{page}");
        file.write_all_at(&bytes, page * 4096).unwrap();
    }
    assert!(check(dir.path()).is_ok());
}

#[tokio::test]
async fn a_torn_last_write_that_nobody_was_told_of_opens() {
    let dir = TempDir::new().unwrap();
    let engine = open(dir.path()).unwrap();
    for key in 0..5 {
        commit(&engine, key, 500).await;
    }
    let known = extent(dir.path(), 0).bytes;
    let before = contents(&engine);
    engine.write(batch(5, 20_000)).unwrap();
    let killed = copy_of(dir.path());
    let end = extent(killed.path(), 0).bytes;
    assert!(end - known > 16 << 10, "several pages");
    let mark = DurableMark::read(killed.path()).unwrap().unwrap();
    assert_eq!(mark.newest(), Some((0, known)));
    let tears: [Harm<'_, File>; 5] = [
        ("cut", &|file| file.set_len(end - 5000).unwrap()),
        ("cut in the start", &|file| file.set_len(known + 5).unwrap()),
        ("cut in the end", &|file| file.set_len(end - 3).unwrap()),
        ("zeros at the end", &|file| {
            file.write_all_at(&[0; 6000], end - 6000).unwrap()
        }),
        // The disk had written the pages around it already.
        ("a page missing", &|file| {
            file.write_all_at(&[0; 4096], known + 5000).unwrap()
        }),
    ];
    for (name, tear) in tears {
        let dir = copy_of(killed.path());
        tear(&journal(dir.path(), 0));
        assert_eq!(Engine::examine(dir.path()).unwrap(), None, "{name}");
        let after = open(dir.path()).unwrap();
        assert_eq!(contents(&after), before, "{name}");
        commit(&after, 9, 100).await;
    }
    let whole = open(killed.path()).unwrap();
    assert_eq!(contents(&whole).len(), 6);
}

#[tokio::test]
async fn every_commit_is_in_the_mark_and_a_clean_stop_has_all() {
    let dir = TempDir::new().unwrap();
    let marked = || DurableMark::read(dir.path()).unwrap().unwrap().newest();
    let engine = open(dir.path()).unwrap();
    for key in 0..5 {
        assert_eq!(marked(), Some((0, extent(dir.path(), 0).bytes)));
        commit(&engine, key, 5000).await;
    }
    engine.write(batch(9, 10)).unwrap();
    assert!(marked() < Some((0, extent(dir.path(), 0).bytes)));
    drop(engine);
    assert_eq!(marked(), Some((0, extent(dir.path(), 0).bytes)));
}

#[tokio::test]
async fn without_fsync_a_power_cut_may_take_commits() {
    let dir = TempDir::new().unwrap();
    let options = EngineOptions {
        fsync: false,
        ..EngineOptions::default()
    };
    let engine = Engine::open(dir.path(), options.clone()).unwrap();
    let known = extent(dir.path(), 0).bytes;
    commit(&engine, 1, 100).await;
    let cut = copy_of(dir.path());
    journal(cut.path(), 0).set_len(known).unwrap();
    let after = Engine::open(cut.path(), options).unwrap();
    assert_eq!(contents(&after).len(), 0);
}

#[tokio::test]
async fn a_store_without_a_mark_opens_and_has_one_from_then_on() {
    let (killed, history) = store().await;
    let all = history.last().unwrap();
    std::fs::remove_file(killed.path().join("durable")).unwrap();
    assert_eq!(Engine::examine(killed.path()).unwrap(), None);
    let engine = open(killed.path()).unwrap();
    assert_eq!(contents(&engine), *all);
    let mark = DurableMark::read(killed.path()).unwrap().unwrap();
    assert_eq!(mark.get(0), Some(extent(killed.path(), 0).bytes));

    let error = Engine::examine(killed.path()).unwrap_err();
    assert_eq!(error.kind, Kind::Conflict);
    let error = Engine::repair(killed.path()).unwrap_err();
    assert!(error.source.to_string().contains("another packetboat runs"));
    let empty = TempDir::new().unwrap();
    assert_eq!(
        Engine::examine(empty.path()).unwrap_err().kind,
        Kind::Conflict
    );
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_damaged_mark_is_refused_and_made_anew() {
    let (killed, history) = store().await;
    let all = history.last().unwrap();
    let mark = killed.path().join("durable");
    for bytes in [&b""[..], &[0; 1024]] {
        std::fs::write(&mark, bytes).unwrap();
        let error = open(killed.path()).unwrap_err();
        assert!(
            error.source.to_string().contains("durable is damaged"),
            "{error:?}"
        );
        let repaired = Engine::repair(killed.path()).unwrap().unwrap();
        assert_eq!(
            (repaired.readable, repaired.unreachable, repaired.bytes),
            (u64::from(COMMITS) + 1, 0, 0)
        );
        assert!(repaired.aside.is_empty());
        assert_eq!(Engine::examine(killed.path()).unwrap(), None);
    }
    assert_eq!(contents(&open(killed.path()).unwrap()), *all);
}

#[tokio::test]
async fn a_store_whose_tables_are_gone_is_refused() {
    let (killed, _) = store().await;
    drop(open(killed.path()).unwrap());
    std::fs::remove_dir_all(killed.path().join("keyspaces")).unwrap();
    let error = open(killed.path()).unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt, "{error:?}");
}

/// A record as the store writes it.
fn record(number: u64) -> Vec<u8> {
    let mut item = vec![2, 0, 0];
    item.extend(7u64.to_le_bytes());
    item.extend(1u16.to_le_bytes());
    item.extend([3u32.to_le_bytes(), 3u32.to_le_bytes()].concat());
    item.extend(b"kval");
    let mut record = vec![1];
    record.extend(1u32.to_le_bytes());
    record.extend(number.to_le_bytes());
    record.extend(&item);
    record.push(3);
    record.extend(xxh3_64(&item).to_le_bytes());
    record.extend(b"FJL\x03");
    record
}

/// Journals as fjall makes them.
struct Journals {
    dir: TempDir,
    number: u64,
    end: u64,
    records: u64,
}

impl Journals {
    fn new() -> Journals {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("version"), b"").unwrap();
        let journals = Journals {
            dir,
            number: 0,
            end: 0,
            records: 0,
        };
        journals.make();
        journals
    }

    fn make(&self) {
        let file = File::create_new(self.path(self.number)).unwrap();
        file.set_len(64 << 10).unwrap();
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.path().join(format!("{number}.jnl"))
    }

    fn write(&mut self) {
        self.records += 1;
        let record = record(self.records);
        let file = journal(self.dir.path(), self.number);
        file.write_all_at(&record, self.end).unwrap();
        self.end += record.len() as u64;
        self.assert_opens();
    }

    fn rotate(&mut self) {
        self.number += 1;
        self.end = 0;
        self.make();
        self.assert_opens();
    }

    fn remove(&self, number: u64) {
        std::fs::remove_file(self.path(number)).unwrap();
        self.assert_opens();
    }

    /// A kill at this moment is no damage.
    fn assert_opens(&self) {
        check(self.dir.path()).unwrap();
    }

    /// The last byte of this journal is known to be durable.
    fn assert_known(&self, number: u64) {
        let end = extent(self.dir.path(), number).bytes;
        let file = journal(self.dir.path(), number);
        file.write_all_at(&[0], end - 1).unwrap();
        let damage = Engine::examine(self.dir.path()).unwrap().unwrap();
        assert!(
            damage.what.contains(&format!("{number}.jnl is damaged")),
            "{damage:?}"
        );
        file.write_all_at(&[3], end - 1).unwrap();
    }
}

#[test]
fn a_kill_at_any_moment_of_a_rotation_is_no_damage() {
    let mut journals = Journals::new();
    journals.write();
    let mut journal = Journal::open(journals.dir.path()).unwrap();
    journals.assert_known(0);
    journals.write();
    journal.sync().unwrap();
    journals.assert_known(0);
    // Written, closed and made anew before the next fsync.
    journals.write();
    journals.rotate();
    journals.write();
    journal.sync().unwrap();
    journals.assert_known(0);
    journals.assert_known(1);
    journals.remove(0);
    journal.sync().unwrap();
    journals.assert_known(1);
    journals.rotate();
    journals.write();
    journals.rotate();
    journals.write();
    journals.remove(1);
    journals.remove(2);
    journal.sync().unwrap();
    assert_eq!(journal.number(), 3);
    journals.assert_known(3);
    let mark = DurableMark::read(journals.dir.path()).unwrap().unwrap();
    assert_eq!((mark.get(1), mark.get(2)), (None, None), "it does not grow");
    std::fs::remove_file(journals.path(3)).unwrap();
    assert_eq!(check(journals.dir.path()).unwrap_err().kind, Kind::Corrupt);
}

// A full disk leaves half a record; fjall takes no more writes, and may make its next journal all the same.
#[test]
fn a_write_that_failed_before_a_rotation_is_no_damage() {
    let mut journals = Journals::new();
    journals.write();
    drop(Journal::open(journals.dir.path()).unwrap());
    let half = &record(2)[..20];
    let file = journal(journals.dir.path(), 0);
    file.write_all_at(half, journals.end).unwrap();
    journals.rotate();
    cut_torn_write(journals.dir.path()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), record(1).len() as u64);
    // Behind it came records, so it was whole.
    file.write_all_at(half, record(1).len() as u64).unwrap();
    let path = journals.path(1);
    std::fs::write(path, record(2)).unwrap();
    assert_eq!(check(journals.dir.path()).unwrap_err().kind, Kind::Corrupt);
}

#[test]
fn what_follows_the_damage_of_an_older_journal_goes_with_it() {
    let mut journals = Journals::new();
    for _ in 0..3 {
        for _ in 0..4 {
            journals.write();
        }
        journals.rotate();
    }
    let dir = journals.dir.path();
    drop(Journal::open(dir).unwrap());
    let one = record(1).len() as u64;
    journal(dir, 1).write_all_at(&[0; 4], one + 3).unwrap();
    let found = Engine::repair(dir).unwrap().unwrap();
    assert_eq!(
        (found.readable, found.unreachable, found.bytes),
        (4 + 1, 2 + 4, (3 + 4) * one)
    );
    let names = ["3.jnl.damaged", "2.jnl.damaged", "1.jnl.damaged"];
    assert_eq!(found.aside, names.map(|name| dir.join(name)));
    assert_eq!(Engine::examine(dir).unwrap(), None);
    assert_eq!(extent(dir, 1).records, 1);
    assert!(!journals.path(2).exists());

    // A copy is never written over.
    journal(dir, 1).set_len(one - 1).unwrap();
    let found = Engine::repair(dir).unwrap().unwrap();
    assert_eq!(found.aside, [dir.join("1.jnl.damaged.2")]);
    // One that is missing between others.
    let mut journals = Journals::new();
    for _ in 0..2 {
        journals.write();
        journals.rotate();
    }
    let dir = journals.dir.path();
    drop(Journal::open(dir).unwrap());
    std::fs::remove_file(journals.path(1)).unwrap();
    let found = Engine::repair(dir).unwrap().unwrap();
    assert!(found.what.contains("1.jnl is missing"), "{found:?}");
    assert_eq!(found.aside, [dir.join("2.jnl.damaged")]);
    assert_eq!(Engine::examine(dir).unwrap(), None);
}
