use super::super::KafkaQueue;
use super::super::tests::{TEST_TIMEOUT, at, mock, numbered};
use super::*;
use crate::Kind;
use crate::queue::Queue;

fn member(queue: &KafkaQueue) -> KafkaConsumer {
    let (config, layout) = (queue.config.clone(), queue.layout.clone());
    let renewals = queue.renewal.renewals();
    KafkaConsumer::join(config, layout, "carrier", Topic::Message, renewals).unwrap()
}

/// librdkafka reports an offset once; a search begun before the partition was placed finds nothing.
#[tokio::test]
async fn a_place_reported_amid_a_search_is_searched_too() {
    let (_brokers, queue) = mock::installed(|_| {}).await;
    queue.producer().publish(numbered(at(0), 0..3)).await;
    mock::stand(&queue, 1000);
    let mut consumer = member(&queue);
    consumer.search_task = Some(tokio::spawn(async {
        tokio::time::sleep(Duration::from_secs(8)).await;
        Ok(Search::default())
    }));
    let error = async {
        loop {
            if let Err(error) = consumer.poll(10).await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(TEST_TIMEOUT, error).await;
    let error = error.expect("the search after it finds the place");
    assert_eq!(error.kind, Kind::Corrupt);
}

/// Polls until the group's offsets are known but nothing is assigned. `None` if they arrived during
/// a poll that already went on.
async fn starts(consumer: &mut KafkaConsumer) -> Option<Starts> {
    loop {
        if consumer.poll(10).now_or_never().is_some() {
            return None;
        }
        if let Some(AssignmentTask { step, .. }) = &mut consumer.assignment_task
            && let AssignmentStep::Asked(lookup) = step
        {
            let starts = lookup.await.unwrap().unwrap();
            *step = AssignmentStep::Ask;
            return Some(starts);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Member that knows where to start, but has nothing assigned yet.
async fn joined_member(queue: &KafkaQueue) -> (KafkaConsumer, Starts) {
    loop {
        let mut consumer = member(queue);
        if let Some(starts) = starts(&mut consumer).await {
            return (consumer, starts);
        }
    }
}

/// librdkafka stops a partition whose offset is gone and refuses every later seek in it.
#[tokio::test]
async fn missing_offset_before_the_first_seek_blocks_no_partition() {
    let (_brokers, queue) = mock::installed(|_| {}).await;
    let producer = queue.producer();
    producer.publish(numbered(at(0), 0..3)).await;
    producer.publish(numbered(at(1), 0..3)).await;
    mock::stand(&queue, 1000);
    let (mut consumer, starts) = joined_member(&queue).await;
    apply_assignment(consumer.client().unwrap().as_ref(), true, &starts);
    if let Some(task) = &mut consumer.assignment_task {
        let seek_at = Instant::now() + Duration::from_secs(3);
        task.step = AssignmentStep::Seek {
            starts,
            seek_at,
            rejoin_at: seek_at + REMINDER_INTERVAL,
        };
    }
    let (mut error, mut read, mut assigned_count) = (None, 0, 0);
    let all = async {
        while error.is_none() || read < 3 {
            match consumer.poll(10).await {
                Ok(Polled::Records(records)) => read += records.len(),
                Ok(Polled::Assigned(partitions)) => assigned_count += partitions.len(),
                Ok(other) => panic!("{other:?}"),
                Err(why) => error = Some(why),
            }
        }
    };
    let all = tokio::time::timeout(TEST_TIMEOUT, all).await;
    all.expect("the error, and the records of the other partition");
    assert_eq!(error.unwrap().kind, Kind::Corrupt);
    assert_eq!((read, assigned_count), (3, 4));
}

/// Polls until `count` records came; returns the sizes of changes in order, and the offsets of the
/// first partition's records.
async fn changes_until(
    consumer: &mut KafkaConsumer,
    count: usize,
) -> (Vec<(&'static str, usize)>, Vec<u64>) {
    let (mut changes, mut offsets) = (Vec::new(), Vec::new());
    let all = async {
        while offsets.len() < count {
            match consumer.poll(10).await.expect("nothing is wrong") {
                Polled::Records(records) => {
                    assert!(records.iter().all(|record| record.partition == at(0)));
                    offsets.extend(records.iter().map(|record| record.offset));
                }
                Polled::Assigned(partitions) => changes.push(("assigned", partitions.len())),
                Polled::Revoked(partitions) => changes.push(("revoked", partitions.len())),
                Polled::Lost(partitions) => changes.push(("lost", partitions.len())),
            }
        }
    };
    let all = tokio::time::timeout(TEST_TIMEOUT, all).await;
    all.expect("the records are read");
    (changes, offsets)
}

/// A leader that lags behind the group's offset for a moment. The member would have stayed in its
/// first seek for ever, and answered no rebalance.
#[tokio::test]
async fn a_member_whose_first_seek_is_refused_joins_anew() {
    let (_brokers, queue) = mock::installed(|_| {}).await;
    let producer = queue.producer();
    producer.publish(numbered(at(0), 0..3)).await;
    mock::stand(&queue, 5);
    let (mut consumer, starts) = joined_member(&queue).await;
    let client = consumer.client().unwrap().clone();
    apply_assignment(client.as_ref(), true, &starts);
    let report = async {
        loop {
            match client.stream().next().await {
                Some(Err(error)) if is_offset_missing(&error) => return error,
                _ => {}
            }
        }
    };
    let report = tokio::time::timeout(TEST_TIMEOUT, report).await;
    let report = report.expect("the log ends at 3");
    producer.publish(numbered(at(0), 3..9)).await;
    let now = Instant::now();
    consumer.assignment_task.as_mut().unwrap().step = AssignmentStep::Seek {
        starts,
        seek_at: now,
        rejoin_at: now,
    };
    consumer.handle_error(&client, report).unwrap();
    drop(client);
    let (changes, offsets) = changes_until(&mut consumer, 4).await;
    assert_eq!(offsets, [5, 6, 7, 8]);
    assert_eq!(changes, [("assigned", 4)], "only what was held is revoked");
}

/// The same while the partition is read: what the member has read may still be committed.
#[tokio::test]
async fn a_member_with_a_stopped_partition_joins_anew() {
    let (_brokers, queue) = mock::installed(|_| {}).await;
    let producer = queue.producer();
    producer.publish(numbered(at(0), 0..3)).await;
    let mut consumer = member(&queue);
    changes_until(&mut consumer, 3).await;
    let search = Search {
        stopped_partitions: vec![at(0)],
        ..Search::default()
    };
    consumer.search_task = Some(tokio::spawn(async { Ok(search) }));
    let revocation = async {
        match consumer.poll(10).await.expect("nothing is wrong") {
            Polled::Revoked(partitions) => partitions.len(),
            other => panic!("{other:?}"),
        }
    };
    let revocation = tokio::time::timeout(TEST_TIMEOUT, revocation).await;
    assert_eq!(revocation.expect("the member gives up what it holds"), 4);
    consumer.commit(&[(at(0), 3)]).await.unwrap();
    producer.publish(numbered(at(0), 3..6)).await;
    let (changes, offsets) = changes_until(&mut consumer, 3).await;
    assert_eq!(offsets, [3, 4, 5]);
    assert_eq!(changes, [("assigned", 4)]);
}
