use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use tempfile::TempDir;

use super::journal::numbers;
use super::{Engine, EngineOptions, ScanOrder, Table, WriteBatch};
use crate::Kind;

fn on_disk(dir: &Path) -> Engine {
    Engine::open(dir, EngineOptions::default()).unwrap()
}

/// The same test over both stores.
fn on_both_stores(test: impl Fn(Engine)) {
    test(Engine::memory());
    let dir = TempDir::new().unwrap();
    test(on_disk(dir.path()));
}

fn put(pairs: &[(Table, &str, &str)]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for &(table, key, value) in pairs {
        batch.put(table, key.to_owned(), value.to_owned());
    }
    batch
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns all tables but the store's own.
fn contents(engine: &Engine) -> BTreeMap<(Table, Bytes), Bytes> {
    let mut rows = BTreeMap::new();
    for &table in Table::ALL.iter().filter(|&&table| table != Table::Meta) {
        let pairs = engine
            .range(table, .., ScanOrder::Forward, usize::MAX)
            .unwrap();
        rows.extend(pairs.into_iter().map(|(key, value)| ((table, key), value)));
    }
    rows
}

/// Copies what a `kill -9` at this moment would leave.
pub(crate) fn copy_dir(dir: &Path) -> TempDir {
    fn copy(from: &Path, to: &Path) {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                std::fs::create_dir(&target).unwrap();
                copy(&entry.path(), &target);
            } else {
                copy_sparse(&entry.path(), &target);
            }
        }
    }
    /// Leaves the zeros at the end as a hole: a journal is 64 MiB of mostly nothing.
    fn copy_sparse(from: &Path, to: &Path) {
        static NOTHING: [u8; 64 << 10] = [0; 64 << 10];
        let bytes = std::fs::read(from).unwrap();
        let last_used = bytes
            .chunks(NOTHING.len())
            .rposition(|chunk| *chunk != NOTHING[..chunk.len()]);
        let end = last_used
            .map_or(0, |last| (last + 1) * NOTHING.len())
            .min(bytes.len());
        std::fs::write(to, &bytes[..end]).unwrap();
        let file = std::fs::File::options().write(true).open(to).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
    }
    let to = TempDir::new().unwrap();
    copy(dir, to.path());
    to
}

#[test]
fn ranges_run_both_ways_within_bounds_and_limits() {
    on_both_stores(|engine| {
        let keys = ["a", "b", "ba", "bb", "c"];
        let all: Vec<_> = keys.iter().map(|&key| (Table::Mail, key, key)).collect();
        engine.write(put(&all)).unwrap();
        engine.write(put(&[(Table::Head, "b", "other")])).unwrap();
        let key_text = |pairs: Vec<super::KeyValue>| -> String {
            pairs
                .iter()
                .map(|(key, _)| text(key))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let b: &[u8] = b"b";
        let c: &[u8] = b"c";
        let mail = |range: super::Bounds<'_>, order, limit| {
            key_text(engine.range(Table::Mail, range, order, limit).unwrap())
        };
        use std::ops::Bound::{Excluded, Included, Unbounded};
        assert_eq!(
            mail((Included(b), Excluded(c)), ScanOrder::Forward, 9),
            "b ba bb"
        );
        assert_eq!(
            mail((Excluded(b), Included(c)), ScanOrder::Backward, 2),
            "c bb"
        );
        assert_eq!(mail((Unbounded, Excluded(b)), ScanOrder::Forward, 9), "a");
        assert_eq!(mail((Excluded(b), Excluded(b)), ScanOrder::Forward, 9), "");
        assert_eq!(mail((Included(c), Excluded(b)), ScanOrder::Forward, 9), "");
        assert_eq!(mail((Unbounded, Unbounded), ScanOrder::Forward, 0), "");
        let prefix = engine
            .prefix(Table::Mail, b, ScanOrder::Backward, 2)
            .unwrap();
        assert_eq!(key_text(prefix), "bb ba");
        assert_eq!(engine.remove_range(Table::Mail, b..c, 2).unwrap(), 2);
        assert_eq!(engine.remove_range(Table::Mail, b..c, 2).unwrap(), 1);
        assert_eq!(mail((Unbounded, Unbounded), ScanOrder::Forward, 9), "a c");
        let values = engine.multi_get(Table::Mail, &["c", "b", "a"]).unwrap();
        let values: Vec<_> = values.iter().map(|v| v.as_ref().map(text)).collect();
        assert_eq!(values, [Some("c"), None, Some("a")]);
        assert_eq!(engine.get(Table::Head, b).unwrap().unwrap(), "other");
    });
}

