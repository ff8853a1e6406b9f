//! A log that lost its tail and grew again: records accepted since then are at offsets that the
//! group has passed. A group that continued at its offset would skip them.

use std::process::{Command, Stdio};

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;

use super::super::consumer::rebalance::truncated_at;
use super::real::Installation;
use super::*;
use crate::Error;
use crate::test_servers;

/// Polls until an error, and collects the records of other partitions; none of `partition` may
/// come.
async fn refusal(consumer: &mut dyn Consumer, partition: Partition) -> (Error, Vec<Record>) {
    let mut other_records = Vec::new();
    let outcome = async {
        loop {
            match consumer.poll(100).await {
                Ok(Polled::Records(records)) => {
                    for record in records {
                        assert_ne!(record.partition, partition, "skipped to {}", record.offset);
                        other_records.push(record);
                    }
                }
                Ok(_) => {}
                // Brokers come and go.
                Err(error) if error.kind == Kind::Unavailable => {}
                Err(error) => return error,
            }
        }
    };
    let outcome = tokio::time::timeout(TEST_TIMEOUT, outcome).await;
    (outcome.expect("the group is told"), other_records)
}

#[test]
fn librdkafka_says_where_in_words_alone() {
    let code = "Local: Partition log truncation detected";
    let reasons = [
        "Partition log truncation detected at offset 1000 (leader epoch 3): broker end offset is 950 \
         (offset leader epoch 3). Reset to INVALID.",
        "No epoch found less or equal to offset 1000 (leader epoch 3): broker end offset is -1 (offset \
         leader epoch -1). Reset using configured policy.",
    ];
    for reason in reasons {
        assert_eq!(
            truncated_at(&format!("{reason}: {code} (broker 1)")),
            Some(1000)
        );
        assert_eq!(truncated_at(reason), None, "another error's words");
    }
}

// holes 5: after a change of leaders, mock brokers no longer know the epoch of the records.
#[tokio::test]
async fn a_group_does_not_go_on_behind_what_the_log_lost() {
    let (brokers, queue) = super::mock::installed(|_| {}).await;
    let topic = queue.layout.name(Topic::Message).to_owned();
    let producer = queue.producer();
    brokers.partition_leader(&topic, 0, Some(1)).unwrap();
    producer.publish(numbered(at(0), 0..3)).await;
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    receive(consumer.as_mut(), 3).await;
    consumer.commit(&[(at(0), 3)]).await.unwrap();
    drop(consumer);
    brokers.partition_leader(&topic, 0, Some(2)).unwrap();

    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    let (error, _) = refusal(consumer.as_mut(), at(0)).await;
    assert_eq!(error.kind, Kind::Corrupt);
    let text = error.source.to_string();
    assert!(
        text.contains("message/0 continues at 3, but the log has 0 to 3 after it lost its tail"),
        "{text}"
    );
    // Resetting offsets alone would make records accepted since then look like repeats.
    assert!(text.contains("kafka.epoch_min"), "{text}");
    // The partition stays stopped when its log has grown, while others continue.
    producer.publish(numbered(at(0), 3..9)).await;
    producer.publish(numbered(at(1), 0..3)).await;
    let mut record_count = 0;
    while record_count < 3 {
        if let Polled::Records(records) = consumer.poll(10).await.unwrap() {
            assert!(records.iter().all(|record| record.partition == at(1)));
            record_count += records.len();
        }
    }
    assert_eq!(queue.committed("carrier", at(0)).await.unwrap(), Some(3));
}

fn kafka(verb: &str, words: &[&str]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/real/kafka");
    let mut command = Command::new(script);
    let status = command.arg(verb).args(words).stdin(Stdio::null()).status();
    assert!(status.unwrap().success(), "kafka {verb} {words:?}");
}

/// Restarts the brokers when dropped, however the test ends.
struct Back(&'static [&'static str]);

impl Drop for Back {
    fn drop(&mut self) {
        kafka("start", self.0);
    }
}

/// Publishes `count` records, repeating each until it is appended.
async fn append(queue: &KafkaQueue, count: usize) {
    let producer = queue.producer();
    for n in 0..count {
        while producer.publish(numbered(at(0), n..n + 1)).await[0].is_err() {}
    }
}

// Records accepted while one of two copies is away are lost with the other copy.
#[tokio::test]
#[ignore = "kills brokers: make campaign"]
async fn records_accepted_after_a_loss_are_not_skipped() {
    assert_eq!(test_servers::addresses("kafka").len(), 3, "three brokers");
    let mut installation = Installation::named();
    installation.0.min_insync_replicas = 1;
    installation.0.unsafe_single_copy = true;
    installation.0.producer.publish_timeout = Duration::from_secs(5);
    topics::apply(&installation.0).await.unwrap();
    let topic = Layout::from_config(&installation.0)
        .name(Topic::Message)
        .to_owned();
    kafka("place", &[&topic, "0", "2", "3"]);
    let admin: AdminClient<DefaultClientContext> =
        settings::client(&installation.0).unwrap().create().unwrap();
    let unclean = AlterConfig::new(ResourceSpecifier::Topic(&topic))
        .set("unclean.leader.election.enable", "true")
        .set("min.insync.replicas", "1");
    admin
        .alter_configs(&[unclean], &AdminOptions::new())
        .await
        .unwrap();
    let queue = installation.connect().await;
    append(&queue, 100).await;
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    receive(consumer.as_mut(), 100).await;

    let back = Back(&["2", "3"]);
    kafka("stop", &["3"]);
    append(&queue, 100).await;
    receive(consumer.as_mut(), 100).await;
    consumer.commit(&[(at(0), 200)]).await.unwrap();
    drop(consumer);
    kafka("stop", &["2"]);
    kafka("start", &["3"]);
    append(&queue, 150).await;
    let (_, end) = loop {
        // The first broker asked may be the one that is down.
        if let Ok(bounds) = queue.bounds(at(0)).await {
            break bounds;
        }
    };
    assert!(end > 200, "the log ends at {end}, beyond the group's place");

    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    let (error, _) = refusal(consumer.as_mut(), at(0)).await;
    let text = error.source.to_string();
    assert_eq!(error.kind, Kind::Corrupt, "{text}");
    assert!(text.contains("message/0 continues at 200"), "{text}");
    drop(back);
}
