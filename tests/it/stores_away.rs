//! A part that is away for a while costs time and nothing else.

use std::time::Duration;

use backend::hook::Fault;
use client::core::SendStatus;
use protocol::{Code, UserId};
use tests::faults::{HISTORY, MAILBOX, MESSAGES};
use tests::person::{accepted, done, reaches};
use tests::wire::{Port, Wire, send};
use tests::{Cluster, settings};

#[tokio::test]
async fn while_history_is_away_nothing_is_shown_and_then_everything() {
    let (mut cluster, faults) = Cluster::with_faults(settings()).await;
    cluster.expect_log("cannot write messages: their partitions wait");
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;

    faults.begin(HISTORY, Fault::Unavailable);
    let mut last = ada.write(2, "0").await;
    for number in 1..10 {
        last = ada.write(2, &number.to_string()).await;
    }
    // Accepted means that the log has the message: history is not involved.
    accepted(&mut last).await;
    bea.hears_nothing().await;
    let report = cluster.audit().await;
    assert!(report.balanced && report.in_flight == 10, "{report:?}");
    faults.end(HISTORY);

    let texts = bea.hear_texts(10).await;
    assert_eq!(texts, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
    bea.hears_nothing().await;
    cluster.assert_settled(10).await;
    cluster.stop().await;
}

// No false acknowledgement: a send the log does not take is refused for now, and later sends of its
// conversation wait their turn.
#[tokio::test]
async fn send_is_not_accepted_while_the_log_is_unavailable() {
    let (cluster, faults) = Cluster::with_faults(settings()).await;
    let mut bea = cluster.device(2).ready().await;
    let mut ada = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    let (first, second) = (send(2, "first"), send(2, "second"));
    faults.begin(MESSAGES, Fault::Unavailable);
    let code = ada.ask(first.clone()).await.expect_err("the log is full");
    assert!(code.retryable(), "{code}");
    faults.end(MESSAGES);
    assert_eq!(ada.ask(second.clone()).await, Err(Code::EarlierSendFailed));
    let id = ada.ask(first).await.expect("there is room again");
    ada.ask(second).await.expect("its turn has come");
    let message = bea.hear().await;
    assert_eq!(message.placed.message.id, id);
    assert_eq!(bea.hear_texts(1).await, ["second"]);
    bea.hears_nothing().await;
    cluster.assert_settled(2).await;
    cluster.stop().await;
}

// The same, seen by an application: it writes, and the client retries on its own.
#[tokio::test]
async fn a_client_goes_on_by_itself_when_the_log_is_back() {
    let (cluster, faults) = Cluster::with_faults(settings()).await;
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    faults.begin(MESSAGES, Fault::Unavailable);
    let mut tickets = Vec::new();
    for number in 0..5 {
        tickets.push(ada.write(2, &number.to_string()).await);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(tickets.iter().all(|t| t.status() == SendStatus::Pending));
    faults.end(MESSAGES);
    assert_eq!(bea.hear_texts(5).await, ["0", "1", "2", "3", "4"]);
    for ticket in &mut tickets {
        reaches(ticket, |s| matches!(s, SendStatus::Delivered { .. })).await;
    }
    bea.hears_nothing().await;
    cluster.assert_settled(5).await;
    cluster.stop().await;
}

// T-R1: a user who signs in while their part of the mailbox is away sends, and reads from history;
// messages of the meantime arrive once it is back.
#[tokio::test]
async fn a_mailbox_that_is_away_keeps_nobody_out() {
    let (mut cluster, faults) = Cluster::with_faults(settings()).await;
    cluster.expect_log("a store failed");
    let user_id = UserId::new(2).expect("a user");
    let ada = cluster.device(1).ready().await;
    let mut ticket = ada.write(2, "before").await;
    done(&mut ticket).await.expect("placed");

    faults.begin(MAILBOX.about(user_id.get()), Fault::Unavailable);
    let mut bea = cluster.device(2).ready().await;
    assert_eq!(bea.hear_texts(1).await, ["before"], "from history");
    let mut last = bea.write(3, "sent meanwhile").await;
    accepted(&mut last).await;
    let mut cem = cluster.device(3).ready().await;
    assert_eq!(
        cem.hear_texts(1).await,
        ["sent meanwhile"],
        "others are not concerned"
    );
    faults.end(MAILBOX.about(user_id.get()));

    let mut next = ada.write(2, "after").await;
    accepted(&mut next).await;
    assert_eq!(bea.hear_texts(1).await, ["after"]);
    bea.hears_nothing().await;
    cluster.assert_settled(3).await;
    cluster.stop().await;
}