#[test]
fn prefixes_of_highest_bytes_have_an_end() {
    on_both_stores(|engine| {
        let mut batch = WriteBatch::new();
        for key in [
            vec![1, 255],
            vec![1, 255, 255],
            vec![2],
            vec![255],
            vec![255, 255],
        ] {
            batch.put(Table::Mail, key.clone(), key);
        }
        engine.write(batch).unwrap();
        let count = |prefix: &[u8]| {
            let pairs = engine.prefix(Table::Mail, prefix, ScanOrder::Forward, 9);
            pairs.unwrap().len()
        };
        assert_eq!([count(&[1, 255]), count(&[255]), count(&[])], [2, 2, 5]);
    });
}

#[tokio::test]
async fn later_change_of_a_key_in_a_batch_counts_after_a_reopen() {
    let dir = TempDir::new().unwrap();
    let mut batch = put(&[(Table::Mail, "k", "1"), (Table::Mail, "k", "2")]);
    batch.put(Table::Mail, "gone", "x");
    batch.remove(Table::Mail, "gone");
    batch.remove(Table::Mail, "back");
    batch.put(Table::Mail, "back", "y");
    for engine in [Engine::memory(), on_disk(dir.path())] {
        let commit = engine.commit(batch.clone(), None).unwrap();
        commit.await.unwrap();
        check(&engine);
    }
    check(&on_disk(dir.path()));

    fn check(engine: &Engine) {
        let values = engine
            .multi_get(Table::Mail, &["k", "gone", "back"])
            .unwrap();
        let values: Vec<_> = values.iter().map(|v| v.as_ref().map(text)).collect();
        assert_eq!(values, [Some("2"), None, Some("y")]);
    }
}

#[tokio::test]
async fn a_second_process_and_another_format_are_refused() {
    let dir = TempDir::new().unwrap();
    let engine = on_disk(dir.path());
    let error = Engine::open(dir.path(), EngineOptions::default()).unwrap_err();
    assert_eq!(error.kind, Kind::Conflict);
    assert!(
        error
            .source
            .to_string()
            .contains("another packetboat is using"),
        "{}",
        error.source
    );
    let mut batch = WriteBatch::new();
    batch.put(Table::Meta, "format", vec![0, 0, 0, 9]);
    let mark = engine.write(batch).unwrap();
    engine.durable(mark).await.unwrap();
    drop(engine);
    let error = Engine::open(dir.path(), EngineOptions::default()).unwrap_err();
    assert_eq!(error.kind, Kind::Conflict);
}

#[tokio::test]
async fn a_kill_at_any_moment_loses_no_write() {
    let dir = TempDir::new().unwrap();
    let engine = on_disk(dir.path());
    let mut last = None;
    for round in 0..3 {
        for n in 0..50 {
            let key = format!("{round}-{n}");
            let batch = put(&[(Table::Log, &key, "record"), (Table::Offsets, "next", &key)]);
            last = Some(engine.write(batch).unwrap());
        }
        let copy = copy_dir(dir.path());
        assert_eq!(contents(&on_disk(copy.path())), contents(&engine));
    }
    engine.durable(last.unwrap()).await.unwrap();
    let old_contents = contents(&engine);
    drop(engine);
    assert_eq!(contents(&on_disk(dir.path())), old_contents);
}

#[tokio::test]
async fn commits_are_reported_in_order_even_without_waiters() {
    let dir = TempDir::new().unwrap();
    for engine in [Engine::memory(), on_disk(dir.path())] {
        let order = Arc::new(Mutex::new(Vec::new()));
        let commit = |n: u64| {
            let order = order.clone();
            let batch = put(&[(Table::Log, &format!("{n:03}"), "x")]);
            let on_durable = Box::new(move || order.lock().push(n));
            engine.commit(batch, Some(on_durable)).unwrap()
        };
        for n in 0..99 {
            drop(commit(n));
        }
        commit(99).await.unwrap();
        assert_eq!(*order.lock(), (0..100).collect::<Vec<u64>>());
        assert_eq!(contents(&engine).len(), 100);
    }
}

#[tokio::test]
async fn waiting_for_a_mark_covers_what_was_gathered_before() {
    let dir = TempDir::new().unwrap();
    let engine = on_disk(dir.path());
    let commit = engine.commit(put(&[(Table::Log, "a", "1")]), None).unwrap();
    let mark = engine.write(put(&[(Table::Mail, "b", "2")])).unwrap();
    engine.durable(mark).await.unwrap();
    engine.durable(mark).await.unwrap();
    commit.await.unwrap();
    assert_eq!(contents(&engine).len(), 2);
}

