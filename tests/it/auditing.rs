//! The audit names lost messages.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backend::clock::Clock;
use operator::audit::auditor;
use operator::port::{Desk, Operators};
use protocol::ledger::chain::ChainWalk;
use protocol::{MessageId, Timestamp};
use tests::Cluster;
use tests::faults::lose_messages;
use tests::system::eventually;

/// Clock ahead of another by as much as the test wants.
struct Ahead {
    inner: Arc<dyn Clock>,
    by_secs: AtomicU64,
}

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.inner.now() + Duration::from_secs(self.by_secs.load(Ordering::SeqCst))
    }
}

/// *Done when 2*: with an injected loss of k accepted messages, the audit on demand and the
/// continuous one report exactly these, by their ids; without a loss they report none.
#[tokio::test]
async fn the_audit_names_exactly_what_was_lost_after_it_was_accepted() {
    const LOST_COUNT: usize = 3;
    let (mut cluster, faults) = Cluster::with_faults(tests::settings()).await;
    let clock = Arc::new(Ahead {
        inner: cluster.backends.clock.clone(),
        by_secs: AtomicU64::new(0),
    });
    let mut environment = cluster.environment.clone();
    environment.backends.clock = clock.clone();
    let mut auditor = Desk::new(
        &environment.backends,
        &environment.connector,
        station::Config::default().bounds(),
        Operators::default(),
    )
    .auditor(1, auditor::Config::default());
    auditor.round().await.expect("the chain begins");

    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    for text in ["one", "two"] {
        ada.say(2, text).await;
        assert_eq!(bea.hear_texts(1).await, [text]);
    }
    cluster.assert_settled(2).await;

    let dropped_ids = lose_messages(&faults, LOST_COUNT);
    let mut lost_ids = BTreeSet::new();
    for n in 0..LOST_COUNT {
        lost_ids.insert(ada.say(2, &format!("lost {n}")).await);
    }
    // Later messages of the same conversation are delivered, and committed past the lost ones.
    for text in ["three", "four"] {
        ada.say(2, text).await;
        assert_eq!(bea.hear_texts(1).await, [text]);
    }
    assert_eq!(*dropped_ids.lock().expect("no panic"), lost_ids);

    let report = eventually("nothing is in flight", async || {
        let report = cluster.audit().await;
        (report.in_flight == 0).then_some(report)
    })
    .await;
    assert!(!report.balanced);
    assert_eq!(
        (report.accepted, report.settled),
        (4 + LOST_COUNT as u64, 4)
    );
    let names: BTreeSet<String> = lost_ids.iter().map(MessageId::to_string).collect();
    assert_eq!(report.missing.truncated, 0);
    assert_eq!(
        report.missing.items.into_iter().collect::<BTreeSet<_>>(),
        names
    );

    cluster.expect_log("messages are missing");
    cluster.waive_judges("messages are lost");
    clock.by_secs.store(300, Ordering::SeqCst);
    auditor.round().await.expect("minutes are closed");
    let head = environment
        .backends
        .audit
        .head()
        .await
        .expect("reads")
        .expect("a head");
    let rows = environment
        .backends
        .audit
        .rows(Timestamp::ZERO..head.until, 100)
        .await;
    let (mut walk, mut accepted_count, mut missing_ids) =
        (ChainWalk::whole(&head), 0, BTreeSet::new());
    for row in rows.expect("reads") {
        walk.step(&row);
        accepted_count += row.closed_minute.expect("it was closed").accepted;
        missing_ids.extend(row.amendment.expect("it was looked at").missing.first);
    }
    assert_eq!(
        (accepted_count, missing_ids),
        (4 + LOST_COUNT as u64, lost_ids)
    );
    assert_eq!(walk.end().0, []);
    ada.close().await;
    bea.close().await;
    cluster.stop().await;
}
