//! Contract of every installation store.

use std::time::Duration;

use protocol::Timestamp;

use super::InstallationStore;
use crate::test_ids::{TestIds, at};

pub(super) async fn the_first_number_stands(store: &dyn InstallationStore, fresh: &TestIds) {
    let first = store.record(fresh.user().get() as u64, at(1)).await;
    // A shared store already has the number of its other users.
    let first = first.expect("writes");
    let other = store.record(first.wrapping_add(1), at(2)).await;
    assert_eq!(other.expect("writes"), first);
    assert_eq!(store.number().await.expect("reads"), Some(first));
}

pub(super) async fn large_numbers_come_back(store: &dyn InstallationStore, _: &TestIds) {
    let stands = store.record(u64::MAX, at(1)).await.expect("writes");
    assert_eq!(store.number().await.expect("reads"), Some(stands));
}

pub(super) async fn a_reservation_never_goes_back(store: &dyn InstallationStore, fresh: &TestIds) {
    let node = (fresh.user().get() % 1024) as u16;
    let old_deadline = store.reserved(node).await.expect("reads");
    let new_deadline = old_deadline.max(at(1)) + Duration::from_secs(600);
    store
        .reserve_node(node, new_deadline)
        .await
        .expect("writes");
    let earlier_deadline = Timestamp::from_millis(new_deadline.millis() - 5);
    store
        .reserve_node(node, earlier_deadline)
        .await
        .expect("writes");
    assert_eq!(store.reserved(node).await.expect("reads"), new_deadline);
    // The same call again, as after a lost answer.
    store
        .reserve_node(node, new_deadline)
        .await
        .expect("writes");
    assert_eq!(store.reserved(node).await.expect("reads"), new_deadline);
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            the_first_number_stands,
            large_numbers_come_back,
            a_reservation_never_goes_back,
        );
    };
}
pub(crate) use checks;
