//! Failures on librdkafka's mock brokers.

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::*;
use crate::queue::contract::{self, World};

pub(in crate::queue::kafka) type Brokers = MockCluster<'static, DefaultProducerContext>;

/// Creates the topics, which mock brokers do not do on request.
async fn install(brokers: &Brokers, config: &KafkaConfig) {
    let layout = Layout::from_config(config);
    for (_, name, count) in layout.topics() {
        brokers.create_topic(name, count as i32, 3).unwrap();
    }
    brokers.create_topic(&layout.meta(), 1, 3).unwrap();
    epoch::write(config, &layout.meta(), 7).await.unwrap();
}

pub(in crate::queue::kafka) async fn installed(
    adjust: impl FnOnce(&mut KafkaConfig),
) -> (Brokers, KafkaQueue) {
    let brokers = MockCluster::new(3).unwrap();
    let mut config = config(vec![brokers.bootstrap_servers()]);
    adjust(&mut config);
    install(&brokers, &config).await;
    let queue = KafkaQueue::connect(config).await.unwrap();
    assert_eq!(queue.epoch(), 7);
    (brokers, queue)
}

fn in_a_hurry(config: &mut KafkaConfig) {
    // Long enough for whatever is to be accepted on a machine that stands still for seconds.
    config.producer.publish_timeout = Duration::from_secs(10);
    config.request_timeout = Duration::from_secs(10);
}

/// Publishes one record with this number until it is accepted: a producer may need more than one
/// deadline to reconnect to brokers that are back.
async fn accepted_again(producer: &dyn Producer, partition: Partition, number: usize) {
    let acceptance = async {
        while producer
            .publish(numbered(partition, number..number + 1))
            .await[0]
            .is_err()
        {}
    };
    let answer = tokio::time::timeout(TEST_TIMEOUT, acceptance).await;
    answer.expect("brokers that are back take records");
}

fn failed_as(answer: &Result<u64>, kind: Kind) -> bool {
    answer.as_ref().is_err_and(|error| error.kind == kind)
}

struct OnMock {
    config: KafkaConfig,
    queue: KafkaQueue,
}

#[async_trait]
impl World for OnMock {
    fn queue(&self) -> Arc<dyn Queue> {
        Arc::new(self.queue.clone())
    }

    async fn crash(&mut self) {
        self.queue = KafkaQueue::connect(self.config.clone()).await.unwrap();
    }
}

// proves S1-02
#[tokio::test]
async fn keeps_the_contract_on_played_brokers() {
    let brokers = MockCluster::new(3).unwrap();
    let servers = brokers.bootstrap_servers();
    let mut configs = Vec::new();
    for _ in 0..contract::WORLDS {
        let config = config(vec![servers.clone()]);
        install(&brokers, &config).await;
        configs.push(config);
    }
    let configs = parking_lot::Mutex::new(configs);
    contract::all_at_once(|| {
        let config = configs.lock().pop().expect("a world for each check");
        Box::pin(async move {
            let queue = KafkaQueue::connect(config.clone()).await.unwrap();
            OnMock { config, queue }
        })
    })
    .await;
}

#[tokio::test]
async fn unreachable_brokers_and_missing_topics_are_reported() {
    let mut unreachable = config(vec!["127.0.0.1:1".into()]);
    unreachable.request_timeout = Duration::from_secs(2);
    let error = KafkaQueue::connect(unreachable).await.err().unwrap();
    assert_eq!(error.kind, Kind::Unavailable);

    let brokers = MockCluster::new(1).unwrap();
    let mut config = config(vec![brokers.bootstrap_servers()]);
    // Otherwise mock brokers would create any topic they are asked for.
    for (_, name, _) in Layout::from_config(&config).topics() {
        let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        brokers.topic_error(name, unknown).unwrap();
    }
    let error = KafkaQueue::connect(config.clone()).await.err().unwrap();
    assert_eq!(error.kind, Kind::Conflict);
    assert!(error.source.to_string().contains("packetboat topics apply"));

    config.topic_prefix = "other-".into();
    brokers.create_topic("other-message", 8, 1).unwrap();
    let error = KafkaQueue::connect(config).await.err().unwrap();
    assert_eq!(error.kind, Kind::Conflict);
    assert!(error.source.to_string().contains("set partitions to 8"));
}

