use std::sync::atomic::Ordering;

use protocol::Code;
use protocol::frame::ServerFrame;

use super::client::{message, question, send_id, text_send};
use super::eventually;
use super::harbour::{Harbour, settle};
use crate::uplink::lane_calls::{CALLS_MAX, SLOW_CALL};

// proves S3-11, S3-12
#[tokio::test]
async fn a_send_is_accepted_on_either_link() {
    let harbour = Harbour::open().await;
    for mut client in harbour.both().await {
        client.hello(1).await;
        client.send(&text_send(2, 7, "hi")).await;
        match client.next().await {
            Some(ServerFrame::Accepted(accepted)) => assert_eq!(accepted.send_id, send_id(7)),
            other => panic!("{other:?}"),
        }
    }
    let batches = harbour.peer.batches.lock();
    let item = &batches[0][0];
    assert_eq!(
        (item.user, item.device.as_str(), item.platform),
        (1, "phone", 1)
    );
}

#[tokio::test(start_paused = true)]
async fn sends_queued_during_a_call_go_with_the_next_in_order() {
    let harbour = Harbour::piped(|config| config.lanes = 1).await;
    let [mut one, mut other] = harbour.both().await;
    one.hello(1).await;
    other.hello(2).await;
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    one.send(&text_send(9, 1, "first")).await;
    settle().await;
    for number in 2..5 {
        one.send(&text_send(9, number, "later")).await;
    }
    other.send(&text_send(9, 5, "of another")).await;
    settle().await;
    harbour.peer.permits.add_permits(10);
    for number in 1..5 {
        match one.next().await {
            Some(ServerFrame::Accepted(accepted)) => assert_eq!(accepted.send_id, send_id(number)),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(other.next().await, Some(ServerFrame::Accepted(_))));
    let batches = harbour.peer.batches.lock();
    // The second client's send came during the first call; the first client's later ones wait for
    // its own answer.
    assert_eq!(batches[0].len(), 1);
    assert!(batches.len() <= 3, "{}", batches.len());
}

// An unavailable partition of the log holds a call until its deadline: other calls overtake it.
#[tokio::test(start_paused = true)]
async fn a_slow_call_is_overtaken_by_those_of_others() {
    let harbour = Harbour::piped(|config| config.lanes = 1).await;
    let [mut slow, mut other] = harbour.both().await;
    slow.hello(1).await;
    other.hello(2).await;
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    slow.send(&text_send(9, 1, "slow")).await;
    settle().await;
    harbour.peer.holds_calls.store(false, Ordering::Relaxed);
    slow.send(&text_send(9, 2, "behind it")).await;
    other.send(&text_send(9, 3, "of another")).await;
    assert!(matches!(other.next().await, Some(ServerFrame::Accepted(_))));
    assert_eq!(harbour.peer.batches.lock().len(), 1, "the slow one waits");
    harbour.peer.permits.add_permits(1);
    for number in 1..3 {
        match slow.next().await {
            Some(ServerFrame::Accepted(accepted)) => assert_eq!(accepted.send_id, send_id(number)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_station_that_is_gone_is_a_failure_that_may_be_repeated() {
    let harbour = Harbour::open().await;
    for mut client in harbour.both().await {
        client.hello(1).await;
        harbour.peer.is_down.store(true, Ordering::Relaxed);
        client.send(&text_send(2, 1, "lost")).await;
        client.send(&text_send(2, 2, "behind it")).await;
        for number in 1..3 {
            match client.next().await {
                Some(ServerFrame::Refused {
                    send_id: id,
                    refusal,
                }) => {
                    assert_eq!(id, send_id(number));
                    assert!(refusal.code.retryable(), "{refusal}");
                }
                other => panic!("{other:?}"),
            }
        }
        harbour.peer.is_down.store(false, Ordering::Relaxed);
        for number in 1..3 {
            client.send(&text_send(2, number, "again")).await;
            match client.next().await {
                Some(ServerFrame::Accepted(accepted)) => {
                    assert_eq!(accepted.send_id, send_id(number));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_refuses_and_recovers() {
    let harbour = Harbour::piped(|config| {
        config.lanes = 1;
        config.lane_items_max = 1;
    })
    .await;
    let mut clients = harbour.crew(1..=CALLS_MAX as i64 + 2).await;
    let mut third = clients.pop().expect("the last");
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    // All the calls that a lane makes side by side, and one that waits for them.
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&text_send(99, number as u8, "slow")).await;
        tokio::time::sleep(SLOW_CALL * 2).await;
    }
    third.send(&text_send(99, 98, "too much")).await;
    match third.next().await {
        Some(ServerFrame::Refused { refusal, .. }) => assert_eq!(refusal.code, Code::Unavailable),
        other => panic!("{other:?}"),
    }
    harbour.peer.permits.add_permits(2 * CALLS_MAX + 2);
    for mut client in clients {
        assert!(matches!(
            client.next().await,
            Some(ServerFrame::Accepted(_))
        ));
    }
    third.send(&text_send(99, 98, "again")).await;
    assert!(matches!(third.next().await, Some(ServerFrame::Accepted(_))));
}

#[tokio::test]
async fn questions_come_back_with_their_number_or_a_reason() {
    let harbour = Harbour::open().await;
    for mut client in harbour.both().await {
        client.hello(1).await;
        client.send(&question(12)).await;
        match client.next().await {
            Some(ServerFrame::Page(page)) => assert_eq!(page.request, 12),
            other => panic!("{other:?}"),
        }
        client.send(&question(13)).await;
        match client.next().await {
            Some(ServerFrame::Error { request, refusal }) => {
                assert_eq!((request, refusal.code), (Some(13), Code::Forbidden));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn acknowledgements_are_recorded_and_answered() {
    let harbour = Harbour::open().await;
    for mut client in harbour.both().await {
        client.hello(2).await;
        client.received(5).await;
        match client.next().await {
            Some(ServerFrame::Acked(acked)) => assert_eq!(acked.ids, [message(5)]),
            other => panic!("{other:?}"),
        }
    }
    eventually("recorded", || harbour.peer.receipts.lock().len() == 2).await;
}
