//! On real brokers: `make real-up` starts them.

use std::process::{Child, Command, Stdio};

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;

use super::*;
use crate::queue::contract::{self, World};
use crate::queue::topics::{Change, Difference};
use crate::test_servers;

/// An installation on real brokers, removed on drop.
pub(super) struct Installation(pub(super) KafkaConfig);

impl Installation {
    pub(super) fn named() -> Installation {
        let mut config = config(test_servers::addresses("kafka"));
        let access = test_servers::access("kafka");
        config.tls = access.tls;
        config.sasl.mechanism = access
            .username
            .is_some()
            .then_some(SaslMechanism::ScramSha512);
        config.sasl.username = access.username;
        config.sasl.password_file = access.password_file;
        if config.brokers.len() > 2 {
            config.replication_factor = 3;
            config.min_insync_replicas = 2;
        }
        Installation(config)
    }

    pub(super) async fn new() -> Installation {
        let installation = Installation::named();
        topics::apply(&installation.0).await.unwrap();
        installation
    }

    pub(super) async fn connect(&self) -> KafkaQueue {
        KafkaQueue::connect(self.0.clone()).await.unwrap()
    }

    /// Deletes topics, and waits until brokers say so ten times in a row: each answers from its own
    /// copy of the cluster's state.
    async fn delete_and_wait(&self, topics: &[&str]) {
        self.delete(topics).await;
        let wait = async {
            let mut agreeing_answers = 0;
            while agreeing_answers < 10 {
                let is_gone = match topics::check(&self.0).await {
                    Ok(differences) => topics.iter().all(|topic| {
                        let topic = (*topic).to_owned();
                        differences.contains(&Difference::Missing { topic })
                    }),
                    // A broker that knows of half of the deletion.
                    Err(_) => false,
                };
                agreeing_answers = if is_gone { agreeing_answers + 1 } else { 0 };
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let end = tokio::time::timeout(Duration::from_secs(60), wait).await;
        end.expect("brokers forget the topics");
    }

    async fn delete(&self, topics: &[&str]) {
        let admin: AdminClient<DefaultClientContext> =
            settings::client(&self.0).unwrap().create().unwrap();
        let deletion = admin.delete_topics(topics, &AdminOptions::new());
        deletion.await.unwrap();
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let installation = Installation(self.0.clone());
        let thread = std::thread::spawn(move || {
            let installation = std::mem::ManuallyDrop::new(installation);
            let layout = Layout::from_config(&installation.0);
            let meta = layout.meta();
            let names: Vec<&str> = layout
                .topics()
                .map(|(_, name, _)| name)
                .chain([meta.as_str()])
                .collect();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(installation.delete(&names));
        });
        let _ = thread.join();
    }
}

struct OnBrokers {
    installation: Installation,
    queue: KafkaQueue,
}

#[async_trait]
impl World for OnBrokers {
    fn queue(&self) -> Arc<dyn Queue> {
        Arc::new(self.queue.clone())
    }

    async fn crash(&mut self) {
        self.queue = self.installation.connect().await;
    }
}

async fn keeps_the_contract(protocol: GroupProtocol) {
    contract::all(move || {
        Box::pin(async move {
            let mut installation = Installation::new().await;
            installation.0.consumer.protocol = protocol;
            let queue = installation.connect().await;
            OnBrokers {
                installation,
                queue,
            }
        })
    })
    .await;
}

// proves S1-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn keeps_the_contract_on_brokers() {
    keeps_the_contract(GroupProtocol::Classic).await;
    test_servers::ran("queue", "kafka");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn keeps_the_contract_where_brokers_decide_for_groups() {
    keeps_the_contract(GroupProtocol::Consumer).await;
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn topics_are_made_checked_and_mended() {
    let installation = Installation::named();
    let config = &installation.0;
    let differences = topics::check(config).await.unwrap();
    assert_eq!(differences.len(), 11, "{differences:?}");
    assert!(
        differences
            .iter()
            .all(|one| matches!(one, Difference::Missing { .. }))
    );
    let first_changes = topics::apply(config).await.unwrap();
    let is_created = |change: &&Change| matches!(change, Change::Created { .. });
    assert_eq!(first_changes.iter().filter(is_created).count(), 11);
    assert!(first_changes.contains(&Change::Epoch { from: None, to: 1 }));
    assert_eq!(topics::check(config).await.unwrap(), []);
    assert_eq!(topics::apply(config).await.unwrap(), []);

    let mut other = config.clone();
    other.retention.message *= 2;
    other.retention.dead /= 2;
    other.partitions.message = 8;
    // Messages and retries stay for longer; partitions of one, dead letters of two kinds and
    // operations differ otherwise.
    assert_eq!(topics::check(&other).await.unwrap().len(), 10);
    let changes = topics::apply(&other).await.unwrap();
    let leftovers = changes
        .iter()
        .filter(|change| matches!(change, Change::Left(_)));
    assert_eq!((changes.len(), leftovers.count()), (10, 4), "{changes:?}");
    let second_check = topics::check(config).await.unwrap();
    let is_retention = |one: &Difference| matches!(one, Difference::Setting { name, .. } if *name == "retention.ms");
    assert!(second_check.iter().all(is_retention), "{second_check:?}");
    assert_eq!(second_check.len(), 6, "{second_check:?}");
    let error = KafkaQueue::connect(other).await.err().unwrap();
    assert!(error.source.to_string().contains("set partitions to 4"));
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_log_that_is_made_anew_has_a_new_epoch() {
    let installation = Installation::new().await;
    let config = &installation.0;
    let layout = Layout::from_config(config);
    assert_eq!(installation.connect().await.epoch(), 1);
    installation
        .delete_and_wait(&[layout.name(Topic::Message)])
        .await;
    let error = KafkaQueue::connect(config.clone()).await.err().unwrap();
    assert!(error.source.to_string().contains("packetboat topics apply"));
    let changes = topics::apply(config).await.unwrap();
    let to = 2;
    assert!(
        changes.contains(&Change::Epoch { from: Some(1), to }),
        "{changes:?}"
    );
    assert_eq!(installation.connect().await.epoch(), 2);
    // Without topic `meta` nobody knows the epoch of the older log.
    installation.delete_and_wait(&[&layout.meta()]).await;
    let error = topics::apply(config).await.err().unwrap();
    assert!(error.source.to_string().contains("epoch_min"));
    let raised_config = KafkaConfig {
        epoch_min: 9,
        ..config.clone()
    };
    topics::apply(&raised_config).await.unwrap();
    assert_eq!(installation.connect().await.epoch(), 9);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn retention_that_overtakes_a_group_is_told() {
    let installation = Installation::new().await;
    let queue = installation.connect().await;
    queue.producer().publish(numbered(at(0), 0..10)).await;
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    receive(consumer.as_mut(), 10).await;
    consumer.commit(&[(at(0), 2)]).await.unwrap();
    drop(consumer);
    let admin: AdminClient<DefaultClientContext> =
        settings::client(&queue.config).unwrap().create().unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    let topic = queue.layout.name(Topic::Message);
    list.add_partition_offset(topic, 0, rdkafka::Offset::Offset(5))
        .unwrap();
    admin
        .delete_records(&list, &AdminOptions::new())
        .await
        .unwrap();
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    let report = async {
        loop {
            match consumer.poll(10).await {
                Ok(Polled::Records(records)) => panic!("skipped to {}", records[0].offset),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    let report = tokio::time::timeout(TEST_TIMEOUT, report).await.unwrap();
    assert_eq!(report.kind, Kind::Corrupt);
    let text = report.source.to_string();
    assert!(
        text.contains("message/0 continues at 2, but the log has 5 to 10"),
        "{text}"
    );
}

const CHILD_PREFIX: &str = "PACKETBOAT_TEST_TOPIC_PREFIX";

/// A separate process that holds partitions until it is killed.
#[tokio::test]
#[ignore = "the other half of a test: does nothing alone"]
async fn a_member_that_will_be_killed() {
    let Ok(prefix) = std::env::var(CHILD_PREFIX) else {
        return;
    };
    let installation = std::mem::ManuallyDrop::new(Installation::named());
    let config = KafkaConfig {
        topic_prefix: prefix,
        ..installation.0.clone()
    };
    let queue = KafkaQueue::connect(config).await.unwrap();
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    loop {
        consumer.poll(100).await.unwrap();
    }
}

struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_killed_member_is_replaced_within_the_session_timeout() {
    let installation = Installation::new().await;
    let queue = installation.connect().await;
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact"])
        .arg("queue::kafka::tests::real::a_member_that_will_be_killed")
        .env(CHILD_PREFIX, &queue.config.topic_prefix)
        .stdout(Stdio::null())
        .spawn();
    let child = ChildGuard(child.unwrap());
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    let mut held_count: usize = 0;
    let mut is_shared = false;
    // The process may be alone at first; then the members hold two each.
    while !(is_shared && held_count == 2) {
        match next_change(consumer.as_mut()).await {
            Polled::Assigned(more) => held_count += more.len(),
            Polled::Revoked(less) | Polled::Lost(less) => held_count -= less.len(),
            Polled::Records(_) => {}
        }
        is_shared = held_count <= 2;
    }
    drop(child);
    let killed_at = Instant::now();
    while held_count < 4 {
        match next_change(consumer.as_mut()).await {
            Polled::Assigned(more) => held_count += more.len(),
            Polled::Revoked(less) | Polled::Lost(less) => held_count -= less.len(),
            Polled::Records(_) => {}
        }
    }
    let duration = killed_at.elapsed();
    println!("replaced after {duration:?}");
    let consumer = &queue.config.consumer;
    assert!(consumer.session_timeout * 3 < consumer.poll_interval_max);
    assert!(
        duration < consumer.poll_interval_max,
        "it is not waited for"
    );
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_resumed_partition_goes_on_at_once() {
    let installation = Installation::new().await;
    let queue = installation.connect().await;
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    while !matches!(next_change(consumer.as_mut()).await, Polled::Assigned(_)) {}
    let mut durations = Vec::new();
    for n in 0..50 {
        consumer.pause(&[at(0)]);
        queue.producer().publish(numbered(at(0), n..n + 1)).await;
        let pause = Duration::from_millis(20);
        let poll = tokio::time::timeout(pause, consumer.poll(10)).await;
        assert!(poll.is_err(), "{poll:?}");
        let resumed_at = Instant::now();
        consumer.resume(&[at(0)]);
        let records = receive(consumer.as_mut(), 1).await;
        assert_eq!(records[0].value, n.to_string());
        durations.push(resumed_at.elapsed());
    }
    durations.sort();
    println!("resumed within {:?}", durations.last());
    // The machine may stand still now and then.
    assert!(durations[durations.len() / 2] < Duration::from_millis(500));
}