#[tokio::test]
async fn failed_fsync_ends_all_writes_but_no_reads() {
    let dir = TempDir::new().unwrap();
    for engine in [Engine::memory(), on_disk(dir.path())] {
        let mut takes_writes = engine.takes_writes();
        engine.write(put(&[(Table::Mail, "before", "1")])).unwrap();
        engine.fail_syncs();
        assert!(*takes_writes.borrow(), "nothing has failed yet");
        let on_durable: super::OnDurable = Box::new(|| panic!("told of a success"));
        let commit = engine.commit(put(&[(Table::Mail, "in", "2")]), Some(on_durable));
        let error = commit.unwrap().await.unwrap_err();
        assert_eq!(error.kind, Kind::Unavailable);
        takes_writes.wait_for(|takes| !takes).await.unwrap();
        let error = engine
            .write(put(&[(Table::Mail, "after", "3")]))
            .unwrap_err();
        assert_eq!(error.kind, Kind::Unavailable);
        assert!(
            engine
                .commit(put(&[(Table::Mail, "after", "3")]), None)
                .is_err()
        );
        assert_eq!(engine.get(Table::Mail, b"before").unwrap().unwrap(), "1");
        assert_eq!(engine.get(Table::Mail, b"after").unwrap(), None);
    }
}

#[tokio::test]
async fn held_writes_are_not_durable_and_may_be_lost_in_a_crash() {
    let engine = Engine::memory();
    engine.write(put(&[(Table::Mail, "a", "1")])).unwrap();
    let mark = engine.write(put(&[(Table::Mail, "b", "1")])).unwrap();
    engine.durable(mark).await.unwrap();
    engine.hold_syncs();
    let commit = engine
        .commit(put(&[(Table::Mail, "c", "1")]), None)
        .unwrap();
    engine.write(put(&[(Table::Mail, "b", "2")])).unwrap();
    assert_eq!(engine.undurable(), 2);
    let survivor = engine.crash(0).unwrap();
    assert_eq!(
        contents(&survivor).into_values().collect::<Vec<_>>(),
        ["1", "1"]
    );
    assert_eq!(commit.await.unwrap_err().kind, Kind::Unavailable);
    assert!(engine.write(put(&[(Table::Mail, "d", "1")])).is_err());

    survivor.hold_syncs();
    let commit = survivor
        .commit(put(&[(Table::Mail, "c", "1")]), None)
        .unwrap();
    survivor.release_syncs();
    commit.await.unwrap();
    assert_eq!(contents(&survivor.crash(0).unwrap()).len(), 3);
}

#[test]
fn a_journal_is_followed_when_it_rotates() {
    let dir = TempDir::new().unwrap();
    let touch = |name: &str| std::fs::write(dir.path().join(name), b"").unwrap();
    assert!(super::journal::Journal::open(dir.path()).is_err());
    for name in ["3.jnl", "4.jnl", "lock", "version"] {
        touch(name);
    }
    let mut journal = super::journal::Journal::open(dir.path()).unwrap();
    assert_eq!(journal.number(), 4);
    touch("5.jnl");
    touch("6.jnl");
    journal.sync().unwrap();
    assert_eq!(journal.number(), 6);
}

