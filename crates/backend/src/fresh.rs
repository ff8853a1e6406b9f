//! What contract tests write with: names that no other test uses, so that a suite may run on a store
//! that others use at the same time, and the stores to run it on.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::id::snowflake;
use protocol::message::Content;
use protocol::{ConversationId, GroupId, MessageId, SendId, Seq, Timestamp, UserId};
use tempfile::TempDir;

use crate::embedded::{Engine, EngineOptions};

/// A store, the names to use in it, and the directory that it lives in.
pub(crate) struct Fixture<S> {
    pub(crate) store: S,
    pub(crate) fresh: Fresh,
    _dir: Option<TempDir>,
}

impl<S> Fixture<S> {
    pub(crate) fn in_memory(open: impl FnOnce(Engine) -> S) -> Fixture<S> {
        Fixture {
            store: open(Engine::memory()),
            fresh: Fresh::new(1),
            _dir: None,
        }
    }

    pub(crate) fn on_disk(open: impl FnOnce(Engine) -> S) -> Fixture<S> {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Engine::open(dir.path(), EngineOptions::default()).expect("an engine");
        Fixture {
            store: open(engine),
            fresh: Fresh::new(1),
            _dir: Some(dir),
        }
    }
}

/// Users and messages that nobody else has.
pub(crate) struct Fresh {
    next: AtomicI64,
}

impl Fresh {
    /// `seed`: for a store that outlives the test, something new at each run.
    pub(crate) fn new(seed: i64) -> Fresh {
        Fresh {
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

    /// Larger than those made before.
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

/// Content of which no part is what it would be by itself.
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

/// A time of a test: milliseconds after the beginning of ids.
pub(crate) fn at(millis: u64) -> Timestamp {
    snowflake::EPOCH + Duration::from_millis(millis)
}

pub(crate) fn seqs(range: std::ops::RangeInclusive<u64>) -> Vec<Seq> {
    range.map(Seq).collect()
}

/// Runs each check of a contract in a memory of its own, and all of them on one store on disk and on one behind a hook.
macro_rules! on_memory_and_disk {
    ($open:path: $($check:ident),* $(,)?) => {
        mod memory {
            $(
                #[tokio::test]
                async fn $check() {
                    let fixture = crate::fresh::Fixture::in_memory($open);
                    super::contract::$check(&fixture.store, &fixture.fresh).await;
                }
            )*
        }
        mod disk {
            #[tokio::test]
            async fn all_of_them() {
                let fixture = crate::fresh::Fixture::on_disk($open);
                $(super::contract::$check(&fixture.store, &fixture.fresh).await;)*
                let suite = module_path!().split("::").nth(1).unwrap_or_default();
                crate::real::ran(suite, "embedded");
            }
        }
        mod behind_a_hook {
            #[tokio::test]
            async fn all_of_them() {
                let fixture = crate::fresh::Fixture::in_memory($open);
                let store = super::super::super::behind_a_hook(std::sync::Arc::new(fixture.store));
                $(super::contract::$check(&*store, &fixture.fresh).await;)*
            }
        }
    };
}
pub(crate) use on_memory_and_disk;
