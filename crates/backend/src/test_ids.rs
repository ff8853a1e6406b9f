//! Ids for contract tests, and the stores to run them on. No other test uses these ids, so that a
//! suite may run on a store in use by others.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::id::snowflake;
use protocol::message::Content;
use protocol::{ConversationId, GroupId, MessageId, SendId, Seq, Timestamp, UserId};
use tempfile::TempDir;

use crate::embedded::{Engine, EngineOptions};

/// A store, the ids to use in it, and the directory it lives in.
pub(crate) struct TestBackend<S> {
    pub(crate) store: S,
    pub(crate) fresh: TestIds,
    _dir: Option<TempDir>,
}

impl<S> TestBackend<S> {
    pub(crate) fn in_memory(open: impl FnOnce(Engine) -> S) -> TestBackend<S> {
        TestBackend {
            store: open(Engine::memory()),
            fresh: TestIds::new(1),
            _dir: None,
        }
    }

    pub(crate) fn on_disk(open: impl FnOnce(Engine) -> S) -> TestBackend<S> {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Engine::open(dir.path(), EngineOptions::default()).expect("an engine");
        TestBackend {
            store: open(engine),
            fresh: TestIds::new(1),
            _dir: Some(dir),
        }
    }
}

/// Generator of users and messages that no other test has.
pub(crate) struct TestIds {
    next: AtomicI64,
}

impl TestIds {
    /// `seed`: new at each run if the store outlives the test.
    pub(crate) fn new(seed: i64) -> TestIds {
        TestIds {
            next: AtomicI64::new(seed * 1_000_000),
        }
    }

    fn number(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn user(&self) -> UserId {
        UserId::new(self.number()).expect("positive")
    }

    pub(crate) fn group(&self) -> GroupId {
        GroupId::new(self.number()).expect("positive")
    }

    pub(crate) fn conversation(&self) -> ConversationId {
        ConversationId::private(self.user(), self.user()).expect("two users")
    }

    /// Returns an id larger than all earlier ones.
    pub(crate) fn message(&self) -> MessageId {
        MessageId::floor_of(snowflake::EPOCH + Duration::from_millis(self.number() as u64))
    }

    pub(crate) fn messages(&self, count: usize) -> Vec<MessageId> {
        (0..count).map(|_| self.message()).collect()
    }

    pub(crate) fn send_id(&self) -> SendId {
        SendId::from_bytes((self.number() as u128).to_be_bytes())
    }
}

/// Content with every field but `change` off its default.
pub(crate) fn content() -> Content {
    Content {
        kind: 1,
        data: Bytes::from_static(b"\0 not text \xff"),
        priority: 2,
        reference: MessageId::new(5).ok(),
        encryption: 3,
        sub_kind: -4,
        key_print: i64::MIN,
        change: None,
    }
}

/// Time of a test: milliseconds after the epoch of ids.
pub(crate) fn at(millis: u64) -> Timestamp {
    snowflake::EPOCH + Duration::from_millis(millis)
}

pub(crate) fn seqs(range: std::ops::RangeInclusive<u64>) -> Vec<Seq> {
    range.map(Seq).collect()
}

/// Runs each check of a contract in a memory of its own, then all of them on one store on disk and
/// on one behind a hook.
macro_rules! on_memory_and_disk {
    ($open:path: $($check:ident),* $(,)?) => {
        mod memory {
            $(
                #[tokio::test(start_paused = true)]
                async fn $check() {
                    let fixture = crate::test_ids::TestBackend::in_memory($open);
                    super::contract::$check(&fixture.store, &fixture.fresh).await;
                }
            )*
        }
        mod disk {
            #[tokio::test]
            async fn all_of_them() {
                let fixture = crate::test_ids::TestBackend::on_disk($open);
                $(super::contract::$check(&fixture.store, &fixture.fresh).await;)*
                let suite = module_path!().split("::").nth(1).unwrap_or_default();
                crate::test_servers::ran(suite, "embedded");
            }
        }
        mod behind_a_hook {
            #[tokio::test(start_paused = true)]
            async fn all_of_them() {
                let fixture = crate::test_ids::TestBackend::in_memory($open);
                let store = super::super::super::behind_a_hook(std::sync::Arc::new(fixture.store));
                $(super::contract::$check(&*store, &fixture.fresh).await;)*
            }
        }
    };
}
pub(crate) use on_memory_and_disk;
