//! Not tests but measurements on real brokers:
//! `cargo test --release -p backend --features kafka kafka::tests::speed -- --ignored --nocapture --test-threads 1`

use super::real::Installation;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it alone, in release"]
async fn publishing() {
    let mut installation = Installation::new().await;
    for linger in [0, 1, 2] {
        installation.0.producer.linger = Duration::from_millis(linger);
        let queue = installation.connect().await;
        let producer = queue.producer();
        let start = Instant::now();
        producer.publish(numbered(at(0), 0..1)).await[0]
            .as_ref()
            .unwrap();
        println!("linger {linger} ms: first publish {:?}", start.elapsed());
        for (publishers, batch) in [(1, 1), (1, 100), (16, 1), (16, 100)] {
            let each = if batch == 1 {
                2000 / publishers
            } else {
                4000 / publishers / 4
            };
            let start = Instant::now();
            let tasks: Vec<_> = (0..publishers)
                .map(|n| {
                    let producer = producer.clone();
                    tokio::spawn(async move {
                        let mut waits = Vec::new();
                        for _ in 0..each {
                            let mut records = numbered(at(n % 4), 0..batch);
                            records
                                .iter_mut()
                                .for_each(|r| r.value = vec![7; 256].into());
                            let sent_at = Instant::now();
                            for answer in producer.publish(records).await {
                                answer.unwrap();
                            }
                            waits.push(sent_at.elapsed());
                        }
                        waits
                    })
                })
                .collect();
            let mut waits = Vec::new();
            for publisher in tasks {
                waits.extend(publisher.await.unwrap());
            }
            waits.sort();
            println!(
                "linger {linger} ms, {publishers:>2} publishers of {batch:>3}: {:>7.0} records/s, p50 {:?}, p99 {:?}",
                (waits.len() * batch) as f64 / start.elapsed().as_secs_f64(),
                waits[waits.len() / 2],
                waits[waits.len() * 99 / 100],
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it alone, in release"]
async fn rebalancing() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let mut installation = Installation::new().await;
        installation.0.consumer.protocol = protocol;
        let queue = installation.connect().await;
        for round in 0..3 {
            let group = format!("carrier-{round}");
            let subscribe = || queue.subscribe(&group, Topic::Message);
            let start = Instant::now();
            let mut a = subscribe().await.unwrap();
            while !matches!(next_change(a.as_mut()).await, Polled::Assigned(_)) {}
            let join_time = start.elapsed();
            let start = Instant::now();
            let mut b = subscribe().await.unwrap();
            let (mut revoke_time, mut assign_time) = (None, None);
            while assign_time.is_none() {
                tokio::select! {
                    biased;
                    outcome = a.poll(10) => {
                        if let Polled::Revoked(_) = outcome.unwrap() {
                            revoke_time = Some(start.elapsed());
                        }
                    }
                    outcome = b.poll(10) => {
                        if let Polled::Assigned(more) = outcome.unwrap() && !more.is_empty() {
                            assign_time = Some(start.elapsed());
                        }
                    }
                }
            }
            drop(b);
            let start = Instant::now();
            while !matches!(next_change(a.as_mut()).await, Polled::Assigned(_)) {}
            println!(
                "{protocol:?}: first joined after {join_time:?}; second asked: revoked {revoke_time:?}, assigned {assign_time:?}; second left: back after {:?}",
                start.elapsed()
            );
        }
    }
}
