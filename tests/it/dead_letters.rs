//! Undeliverable messages are kept with their reason, and redriven once the reason is gone.

use backend::hook::Fault;
use operator::dead_letters::{Filter, Letter, Selection};
use operator::desk::TaskOutcome;
use protocol::ledger::DeadReason;
use tests::faults::ROUTES;
use tests::system::eventually;
use tests::{Cluster, patient_settings, settings};

/// Waits for so many letters, and returns them.
async fn letters(cluster: &Cluster, count: usize) -> Vec<Letter> {
    let letters = cluster.letters();
    eventually("dead letters", async || {
        let page = letters.list(&Filter::default(), None, 100).await;
        let found = page.expect("a list").letters;
        (found.len() >= count).then_some(found)
    })
    .await
}

// proves S1-29, S1-30 in part (a person can handle it), S1-27 in part
#[tokio::test]
async fn what_always_fails_becomes_a_dead_letter_and_is_redriven() {
    let (mut cluster, faults) = Cluster::with_faults(settings()).await;
    cluster.expect_log("the mailbox refuses a message");
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    let mut cem = cluster.device(3).ready().await;

    faults.begin(ROUTES.about(2), Fault::Conflict);
    let id = ada.say(2, "poison").await;
    // Other recipients are served meanwhile.
    ada.say(3, "fine").await;
    assert_eq!(cem.hear_texts(1).await, ["fine"]);

    let found = letters(&cluster, 1).await;
    let [letter] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(letter.reason, DeadReason::MaxRetries);
    assert_eq!(letter.message, Some(id));
    assert_eq!(letter.targets, ["2/desktop"]);
    assert_eq!(letter.retry_count, 6);
    assert!(letter.error.contains("refused"), "{letter:?}");
    assert!(!letter.redriven);
    let shown = cluster.letters().show(&letter.id, true).await;
    let shown = shown.expect("an answer").expect("it is there");
    assert!(shown.body.expect("its body").contains("poison"));
    cluster
        .assert_traced(id, "Dead { reason: MaxRetries", Some("2/desktop"))
        .await;
    cluster.assert_settled(2).await;
    bea.hears_nothing().await;

    faults.end(ROUTES.about(2));
    let chosen = Selection::ids(vec![letter.id.clone()]);
    let redriven = cluster.redrive(&chosen).await.expect("redriven");
    assert_eq!(redriven.len(), 1);
    assert_eq!(redriven[0].outcome, TaskOutcome::ToRetry);
    assert_eq!(bea.hear_texts(1).await, ["poison"]);
    bea.hears_nothing().await;
    cluster
        .assert_traced(id, "Redriven", Some("2/desktop"))
        .await;
    cluster.assert_traced(id, "Acked", Some("2/desktop")).await;
    cluster.assert_settled(2).await;

    // A second redrive has no effect.
    let again = cluster.redrive(&chosen).await.expect("an answer");
    assert_eq!(again[0].outcome, TaskOutcome::Before);
    bea.hears_nothing().await;
    cluster.stop().await;
}

// The bound was too low; an operator raises it and redrives the letter.
#[tokio::test]
async fn a_record_that_is_too_large_is_redriven_after_the_bound_is_raised() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut narrow = patient_settings();
    narrow.station.record_bytes_max = 512;
    let mut cluster = Cluster::on_disk(narrow, dir.path()).await;
    cluster.expect_log("dead letter");
    cluster.device(2).ready().await.close().await;
    let ada = cluster.device(1).ready().await;
    let large = "x".repeat(2000);
    let id = ada.say(2, &large).await;
    ada.say(2, "small").await;
    let found = letters(&cluster, 1).await;
    assert_eq!((found.len(), found[0].reason), (1, DeadReason::TooLarge));
    cluster.assert_settled(2).await;
    ada.close().await;
    cluster.stop().await;

    let cluster = Cluster::on_disk(patient_settings(), dir.path()).await;
    let mut bea = cluster.device(2).ready().await;
    assert_eq!(bea.hear_texts(1).await, ["small"]);
    let everything = Selection::Filter {
        filter: Filter::default(),
        limit: 10,
    };
    let redriven = cluster.redrive(&everything).await.expect("redriven");
    assert!(matches!(redriven[0].outcome, TaskOutcome::ToMessage));
    let heard = bea.hear().await;
    assert_eq!(heard.placed.message.id, id);
    assert_eq!(heard.placed.message.content.data.len(), 2000);
    bea.hears_nothing().await;
    cluster.assert_settled(2).await;
    cluster.stop().await;
}
