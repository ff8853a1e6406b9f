//! Undeliverable messages are kept with their reason, and redriven once the reason is gone.

use backend::hook::Fault;
use operator::dead_letters::rules::TaskOutcome;
use operator::dead_letters::{Filter, Letter, Selection};
use protocol::ledger::DeadReason;
use tests::faults::ROUTES;
use tests::system::eventually;
use tests::{Cluster, patient_settings, settings};

/// Waits for so many letters, and returns them.
async fn letters(cluster: &Cluster, count: usize) -> Vec<Letter> {
    let letters = cluster.letters();
    eventually("dead letters", async || {
        let page = letters.list(&Filter::default(), None, 100).await;
        let matches = page.expect("a list").letters;
        (matches.len() >= count).then_some(matches)
    })
    .await
}

// proves S1-29, S1-30 in part (a person can handle it), S1-27 in part
#[tokio::test]
async fn permanent_failure_becomes_a_dead_letter_and_is_redriven() {
    let (mut cluster, faults) = Cluster::with_faults(settings()).await;
    cluster.expect_log("the mailbox refused a message");
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    let mut cem = cluster.device(3).ready().await;

    faults.begin(ROUTES.about(2), Fault::Conflict);
    let id = ada.say(2, "poison").await;
    // Other recipients are served meanwhile.
    ada.say(3, "fine").await;
    assert_eq!(cem.hear_texts(1).await, ["fine"]);

    let dead_letters = letters(&cluster, 1).await;
    let [letter] = &dead_letters[..] else {
        panic!("{dead_letters:?}")
    };
    assert_eq!(letter.reason, DeadReason::MaxRetries);
    assert_eq!(letter.message, Some(id));
    assert_eq!(letter.targets, ["2/desktop"]);
    assert_eq!(letter.retry_count, 6);
    assert!(letter.error.contains("refused"), "{letter:?}");
    assert!(!letter.redriven);
    let details = cluster.letters().show(&letter.id, true).await;
    let details = details.expect("an answer").expect("it is there");
    assert!(details.body.expect("its body").contains("poison"));
    cluster
        .assert_traced(id, "Dead { reason: MaxRetries", Some("2/desktop"))
        .await;
    cluster.assert_settled(2).await;
    bea.hears_nothing().await;

    faults.end(ROUTES.about(2));
    let selection = Selection::ids(vec![letter.id.clone()]);
    let outcomes = cluster.redrive(&selection).await.expect("redriven");
    assert_eq!(outcomes.len(), 1);
    assert_eq!(outcomes[0].outcome, TaskOutcome::ToRetry);
    assert_eq!(bea.hear_texts(1).await, ["poison"]);
    bea.hears_nothing().await;
    cluster
        .assert_traced(id, "Redriven", Some("2/desktop"))
        .await;
    cluster.assert_traced(id, "Acked", Some("2/desktop")).await;
    cluster.assert_settled(2).await;

    // A second redrive has no effect.
    let second_outcomes = cluster.redrive(&selection).await.expect("an answer");
    assert_eq!(second_outcomes[0].outcome, TaskOutcome::Before);
    bea.hears_nothing().await;
    cluster.stop().await;
}

// The bound was too low; an operator raises it and redrives the letter.
#[tokio::test]
async fn too_large_record_is_redriven_once_the_bound_is_raised() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut small_records = patient_settings();
    small_records.station.record_bytes_max = 512;
    let mut cluster = Cluster::on_disk(small_records, dir.path()).await;
    cluster.expect_log("dead letter");
    cluster.device(2).ready().await.close().await;
    let ada = cluster.device(1).ready().await;
    let large = "x".repeat(2000);
    let id = ada.say(2, &large).await;
    ada.say(2, "small").await;
    let dead_letters = letters(&cluster, 1).await;
    assert_eq!(
        (dead_letters.len(), dead_letters[0].reason),
        (1, DeadReason::TooLarge)
    );
    cluster.assert_settled(2).await;
    ada.close().await;
    cluster.stop().await;

    let cluster = Cluster::on_disk(patient_settings(), dir.path()).await;
    let mut bea = cluster.device(2).ready().await;
    assert_eq!(bea.hear_texts(1).await, ["small"]);
    let selection = Selection::Filter {
        filter: Filter::default(),
        limit: 10,
    };
    let outcomes = cluster.redrive(&selection).await.expect("redriven");
    assert!(matches!(outcomes[0].outcome, TaskOutcome::ToMessage));
    let message = bea.hear().await;
    assert_eq!(message.placed.message.id, id);
    assert_eq!(message.placed.message.content.data.len(), 2000);
    bea.hears_nothing().await;
    cluster.assert_settled(2).await;
    cluster.stop().await;
}