#[tokio::test]
async fn transient_refusals_are_retried_in_order() {
    let (brokers, queue) = installed(|_| {}).await;
    let refusals = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
    ];
    brokers.request_errors(RDKafkaApiKey::Produce, &refusals);
    let producer = queue.producer();
    for n in 0..20 {
        let answers = producer.publish(numbered(at(0), 5 * n..5 * (n + 1))).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    assert_eq!(values(&queue, at(0)).await, (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_new_leader_goes_on_where_the_old_one_was() {
    let (brokers, queue) = installed(|_| {}).await;
    let topic = queue.layout.name(Topic::Message).to_owned();
    let producer = queue.producer();
    for n in 0..30 {
        brokers
            .partition_leader(&topic, 0, Some(1 + (n as i32 / 3) % 3))
            .unwrap();
        let answers = producer.publish(numbered(at(0), 2 * n..2 * (n + 1))).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    assert_eq!(values(&queue, at(0)).await, (0..60).collect::<Vec<_>>());
}

#[tokio::test]
async fn publishes_fail_without_brokers_and_recover_later() {
    let (brokers, queue) = installed(in_a_hurry).await;
    let producer = queue.producer();
    let first_answers = producer.publish(numbered(at(0), 0..3)).await;
    assert!(first_answers.iter().all(Result::is_ok));
    brokers.broker_down(-1).unwrap();
    let answers = producer.publish(numbered(at(0), 3..6)).await;
    assert!(
        answers
            .iter()
            .all(|answer| failed_as(answer, Kind::Unavailable)),
        "{answers:?}"
    );
    brokers.broker_up(-1).unwrap();
    accepted_again(producer.as_ref(), at(0), 6).await;
    // The failed records were discarded before they could be sent.
    assert_eq!(values(&queue, at(0)).await, [0, 1, 2, 6]);
}

#[tokio::test]
async fn a_partition_whose_leader_is_away_fails_alone() {
    let (brokers, queue) = installed(in_a_hurry).await;
    let topic = queue.layout.name(Topic::Message).to_owned();
    let producer = queue.producer();
    brokers.partition_leader(&topic, 0, Some(3)).unwrap();
    brokers.partition_leader(&topic, 1, Some(1)).unwrap();
    assert!(producer.publish(numbered(at(0), 0..1)).await[0].is_ok());
    brokers.broker_down(3).unwrap();
    let sick = tokio::spawn({
        let producer = producer.clone();
        async move { producer.publish(numbered(at(0), 1..4)).await }
    });
    let mut count = 0;
    while !sick.is_finished() {
        let answers = producer.publish(numbered(at(1), count..count + 1)).await;
        assert!(answers[0].is_ok(), "{answers:?}");
        count += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let sick = sick.await.unwrap();
    assert!(
        sick.iter()
            .all(|answer| failed_as(answer, Kind::Unavailable)),
        "{sick:?}"
    );
    assert_eq!(values(&queue, at(1)).await, (0..count).collect::<Vec<_>>());
    brokers.broker_up(3).unwrap();
    accepted_again(producer.as_ref(), at(0), 1).await;
    assert_eq!(values(&queue, at(0)).await, [0, 1]);
}

#[tokio::test]
async fn a_publish_of_several_partitions_waits_for_none_that_is_away() {
    let (brokers, queue) = installed(|_| {}).await;
    let topic = queue.layout.name(Topic::Message).to_owned();
    let producer = queue.producer();
    brokers.partition_leader(&topic, 0, Some(3)).unwrap();
    brokers.partition_leader(&topic, 1, Some(1)).unwrap();
    for partition in [at(0), at(1)] {
        assert!(producer.publish(numbered(partition, 0..1)).await[0].is_ok());
    }
    brokers.broker_down(3).unwrap();
    // Within one generation: a new one may need longer for its first records.
    for n in 0..5 {
        let mut records = numbered(at(0), 1 + n..2 + n);
        records.extend(numbered(at(1), 1 + n..2 + n));
        let answers = producer
            .publish_within(records, Duration::from_secs(4))
            .await;
        assert!(!matches!(answers[0], Some(Ok(_))), "{answers:?}");
        assert!(matches!(answers[1], Some(Ok(_))), "{n}: {answers:?}");
    }
    assert_eq!(values(&queue, at(1)).await, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn no_record_is_appended_after_a_permanent_refusal() {
    let (brokers, queue) = installed(in_a_hurry).await;
    let producer = queue.producer();
    let refusal = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED];
    // More than one request holds.
    let mut records = numbered(at(0), 0..40);
    for record in &mut records {
        record.headers = vec![("padding".into(), vec![7; 100_000].into())];
    }
    brokers.request_errors(RDKafkaApiKey::Produce, &refusal);
    let answers = producer.publish(records).await;
    // The second request was not sent yet: mock brokers would have accepted it.
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    // By a new producer.
    accepted_again(producer.as_ref(), at(0), 100).await;
    assert_eq!(values(&queue, at(0)).await, [100]);
}

#[tokio::test]
async fn a_full_buffer_lets_publishers_wait_and_then_fail() {
    let (brokers, queue) = installed(|config| {
        in_a_hurry(config);
        config.producer.buffer_bytes = 64 << 10;
    })
    .await;
    let producer = queue.producer();
    let large = |n: usize| {
        let mut records = numbered(at(0), n..n + 1);
        records[0].headers = vec![("padding".into(), vec![7; 40 << 10].into())];
        records
    };
    brokers.broker_down(-1).unwrap();
    let first = tokio::spawn({
        let (producer, records) = (producer.clone(), large(0));
        async move { producer.publish(records).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let second = tokio::time::timeout(Duration::from_millis(500), producer.publish(large(1)));
    assert!(second.await.is_err(), "it waits for room");
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!first.is_finished(), "and holds no thread meanwhile");
    assert!(failed_as(&first.await.unwrap()[0], Kind::Unavailable));
    brokers.broker_up(-1).unwrap();
    accepted_again(producer.as_ref(), at(0), 2).await;
    let stored_values = values(&queue, at(0)).await;
    assert!(
        !stored_values.contains(&1),
        "what was dropped in the queue was never sent"
    );
    assert_eq!(stored_values.last(), Some(&2));
}

#[tokio::test]
async fn a_publish_that_is_dropped_harms_no_other() {
    let (brokers, queue) = installed(in_a_hurry).await;
    brokers
        .broker_round_trip_time(-1, Duration::from_millis(50))
        .unwrap();
    let producer = queue.producer();
    for n in 0..10 {
        let publish = producer.publish(numbered(at(0), 10 * n..10 * n + 5));
        let _ = tokio::time::timeout(Duration::from_millis(1), publish).await;
    }
    let answers = producer.publish(numbered(at(0), 100..101)).await;
    assert!(answers[0].is_ok());
    let stored_values = values(&queue, at(0)).await;
    assert!(stored_values.is_sorted(), "{stored_values:?}");
    assert_eq!(stored_values.last(), Some(&100));
}

/// Commits `next`, an offset that the first partition's log does not have.
pub(in crate::queue::kafka) fn stand(queue: &KafkaQueue, next: i64) {
    use rdkafka::consumer::{CommitMode, Consumer as _};
    let group = queue.layout.group("carrier", Topic::Message);
    let client = reader::connect(&queue.config, &group).unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    let topic = queue.layout.name(Topic::Message);
    list.add_partition_offset(topic, 0, rdkafka::Offset::Offset(next))
        .unwrap();
    client.commit(&list, CommitMode::Sync).unwrap();
}

#[tokio::test]
async fn records_that_are_gone_are_told_and_not_skipped() {
    let (_brokers, queue) = installed(|_| {}).await;
    let producer = queue.producer();
    producer.publish(numbered(at(0), 0..3)).await;
    producer.publish(numbered(at(1), 0..3)).await;
    stand(&queue, 1000);
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    let mut read = Vec::new();
    let report = async {
        let mut report = None;
        while report.is_none() || read.len() < 3 {
            match consumer.poll(10).await {
                Ok(Polled::Records(records)) => read.extend(records),
                Ok(_) => {}
                Err(error) => report = Some(error),
            }
        }
        report.unwrap()
    };
    let report = tokio::time::timeout(TEST_TIMEOUT, report);
    let report = report.await.expect("it is told, and the others are read");
    assert_eq!(report.kind, Kind::Corrupt);
    let text = report.source.to_string();
    assert!(
        text.contains("message/0 continues at 1000, but the log has 0 to 3"),
        "{text}"
    );
    assert!(read.iter().all(|record| record.partition == at(1)));
    assert_eq!(queue.committed("carrier", at(0)).await.unwrap(), Some(1000));
}

#[tokio::test]
async fn a_member_that_does_not_poll_loses_its_partitions() {
    let (_brokers, queue) = installed(|config| {
        // Only `silent_member` is to be late.
        config.consumer.session_timeout = Duration::from_secs(10);
        config.consumer.poll_interval_max = Duration::from_secs(10);
    })
    .await;
    queue.producer().publish(numbered(at(0), 0..3)).await;
    let mut silent_member = queue.subscribe("carrier", Topic::Message).await.unwrap();
    assert!(matches!(
        next_change(silent_member.as_mut()).await,
        Polled::Assigned(_)
    ));
    receive(silent_member.as_mut(), 3).await;
    let mut other = queue.subscribe("carrier", Topic::Message).await.unwrap();
    let mut assigned_count = 0;
    while assigned_count < 4 {
        if let Polled::Assigned(more) = next_change(other.as_mut()).await {
            assigned_count += more.len();
        }
    }
    assert_eq!(receive(other.as_mut(), 3).await.len(), 3);
    let error = silent_member.commit(&[(at(0), 3)]).await.unwrap_err();
    assert_eq!(error.kind, Kind::Conflict, "{error:?}");
    let mut lost_partitions = Vec::new();
    while !lost_partitions.contains(&at(0)) {
        match next_change(silent_member.as_mut()).await {
            Polled::Lost(more) => lost_partitions.extend(more),
            // The member polls, so it rejoins.
            Polled::Assigned(_) => {}
            other => panic!("nothing is left to be given up: {other:?}"),
        }
    }
    assert_eq!(queue.committed("carrier", at(0)).await.unwrap(), None);
}
