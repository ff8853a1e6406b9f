//! Contract of every device store. Each check uses users of its own.

use protocol::{DeviceId, Platform, Timestamp, UserId};

use super::{DeviceSeen, DeviceStore};
use crate::test_ids::{TestIds, at};

const DAY: u64 = 24 * 3600 * 1000;

async fn sign_in(
    store: &dyn DeviceStore,
    user: UserId,
    platform: Platform,
    device: &str,
    at: Timestamp,
) {
    let device = DeviceId::new(device).expect("a name");
    let sighting = DeviceSeen {
        user,
        platform,
        device,
        at,
    };
    store.seen(sighting).await.expect("writes");
}

async fn platforms(store: &dyn DeviceStore, user: UserId, lower_bound: Timestamp) -> Vec<Platform> {
    let result = store.platforms(&[user], lower_bound).await;
    result.expect("reads").remove(0)
}

pub(super) async fn users_without_sign_in_have_no_platform(
    store: &dyn DeviceStore,
    fresh: &TestIds,
) {
    let (active_user, unknown) = (fresh.user(), fresh.user());
    sign_in(store, active_user, Platform::Web, "w", at(5)).await;
    let users = [unknown, active_user, active_user];
    let result = store.platforms(&users, Timestamp::ZERO).await;
    let web = vec![Platform::Web];
    assert_eq!(result.expect("reads"), [vec![], web.clone(), web]);
}

pub(super) async fn platforms_are_those_seen_since(store: &dyn DeviceStore, fresh: &TestIds) {
    let user = fresh.user();
    sign_in(store, user, Platform::Bot, "b", at(90 * DAY)).await;
    sign_in(store, user, Platform::Ios, "i", at(10 * DAY)).await;
    sign_in(store, user, Platform::Web, "w", at(50 * DAY)).await;
    let all = [Platform::Ios, Platform::Web, Platform::Bot];
    assert_eq!(platforms(store, user, at(10 * DAY)).await, all);
    assert_eq!(platforms(store, user, at(10 * DAY + 1)).await, all[1..]);
    // The platform returns with a new sign-in.
    sign_in(store, user, Platform::Ios, "i", at(91 * DAY)).await;
    let now = platforms(store, user, at(90 * DAY)).await;
    assert_eq!(now, [Platform::Ios, Platform::Bot]);
}

pub(super) async fn an_older_sign_in_never_moves_a_device_back(
    store: &dyn DeviceStore,
    fresh: &TestIds,
) {
    let user = fresh.user();
    sign_in(store, user, Platform::Web, "w", at(50 * DAY)).await;
    sign_in(store, user, Platform::Web, "w", at(10 * DAY)).await;
    let result = platforms(store, user, at(50 * DAY)).await;
    assert_eq!(result, [Platform::Web]);
}

/// The newest device counts, however many there are.
pub(super) async fn many_devices_of_a_platform_are_one_platform(
    store: &dyn DeviceStore,
    fresh: &TestIds,
) {
    let user = fresh.user();
    for n in (0..30).rev() {
        sign_in(store, user, Platform::Mini, &format!("m-{n}"), at(n * DAY)).await;
    }
    let result = platforms(store, user, at(29 * DAY)).await;
    assert_eq!(result, [Platform::Mini]);
    assert_eq!(platforms(store, user, at(29 * DAY + 1)).await, []);
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            users_without_sign_in_have_no_platform,
            platforms_are_those_seen_since,
            an_older_sign_in_never_moves_a_device_back,
            many_devices_of_a_platform_are_one_platform,
        );
    };
}
pub(crate) use checks;
