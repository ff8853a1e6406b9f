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
use super::tests::copy_dir;
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
    let future = engine.commit(batch(key, bytes), None).unwrap();
    future.await.unwrap();
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
    let crash_copy = copy_dir(dir.path());
    // Fewer of the zeros behind, which take their time.
    let end = extent(crash_copy.path(), 0).bytes;
    journal(crash_copy.path(), 0).set_len(end + 10_000).unwrap();
    (crash_copy, history)
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
async fn damaged_journal_is_refused_and_repaired_to_its_readable_part() {
    let (crash_copy, history) = store().await;
    let Extent {
        bytes: end,
        records,
        ..
    } = extent(crash_copy.path(), 0);
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
        let dir = copy_dir(crash_copy.path());
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
        let damage = Engine::examine(dir.path()).unwrap().expect(name);
        assert!(damage.copies.is_empty());
        let lost_count = records - damage.readable;
        assert!(lost_count > 0 && damage.bytes > 0, "{name}: {damage:?}");
        assert!(damage.unreachable < lost_count, "{name}: {damage:?}");
        assert!(open(dir.path()).is_err(), "{name}: looking changes nothing");

        let repair = Engine::repair(dir.path()).unwrap().expect(name);
        let copies = repair.copies.clone();
        assert_eq!(
            JournalDamage {
                copies: vec![],
                ..repair
            },
            damage
        );
        let is_copied = copies == [dir.path().join("0.jnl.damaged")] && copies[0].exists();
        assert_eq!(is_copied, name != "itself", "{copies:?}");
        assert_eq!(Engine::repair(dir.path()).unwrap(), None, "{name}");
        let engine = open(dir.path()).unwrap();
        let kept_count = damage.readable.saturating_sub(1);
        assert_eq!(contents(&engine), history[kept_count as usize], "{name}");
        commit(&engine, 77, 10).await;
        drop(engine);
        assert_eq!(
            contents(&open(dir.path()).unwrap()).len() as u64,
            kept_count + 1
        );
    }
}

