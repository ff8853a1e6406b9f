//! Splits a publish that spans partitions into one publish per partition, so that none waits for
//! another.

use std::collections::BTreeMap;
use std::future::Future;

use futures_util::future::join_all;

use super::{NewRecord, Partition};
use crate::Result;

/// Publishes the records of each partition separately and concurrently. Answers are in record
/// order; `None` marks a record that `publish` left unanswered.
pub(super) async fn each_partition<F, P>(
    records: Vec<NewRecord>,
    publish: F,
) -> Vec<Option<Result<u64>>>
where
    F: Fn(Vec<NewRecord>) -> P,
    P: Future<Output = Vec<Result<u64>>>,
{
    let mut order = Vec::with_capacity(records.len());
    let mut parts: BTreeMap<Partition, Vec<NewRecord>> = BTreeMap::new();
    for record in records {
        order.push(record.partition);
        parts.entry(record.partition).or_default().push(record);
    }
    let publishes = parts.into_iter().map(|(partition, records)| {
        let answers = publish(records);
        async move { (partition, answers.await.into_iter()) }
    });
    let publishes = join_all(publishes).await;
    let mut answers: BTreeMap<Partition, _> = publishes.into_iter().collect();
    let next = |partition: Partition| answers.get_mut(&partition).and_then(Iterator::next);
    order.into_iter().map(next).collect()
}
