use super::super::tests::{PATIENCE, at, mock, numbered};
use super::*;
use crate::Kind;
use crate::queue::Queue;

/// librdkafka reports an offset once; a search begun before the partition was placed finds nothing.
#[tokio::test]
async fn a_place_reported_amid_a_search_is_searched_too() {
    let (_brokers, queue) = mock::installed(|_| {}).await;
    queue.producer().publish(numbered(at(0), 0..3)).await;
    mock::stand(&queue, 1000);
    let (config, layout) = (queue.config.clone(), queue.layout.clone());
    let renewals = queue.renewal.renewals();
    let consumer = KafkaConsumer::join(config, layout, "carrier", Topic::Message, renewals);
    let mut consumer = consumer.unwrap();
    consumer.searching = Some(tokio::spawn(async {
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
    let error = tokio::time::timeout(PATIENCE, error).await;
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
        if let Some(AssignmentTask { step, .. }) = &mut consumer.placing
            && let AssignmentStep::Asked(asked) = step
        {
            let starts = asked.await.unwrap().unwrap();
            *step = AssignmentStep::Ask;
            return Some(starts);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// librdkafka stops a partition whose offset is gone and refuses every later seek in it.
#[tokio::test]
async fn a_place_reported_before_the_first_seek_keeps_back_no_other_partition() {
    let (_brokers, queue) = mock::installed(|_| {}).await;
    let producer = queue.producer();
    producer.publish(numbered(at(0), 0..3)).await;
    producer.publish(numbered(at(1), 0..3)).await;
    mock::stand(&queue, 1000);
    let (mut consumer, starts) = loop {
        let (config, layout) = (queue.config.clone(), queue.layout.clone());
        let renewals = queue.renewal.renewals();
        let consumer = KafkaConsumer::join(config, layout, "carrier", Topic::Message, renewals);
        let mut consumer = consumer.unwrap();
        if let Some(starts) = starts(&mut consumer).await {
            break (consumer, starts);
        }
    };
    carry_out(consumer.client().unwrap().as_ref(), true, &starts);
    if let Some(placing) = &mut consumer.placing {
        let at = Instant::now() + Duration::from_secs(3);
        placing.step = AssignmentStep::Seek {
            starts,
            at,
            remind_at: at + REMIND,
        };
    }
    let (mut error, mut read, mut assigned) = (None, 0, 0);
    let all = async {
        while error.is_none() || read < 3 {
            match consumer.poll(10).await {
                Ok(Polled::Records(records)) => read += records.len(),
                Ok(Polled::Assigned(partitions)) => assigned += partitions.len(),
                Ok(other) => panic!("{other:?}"),
                Err(why) => error = Some(why),
            }
        }
    };
    let all = tokio::time::timeout(PATIENCE, all).await;
    all.expect("the error, and the records of the other partition");
    assert_eq!(error.unwrap().kind, Kind::Corrupt);
    assert_eq!((read, assigned), (3, 4));
}