#[tokio::test]
async fn damage_at_any_place_is_refused_or_harmless() {
    let (crash_copy, history) = store().await;
    let all = history.last().unwrap();
    let end = extent(crash_copy.path(), 0).bytes;
    let (dir, mut harmless) = (copy_dir(crash_copy.path()), 0);
    // A prime, so that every field of a record has its turn; and every byte of the last records.
    for at in (0..end).step_by(97).chain(end - 150..end) {
        flip(dir.path(), at);
        if check(dir.path()).is_ok() {
            let copy = copy_dir(dir.path());
            assert!(contents(&open(copy.path()).unwrap()) == *all, "{at}");
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
    let durable_bytes = extent(dir.path(), 0).bytes;
    let old_contents = contents(&engine);
    engine.write(batch(5, 20_000)).unwrap();
    let crash_copy = copy_dir(dir.path());
    let end = extent(crash_copy.path(), 0).bytes;
    assert!(end - durable_bytes > 16 << 10, "several pages");
    let mark = DurableMark::read(crash_copy.path()).unwrap().unwrap();
    assert_eq!(mark.newest(), Some((0, durable_bytes)));
    let tears: [Harm<'_, File>; 5] = [
        ("cut", &|file| file.set_len(end - 5000).unwrap()),
        ("cut in the start", &|file| {
            file.set_len(durable_bytes + 5).unwrap()
        }),
        ("cut in the end", &|file| file.set_len(end - 3).unwrap()),
        ("zeros at the end", &|file| {
            file.write_all_at(&[0; 6000], end - 6000).unwrap()
        }),
        // The disk had written the pages around it already.
        ("a page missing", &|file| {
            file.write_all_at(&[0; 4096], durable_bytes + 5000).unwrap()
        }),
    ];
    for (name, tear) in tears {
        let dir = copy_dir(crash_copy.path());
        tear(&journal(dir.path(), 0));
        assert_eq!(Engine::examine(dir.path()).unwrap(), None, "{name}");
        let reopened_engine = open(dir.path()).unwrap();
        assert_eq!(contents(&reopened_engine), old_contents, "{name}");
        commit(&reopened_engine, 9, 100).await;
    }
    let whole = open(crash_copy.path()).unwrap();
    assert_eq!(contents(&whole).len(), 6);
}

#[tokio::test]
async fn every_commit_is_in_the_mark_and_a_clean_stop_has_all() {
    let dir = TempDir::new().unwrap();
    let newest_mark = || DurableMark::read(dir.path()).unwrap().unwrap().newest();
    let engine = open(dir.path()).unwrap();
    for key in 0..5 {
        assert_eq!(newest_mark(), Some((0, extent(dir.path(), 0).bytes)));
        commit(&engine, key, 5000).await;
    }
    engine.write(batch(9, 10)).unwrap();
    assert!(newest_mark() < Some((0, extent(dir.path(), 0).bytes)));
    drop(engine);
    assert_eq!(newest_mark(), Some((0, extent(dir.path(), 0).bytes)));
}

#[tokio::test]
async fn without_fsync_a_power_cut_may_take_commits() {
    let dir = TempDir::new().unwrap();
    let options = EngineOptions {
        fsync: false,
        ..EngineOptions::default()
    };
    let engine = Engine::open(dir.path(), options.clone()).unwrap();
    let durable_bytes = extent(dir.path(), 0).bytes;
    commit(&engine, 1, 100).await;
    let cut = copy_dir(dir.path());
    journal(cut.path(), 0).set_len(durable_bytes).unwrap();
    let reopened_engine = Engine::open(cut.path(), options).unwrap();
    assert_eq!(contents(&reopened_engine).len(), 0);
}

#[tokio::test]
async fn a_store_without_a_mark_opens_and_has_one_from_then_on() {
    let (crash_copy, history) = store().await;
    let all = history.last().unwrap();
    std::fs::remove_file(crash_copy.path().join("durable")).unwrap();
    assert_eq!(Engine::examine(crash_copy.path()).unwrap(), None);
    let engine = open(crash_copy.path()).unwrap();
    assert_eq!(contents(&engine), *all);
    let mark = DurableMark::read(crash_copy.path()).unwrap().unwrap();
    assert_eq!(mark.get(0), Some(extent(crash_copy.path(), 0).bytes));

    let error = Engine::examine(crash_copy.path()).unwrap_err();
    assert_eq!(error.kind, Kind::Conflict);
    let error = Engine::repair(crash_copy.path()).unwrap_err();
    assert!(
        error
            .source
            .to_string()
            .contains("another packetboat is using")
    );
    let empty = TempDir::new().unwrap();
    assert_eq!(
        Engine::examine(empty.path()).unwrap_err().kind,
        Kind::Conflict
    );
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_damaged_mark_is_refused_and_made_anew() {
    let (crash_copy, history) = store().await;
    let all = history.last().unwrap();
    let mark = crash_copy.path().join("durable");
    for bytes in [&b""[..], &[0; 1024]] {
        std::fs::write(&mark, bytes).unwrap();
        let error = open(crash_copy.path()).unwrap_err();
        assert!(
            error.source.to_string().contains("durable is damaged"),
            "{error:?}"
        );
        let repair = Engine::repair(crash_copy.path()).unwrap().unwrap();
        assert_eq!(
            (repair.readable, repair.unreachable, repair.bytes),
            (u64::from(COMMITS) + 1, 0, 0)
        );
        assert!(repair.copies.is_empty());
        assert_eq!(Engine::examine(crash_copy.path()).unwrap(), None);
    }
    assert_eq!(contents(&open(crash_copy.path()).unwrap()), *all);
}

#[tokio::test]
async fn a_store_whose_tables_are_gone_is_refused() {
    let (crash_copy, _) = store().await;
    drop(open(crash_copy.path()).unwrap());
    std::fs::remove_dir_all(crash_copy.path().join("keyspaces")).unwrap();
    let error = open(crash_copy.path()).unwrap_err();
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
            damage.summary.contains(&format!("{number}.jnl is damaged")),
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
fn records_after_damage_in_an_older_journal_are_removed() {
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
    let damage = Engine::repair(dir).unwrap().unwrap();
    assert_eq!(
        (damage.readable, damage.unreachable, damage.bytes),
        (4 + 1, 2 + 4, (3 + 4) * one)
    );
    let names = ["3.jnl.damaged", "2.jnl.damaged", "1.jnl.damaged"];
    assert_eq!(damage.copies, names.map(|name| dir.join(name)));
    assert_eq!(Engine::examine(dir).unwrap(), None);
    assert_eq!(extent(dir, 1).records, 1);
    assert!(!journals.path(2).exists());

    // A copy is never written over.
    journal(dir, 1).set_len(one - 1).unwrap();
    let damage = Engine::repair(dir).unwrap().unwrap();
    assert_eq!(damage.copies, [dir.join("1.jnl.damaged.2")]);
    // One that is missing between others.
    let mut journals = Journals::new();
    for _ in 0..2 {
        journals.write();
        journals.rotate();
    }
    let dir = journals.dir.path();
    drop(Journal::open(dir).unwrap());
    std::fs::remove_file(journals.path(1)).unwrap();
    let damage = Engine::repair(dir).unwrap().unwrap();
    assert!(damage.summary.contains("1.jnl is missing"), "{damage:?}");
    assert_eq!(damage.copies, [dir.join("2.jnl.damaged")]);
    assert_eq!(Engine::examine(dir).unwrap(), None);
}
