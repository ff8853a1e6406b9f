//! A horn on an embedded log, with a webhook on a port of its own or a provider in this process.

mod full;
mod outcomes;
mod telling;
mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::task::{NotificationTask, Value};
use backend::clock::{Clock, SeededEntropy, SystemClock};
use backend::conversations::{ConversationStore, EmbeddedConversations};
use backend::embedded::Engine;
use backend::ledger::{EmbeddedLedger, LedgerStore};
use backend::queue::embedded::{EmbeddedQueue, QueueConfig};
use backend::queue::{NewRecord, Partition, Queue, Record};
use bytes::Bytes;
use protocol::keys::{Topic, control_key, partition_of};
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::message::Target;
use protocol::notify::Notification;
use protocol::{ConversationId, MessageId, Platform, UserId};
use tokio_util::sync::CancellationToken;

use crate::{Config, GROUP, HornHandle, Parts, Provider, start_with};

/// Far more than anything here takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

/// Notification of the n-th message, accepted just now, for user 2 on the web.
fn mail(n: i64) -> Notification {
    let now = SystemClock.now();
    Notification {
        message: MessageId::new(MessageId::floor_of(now).get() + n).expect("positive"),
        from: user(1),
        target: Target {
            user: user(2),
            platform: Platform::Web,
        },
        conversation: ConversationId::private(user(1), user(2)).expect("two users"),
        accepted_at: now,
    }
}

/// Settings fast enough for a test, slow enough to observe.
fn quick() -> Config {
    Config {
        timeout: Duration::from_millis(300),
        attempts_max: 3,
        retry_delay: Duration::from_millis(20),
        retry_delay_max: Duration::from_millis(50),
        ..Config::default()
    }
}

/// Log and ledger that a horn works on.
struct Desk {
    queue: EmbeddedQueue,
    ledger: Arc<EmbeddedLedger>,
    ledger_engine: Engine,
    conversations: Arc<EmbeddedConversations>,
}

impl Desk {
    fn new() -> Desk {
        let config = QueueConfig {
            partitions: 2,
            ..QueueConfig::default()
        };
        let queue = EmbeddedQueue::open(Engine::memory(), config, Arc::new(SystemClock));
        let ledger_engine = Engine::memory();
        Desk {
            queue: queue.expect("opens"),
            ledger: Arc::new(EmbeddedLedger::open(ledger_engine.clone()).expect("opens")),
            ledger_engine,
            conversations: Arc::new(EmbeddedConversations::new(Engine::memory())),
        }
    }

    fn parts(&self) -> Parts {
        Parts {
            queue: Arc::new(self.queue.clone()),
            ledger: self.ledger.clone(),
            conversations: self.conversations.clone(),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SeededEntropy::new(1)),
        }
    }

    async fn horn(&self, config: Config, provider: Arc<dyn Provider>) -> Horn {
        let shutdown = CancellationToken::new();
        let handle = start_with(config, self.parts(), provider, shutdown.clone()).await;
        Horn {
            handle: handle.expect("starts"),
            shutdown,
        }
    }

    async fn publish(&self, notification: Notification) -> Partition {
        self.publish_redrive(notification, None).await
    }

    /// Publishes a notification that redrives this letter, if any.
    async fn publish_redrive(&self, notification: Notification, letter: Option<&str>) -> Partition {
        let task = NotificationTask {
            notification,
            retry_count: 0,
            trace: None,
            letter: letter.map(str::to_owned),
        };
        let key = Bytes::copy_from_slice(&control_key(notification.target.user));
        self.publish_bytes(key, task.encode()).await
    }

    async fn publish_bytes(&self, key: Bytes, value: Bytes) -> Partition {
        let topic = Topic::Notification;
        let partition = Partition {
            topic,
            number: partition_of(&key, self.queue.partitions(topic)),
        };
        let record = NewRecord {
            partition,
            key,
            headers: Vec::new(),
            value,
        };
        let offsets = self.queue.producer().publish(vec![record]).await;
        offsets
            .into_iter()
            .for_each(|offset| _ = offset.expect("published"));
        partition
    }

    async fn committed(&self, partition: Partition) -> u64 {
        let offset = self.queue.committed(GROUP, partition).await;
        offset.expect("reads").unwrap_or(0)
    }

    /// Waits until the horn has committed offset `next` of a partition.
    async fn wait_for_commit(&self, partition: Partition, next: u64) {
        let commit = async {
            while self.committed(partition).await < next {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let outcome = tokio::time::timeout(TEST_TIMEOUT, commit).await;
        assert!(outcome.is_ok(), "never committed {next}");
        assert_eq!(self.committed(partition).await, next);
    }

    async fn letters(&self) -> Vec<(Record, BTreeMap<String, String>)> {
        let topic = Topic::NotificationDead;
        let mut letters = Vec::new();
        for number in 0..self.queue.partitions(topic) {
            let partition = Partition { topic, number };
            let records = self.queue.read(partition, 0, 100).await.expect("reads");
            letters.extend(records.into_iter().map(|record| {
                let text = |value: &Bytes| String::from_utf8(value.to_vec()).expect("text");
                let headers = record
                    .headers
                    .iter()
                    .map(|(name, value)| (name.clone(), text(value)))
                    .collect();
                (record, headers)
            }));
        }
        letters
    }

    /// Entries of the ledger for a message: provider, and whether the user was notified.
    async fn ledger_outcomes(&self, notification: Notification) -> Vec<(String, bool)> {
        let trace = self.ledger.trace(&[notification.message]).await;
        let to_outcome = |entry: &LedgerEntry| match &entry.event {
            LedgerEvent::NotificationSent { provider, ok } => {
                assert_eq!(entry.target, Some(notification.target));
                (provider.clone(), *ok)
            }
            other => panic!("{other:?}"),
        };
        trace.expect("reads")[0].iter().map(to_outcome).collect()
    }
}

struct Horn {
    handle: HornHandle,
    shutdown: CancellationToken,
}

impl Horn {
    async fn stop(self) {
        self.shutdown.cancel();
        let outcome = tokio::time::timeout(TEST_TIMEOUT, self.handle.drained()).await;
        outcome.expect("ends");
    }
}
