pub(super) mod mock;
#[allow(clippy::print_stdout, reason = "says what was measured")]
mod real;
#[allow(clippy::print_stdout, reason = "says what was measured")]
mod speed;
mod truncated;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::clock::{Entropy, SystemEntropy};
use crate::queue::{NewRecord, Polled};

/// Far more than anything here takes: groups need seconds to agree.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn at(number: u32) -> Partition {
    Partition {
        topic: Topic::Message,
        number,
    }
}

pub(super) fn numbered(partition: Partition, range: std::ops::Range<usize>) -> Vec<NewRecord> {
    let record = |n: usize| NewRecord {
        partition,
        key: Bytes::from_static(b"key"),
        headers: Vec::new(),
        value: n.to_string().into(),
    };
    range.map(record).collect()
}

/// Reads a partition's values. The first broker asked may be the one that is down; the next try
/// then reaches another.
async fn values(queue: &KafkaQueue, partition: Partition) -> Vec<usize> {
    let records = loop {
        match queue.read(partition, 0, 10_000).await {
            Ok(records) => break records,
            Err(error) => assert_eq!(error.kind, Kind::Unavailable, "{error:?}"),
        }
    };
    let value = |record: &Record| std::str::from_utf8(&record.value).unwrap().parse().unwrap();
    records.iter().map(value).collect()
}

/// Configures a new installation of four partitions. Mock brokers come as one string.
fn config(brokers: Vec<String>) -> KafkaConfig {
    let brokers = brokers.iter().flat_map(|brokers| brokers.split(','));
    KafkaConfig {
        brokers: brokers.map(str::to_owned).collect(),
        topic_prefix: format!("test-{:016x}-", SystemEntropy.next()),
        partitions: Partitions {
            message: 4,
            retry: 1,
            notification: 1,
        },
        ..KafkaConfig::default()
    }
}

/// Polls until something other than records comes.
async fn next_change(consumer: &mut dyn Consumer) -> Polled {
    let change = async {
        loop {
            match consumer.poll(100).await.unwrap() {
                Polled::Records(_) => {}
                change => return change,
            }
        }
    };
    let change = tokio::time::timeout(TEST_TIMEOUT, change).await;
    change.expect("the group decides")
}

/// Polls until `count` records came.
async fn receive(consumer: &mut dyn Consumer, count: usize) -> Vec<Record> {
    let mut records = Vec::new();
    let all = async {
        while records.len() < count {
            if let Polled::Records(more) = consumer.poll(100).await.unwrap() {
                records.extend(more);
            }
        }
    };
    let all = tokio::time::timeout(TEST_TIMEOUT, all).await;
    all.expect("the records come");
    records
}
