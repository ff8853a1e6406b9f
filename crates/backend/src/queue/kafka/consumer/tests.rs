use super::super::tests::{at, mock, numbered};
use super::*;
use crate::Kind;
use crate::queue::Queue;

/// librdkafka reports a place once; a search begun before the partition was placed finds nothing.
#[tokio::test]
async fn a_place_reported_amid_a_search_is_searched_too() {
    let (_brokers, queue) = mock::installed(|_| {}).await;
    queue.producer().publish(numbered(at(0), 0..3)).await;
    mock::stand(&queue, 1000);
    let (config, layout) = (queue.config.clone(), queue.layout.clone());
    let mut consumer = KafkaConsumer::join(config, layout, "carrier", Topic::Message).unwrap();
    consumer.searching = Some(tokio::spawn(async {
        tokio::time::sleep(Duration::from_secs(8)).await;
        Ok(Vec::new())
    }));
    let error = async {
        loop {
            if let Err(error) = consumer.poll(10).await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(30), error).await;
    let error = error.expect("the search after it finds the place");
    assert_eq!(error.kind, Kind::Corrupt);
}