/// The store rotates its journals as `journal.rs` assumes, and loses nothing by it.
#[tokio::test]
async fn more_than_one_journal_is_written_and_read_back() {
    let dir = TempDir::new().unwrap();
    let options = EngineOptions {
        memtable_bytes: 4 << 20,
        ..EngineOptions::default()
    };
    let engine = Engine::open(dir.path(), options).unwrap();
    let mut value = vec![0u8; 512 << 10];
    let mut state = 1u64;
    for byte in &mut value {
        // Noise, because the journal compresses.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    let mut count = 0u32;
    // A journal of 64 MB is closed when the next table is written out, by a thread of the store.
    while numbers(dir.path()).unwrap().last() == Some(&0) {
        assert!(count < 1000, "the journal never rotated");
        if count > 200 {
            // That thread may be late.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut batch = WriteBatch::new();
        value[..4].copy_from_slice(&count.to_be_bytes());
        let key = count.to_be_bytes().to_vec();
        batch.put(Table::Log, key, value.clone());
        engine.commit(batch, None).unwrap().await.unwrap();
        count += 1;
    }
    engine
        .commit(put(&[(Table::Log, "last", "1")]), None)
        .unwrap()
        .await
        .unwrap();
    drop(engine);
    // The end of the closed journal is known, too.
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(dir.path().join("0.jnl"));
    let file = file.unwrap();
    let end = super::records::Extent::default()
        .extend(&file)
        .unwrap()
        .bytes;
    assert!(end > 64_000_000, "{end}");
    let mut last = [0];
    file.read_exact_at(&mut last, end - 1).unwrap();
    file.write_all_at(&[0], end - 1).unwrap();
    let error = Engine::open(dir.path(), EngineOptions::default()).unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt);
    file.write_all_at(&last, end - 1).unwrap();
    let second_engine = on_disk(dir.path());
    for n in 0..count {
        let row = second_engine
            .get(Table::Log, &n.to_be_bytes())
            .unwrap()
            .unwrap();
        assert_eq!(row[..4], n.to_be_bytes());
    }
    assert_eq!(
        second_engine.get(Table::Log, b"last").unwrap().unwrap(),
        "1"
    );
}

#[derive(Clone, Debug)]
enum Step {
    /// Sets (or removes) a few keys in one batch.
    Write(Vec<(usize, u8, Option<u8>)>),
    Durable,
    Hold,
    Release,
}

const TABLES: [Table; 3] = [Table::Log, Table::Offsets, Table::Mail];

fn writes() -> impl Strategy<Value = Vec<(usize, u8, Option<u8>)>> {
    proptest::collection::vec((0usize..3, 0u8..6, any::<Option<u8>>()), 1..5)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(
        prop_oneof![
            6 => writes().prop_map(Step::Write),
            2 => Just(Step::Durable),
            1 => Just(Step::Hold),
            1 => Just(Step::Release),
        ],
        1..40,
    )
}

type Model = BTreeMap<(Table, Bytes), Bytes>;

fn apply(model: &mut Model, changes: &[(usize, u8, Option<u8>)]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for &(table, key, value) in changes {
        let (table, key) = (TABLES[table], Bytes::from(vec![key]));
        match value {
            Some(value) => {
                batch.put(table, key.clone(), vec![value]);
                model.insert((table, key), Bytes::from(vec![value]));
            }
            None => {
                batch.remove(table, key.clone());
                model.remove(&(table, key));
            }
        }
    }
    batch
}

proptest! {
    #[test]
    fn a_crash_leaves_a_prefix_with_everything_durable(steps in steps(), kept_count in 0usize..50) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let engine = Engine::memory();
            // State after each write, and the index of the newest one reported as durable.
            let mut history = vec![Model::new()];
            let (mut durable, mut is_held, mut mark) = (0, false, None);
            for step in &steps {
                match step {
                    Step::Write(changes) => {
                        let mut next = history[history.len() - 1].clone();
                        mark = Some(engine.write(apply(&mut next, changes)).unwrap());
                        history.push(next);
                    }
                    Step::Durable => if let (Some(mark), false) = (mark, is_held) {
                        engine.durable(mark).await.unwrap();
                        durable = history.len() - 1;
                    },
                    Step::Hold => { engine.hold_syncs(); is_held = true; }
                    Step::Release => { engine.release_syncs(); is_held = false; }
                }
                prop_assert_eq!(&contents(&engine), &history[history.len() - 1]);
            }
            let may_lose = engine.undurable();
            let crashed_contents = contents(&engine.crash(kept_count).unwrap());
            let survivor_count = history.len() - 1 - may_lose + kept_count.min(may_lose);
            prop_assert!(survivor_count >= durable);
            prop_assert_eq!(&crashed_contents, &history[survivor_count]);
            Ok(())
        })?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// proves that a torn tail of the journal, which a power cut may leave, costs writes from the end only
    #[test]
    fn a_torn_tail_leaves_a_prefix(
        batches in proptest::collection::vec(writes(), 1..30),
        torn in 1usize..400,
    ) {
        let store_dir = TempDir::new().unwrap();
        let mut history = vec![Model::new()];
        // No write waits for the disk, so a power cut may take any.
        let engine = on_disk(store_dir.path());
        for changes in &batches {
            let mut next = history[history.len() - 1].clone();
            engine.write(apply(&mut next, changes)).unwrap();
            history.push(next);
        }
        let dir = copy_dir(store_dir.path());
        let journal = dir.path().join("0.jnl");
        // The file is made 64 MiB long and filled from its start.
        let mut bytes = Vec::new();
        let mut file = std::fs::File::options().read(true).write(true).open(&journal).unwrap();
        file.by_ref().take(64 << 10).read_to_end(&mut bytes).unwrap();
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        // The format was flushed when the store was made.
        let durable_bytes = super::mark::DurableMark::read(dir.path()).unwrap().unwrap().get(0).unwrap();
        file.set_len((end.saturating_sub(torn) as u64).max(durable_bytes)).unwrap();
        let recovered_contents = contents(&on_disk(dir.path()));
        prop_assert!(history.contains(&recovered_contents), "not a prefix: {:?}", recovered_contents);
        // The store goes on from there.
        let engine = on_disk(dir.path());
        engine.write(put(&[(Table::Head, "new", "1")])).unwrap();
        drop(engine);
        prop_assert_eq!(contents(&on_disk(dir.path())).len(), recovered_contents.len() + 1);
    }
}
