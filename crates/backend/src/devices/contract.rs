//! What every store of devices promises. A check uses its own users.

use protocol::{DeviceId, Platform, Timestamp, UserId};

use super::{DeviceStore, Seen};
use crate::fresh::{Fresh, at};

const DAY: u64 = 24 * 3600 * 1000;

async fn sign_in(
    store: &dyn DeviceStore,
    user: UserId,
    platform: Platform,
    device: &str,
    at: Timestamp,
) {
    let device = DeviceId::new(device).expect("a name");
    let seen = Seen {
        user,
        platform,
        device,
        at,
    };
    store.seen(seen).await.expect("writes");
}

async fn platforms(store: &dyn DeviceStore, user: UserId, since: Timestamp) -> Vec<Platform> {
    let found = store.platforms(&[user], since).await;
    found.expect("reads").remove(0)
}

pub(super) async fn who_never_signed_in_has_no_platform(store: &dyn DeviceStore, fresh: &Fresh) {
    let (known, unknown) = (fresh.user(), fresh.user());
    sign_in(store, known, Platform::Web, "w", at(5)).await;
    let asked = [unknown, known, known];
    let found = store.platforms(&asked, Timestamp::ZERO).await;
    let web = vec![Platform::Web];
    assert_eq!(found.expect("reads"), [vec![], web.clone(), web]);
}

pub(super) async fn platforms_are_those_seen_since(store: &dyn DeviceStore, fresh: &Fresh) {
    let user = fresh.user();
    sign_in(store, user, Platform::Bot, "b", at(90 * DAY)).await;
    sign_in(store, user, Platform::Ios, "i", at(10 * DAY)).await;
    sign_in(store, user, Platform::Web, "w", at(50 * DAY)).await;
    let all = [Platform::Ios, Platform::Web, Platform::Bot];
    assert_eq!(platforms(store, user, at(10 * DAY)).await, all);
    assert_eq!(platforms(store, user, at(10 * DAY + 1)).await, all[1..]);
    // It comes back.
    sign_in(store, user, Platform::Ios, "i", at(91 * DAY)).await;
    let now = platforms(store, user, at(90 * DAY)).await;
    assert_eq!(now, [Platform::Ios, Platform::Bot]);
}

pub(super) async fn an_older_sign_in_never_moves_a_device_back(
    store: &dyn DeviceStore,
    fresh: &Fresh,
) {
    let user = fresh.user();
    sign_in(store, user, Platform::Web, "w", at(50 * DAY)).await;
    sign_in(store, user, Platform::Web, "w", at(10 * DAY)).await;
    let found = platforms(store, user, at(50 * DAY)).await;
    assert_eq!(found, [Platform::Web]);
}

/// However many there are, the newest counts.
pub(super) async fn many_devices_of_a_platform_are_one_platform(
    store: &dyn DeviceStore,
    fresh: &Fresh,
) {
    let user = fresh.user();
    for n in (0..30).rev() {
        sign_in(store, user, Platform::Mini, &format!("m-{n}"), at(n * DAY)).await;
    }
    let found = platforms(store, user, at(29 * DAY)).await;
    assert_eq!(found, [Platform::Mini]);
    assert_eq!(platforms(store, user, at(29 * DAY + 1)).await, []);
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            who_never_signed_in_has_no_platform,
            platforms_are_those_seen_since,
            an_older_sign_in_never_moves_a_device_back,
            many_devices_of_a_platform_are_one_platform,
        );
    };
}
pub(crate) use checks;
