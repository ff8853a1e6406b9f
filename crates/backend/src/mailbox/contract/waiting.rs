//! Mail waiting for absent platforms, and its expiry.

use super::*;

/// A message for an absent platform waits for it, with its body.
pub(crate) async fn platforms_without_sessions_store_mail(scene: &Scene) {
    let target = scene.ios(1);
    let answer = scene.put(target, 1, seconds(1)).await;
    assert_eq!(answer.live, []);
    assert_eq!(answer.stored_platforms, [Platform::Ios]);
    let page = scene.page(target, None, 10).await;
    assert_eq!(page.mails, [scene.mail(1, seconds(1))]);
    assert_eq!((page.bodiless, page.next), (Vec::new(), None));
}

/// A repeated append changes nothing, and a single acknowledgement removes the entry.
// proves S1-42, S1-44
pub(crate) async fn appending_is_idempotent(scene: &Scene) {
    let target = scene.ios(1);
    for _ in 0..3 {
        let answer = scene.put(target, 1, seconds(1)).await;
        assert_eq!(
            (answer.stored_platforms, answer.dropped_count),
            (vec![Platform::Ios], 0)
        );
    }
    assert_eq!(scene.store.waiting(target).await.expect("counted"), 1);
    assert_eq!(
        scene.acknowledge(target, scene.ids([1])).await,
        scene.ids([1])
    );
    assert_eq!(scene.waiting(target).await, []);
}

/// A body is shared by all mailboxes that need it, and stays until the last one is done.
// proves S1-38, S1-45, S1-48, S1-56
pub(crate) async fn a_body_stays_for_the_last(scene: &Scene) {
    let mut targets = Vec::new();
    for user in 1..=3 {
        for platform in [Platform::Ios, Platform::Desktop] {
            targets.push(scene.on(user, platform));
        }
    }
    for target in &targets {
        scene.put(*target, 1, seconds(1)).await;
    }
    while let Some(target) = targets.pop() {
        scene.acknowledge(target, scene.ids([1])).await;
        assert_eq!(scene.waiting(target).await, []);
        for other in &targets {
            assert_eq!(scene.waiting(*other).await, scene.ids([1]));
        }
    }
}

/// Mail comes in order of accept time, then of id, whatever the order of arrival.
// proves S1-40, S1-41
pub(crate) async fn mail_comes_by_time_then_by_id(scene: &Scene) {
    let target = scene.ios(1);
    for (n, age) in [(9, 5), (10, 5), (3, 1), (100, 5), (50, 9)] {
        scene.put(target, n, seconds(age)).await;
    }
    assert_eq!(scene.waiting(target).await, scene.ids([50, 9, 10, 100, 3]));
}

/// Beyond the maximum the oldest message is dropped, and the answer counts it.
// proves S1-52
pub(crate) async fn the_newest_are_kept(scene: &Scene) {
    let target = scene.ios(1);
    for n in 1..=8 {
        let answer = scene.put(target, n, seconds(100 - n as u64)).await;
        assert_eq!(answer.dropped_count, u32::from(n > i64::from(COUNT_MAX)));
    }
    assert_eq!(scene.waiting(target).await, scene.ids(4..=8));
    // Older than all messages kept, so it is the one dropped.
    let answer = scene.put(target, 9, seconds(1_000)).await;
    assert_eq!(answer.dropped_count, 1);
    assert_eq!(scene.waiting(target).await, scene.ids(4..=8));
    scene.acknowledge(target, scene.ids(4..=8)).await;
}

/// Without a maximum all messages are kept.
// proves S1-53
pub(crate) async fn no_maximum_keeps_all(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    for n in 1..=60 {
        let answer = scene.put(target, n, seconds(100 - n as u64)).await;
        assert_eq!(answer.dropped_count, 0);
    }
    assert_eq!(scene.waiting(target).await, scene.ids(1..=60));
}

/// Messages older than the bound expire; a message exactly at the bound does not.
// proves S1-49, S1-50
pub(crate) async fn expiry_excludes_the_bound(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    let max_age = seconds(600);
    for (n, age) in [
        (1, seconds(700)),
        (2, max_age + Duration::from_millis(1)),
        (3, max_age),
        (4, seconds(1)),
    ] {
        scene.put(target, n, age).await;
    }
    let policy = MailboxPolicy {
        expire: max_age,
        count_max: None,
    };
    let trim = || scene.store.trim(target, policy, scene.now);
    assert_eq!(trim().await.expect("trimmed"), 2);
    assert_eq!(scene.waiting(target).await, scene.ids([3, 4]));
    assert_eq!(trim().await.expect("trimmed again"), 0);
}

/// A trim to a maximum keeps exactly the newest, and bodies that other mailboxes need.
// proves S1-51, S1-52
pub(crate) async fn trimming_keeps_exactly_the_newest(scene: &Scene) {
    let (target, other) = (scene.on(1, UNLIMITED), scene.on(2, UNLIMITED));
    for n in 1..=20 {
        scene.put(target, n, seconds(100 - n as u64)).await;
    }
    scene.put(other, 1, seconds(99)).await;
    let policy = MailboxPolicy {
        expire: EXPIRE,
        count_max: Some(7),
    };
    let result = scene.store.trim(target, policy, scene.now).await;
    assert_eq!(result.expect("trimmed"), 13);
    assert_eq!(scene.waiting(target).await, scene.ids(14..=20));
    assert_eq!(scene.waiting(other).await, scene.ids([1]));
}

/// Expired mail is neither paged nor announced at login.
// proves S1-54
pub(crate) async fn expired_mail_is_not_seen(scene: &Scene) {
    let target = scene.ios(1);
    scene.put(target, 1, EXPIRE - seconds(60)).await;
    let after_expiry = scene.now + seconds(120);
    let page = scene.store.page(target, None, 10, after_expiry).await;
    assert_eq!(page.expect("paged"), MailPage::default());
    let session = scene.session(1, target);
    let answer = scene
        .connect_with(&session, DeniedBoats::default(), after_expiry)
        .await;
    assert!(!answer.mail_waits);
    assert_eq!(scene.waiting(target).await, scene.ids([1]));
}

/// A mailbox lasts as long as its newest message, and a repeat of an older one changes nothing.
// proves S1-44, S1-47
pub(crate) async fn a_new_message_prolongs_a_mailbox_and_a_repeat_does_not(scene: &Scene) {
    let target = scene.ios(1);
    let repeats = [
        (1, EXPIRE - seconds(60)),
        (2, seconds(0)),
        (1, EXPIRE - seconds(60)),
    ];
    for (n, age) in repeats {
        let answer = scene.put(target, n, age).await;
        assert_eq!(
            (answer.stored_platforms, answer.dropped_count),
            (vec![Platform::Ios], 0)
        );
    }
    let visible_ids = async |now| {
        let page = scene
            .store
            .page(target, None, 10, now)
            .await
            .expect("paged");
        page.mails.iter().map(|mail| mail.id).collect::<Vec<_>>()
    };
    let end = scene.now + EXPIRE;
    assert_eq!(visible_ids(scene.now).await, scene.ids([1, 2]));
    assert_eq!(visible_ids(scene.now + seconds(120)).await, scene.ids([2]));
    assert_eq!(visible_ids(end).await, scene.ids([2]));
    let after_expiry = end + Duration::from_millis(1);
    assert_eq!(visible_ids(after_expiry).await, []);
    let policy = scene.store.policy(target.platform);
    let result = scene.store.trim(target, policy, after_expiry).await;
    assert_eq!(result.expect("trimmed"), 2, "one entry for each message");
    assert_eq!(scene.store.waiting(target).await.expect("counted"), 0);
}

/// Pages continue strictly after a cursor and remove nothing.
// proves S1-54, S1-55
pub(crate) async fn paging_removes_nothing(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    for n in 1..=7 {
        scene.put(target, n, seconds(5)).await;
    }
    for _ in 0..2 {
        let mut ids = Vec::new();
        let mut cursor = None;
        loop {
            let page = scene.page(target, cursor, 3).await;
            assert!(page.mails.len() <= 3);
            ids.extend(page.mails.iter().map(|mail| mail.id));
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(ids, scene.ids(1..=7));
    }
    assert_eq!(scene.store.waiting(target).await.expect("counted"), 7);
}

/// An acknowledgement removes exactly its messages, on its platform, once.
// proves S1-56, S0-77
pub(crate) async fn acknowledging_removes_exactly_that(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    for n in 1..=4 {
        scene.put(phone, n, seconds(5)).await;
        scene.put(desk, n, seconds(5)).await;
    }
    let removed_ids = scene.acknowledge(phone, scene.ids([3, 1, 99])).await;
    assert_eq!(removed_ids, scene.ids([3, 1]));
    assert_eq!(scene.acknowledge(phone, scene.ids([3, 1])).await, []);
    assert_eq!(scene.waiting(phone).await, scene.ids([2, 4]));
    assert_eq!(scene.waiting(desk).await, scene.ids(1..=4));
}

/// A message acknowledged on a platform is not stored there again, even if the carrier gave up on
/// it. Other platforms and other ids are stored: a mark is not a range.
pub(crate) async fn the_recently_acknowledged_is_not_stored(scene: &Scene) {
    let phone = scene.ios(1);
    assert_eq!(scene.acknowledge(phone, scene.ids([5])).await, []);
    let mut request = scene.request(phone, scene.mail(5, seconds(1)));
    request.platforms.push(Platform::Desktop);
    let answer = scene.route(request).await;
    assert_eq!(answer.acknowledged_platforms, [Platform::Ios]);
    assert_eq!(answer.stored_platforms, [Platform::Desktop]);
    for n in [4, 6] {
        let answer = scene.put(phone, n, seconds(1)).await;
        assert_eq!(
            (answer.stored_platforms, answer.acknowledged_platforms),
            (vec![Platform::Ios], vec![])
        );
    }
    assert_eq!(scene.waiting(phone).await, scene.ids([4, 6]));
}

/// Each message is found in its state: waiting, recently acknowledged, or absent. Lookups change
/// nothing.
pub(crate) async fn each_is_found_where_it_is(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    for n in [1, 2] {
        scene.put(phone, n, seconds(5)).await;
    }
    scene.put(desk, 1, seconds(5)).await;
    scene.put(phone, 3, EXPIRE - seconds(60)).await;
    scene.lose(2, BodyLoss::BodyAndCount).await;
    scene.acknowledge(phone, scene.ids([1])).await;
    let queries = [(phone, 1), (desk, 1), (phone, 2), (phone, 3), (desk, 3)];
    let queries = queries.map(|(target, n)| (target, scene.id(n)));
    let find = async |now| {
        let location = scene.store.find(&queries, now).await.into_iter();
        location
            .map(|location| location.expect("answered"))
            .collect::<Vec<_>>()
    };
    use MailLocation::{Absent, Acknowledged, Waits};
    for _ in 0..2 {
        let locations = find(scene.now).await;
        assert_eq!(locations, [Acknowledged, Waits, Waits, Waits, Absent]);
    }
    let page = scene.page(phone, None, 100).await;
    let ids: Vec<MessageId> = page.mails.iter().map(|mail| mail.id).collect();
    assert_eq!((ids, page.bodiless), (scene.ids([3]), scene.ids([2])));
    // Expired messages count as absent, and old acknowledgements are forgotten.
    let locations = find(scene.now + seconds(120)).await;
    assert_eq!(locations, [Acknowledged, Waits, Waits, Absent, Absent]);
    let locations = find(scene.now + protocol::mailbox::ACKED_KEEP).await;
    assert_eq!(locations, [Absent, Waits, Waits, Absent, Absent]);
    scene.acknowledge(phone, scene.ids([2])).await;
}

// proves S1 Pitfall D
/// Missing bodies are reported and never end a drain; acknowledging them frees the mailbox.
pub(crate) async fn missing_bodies_never_stop_a_page(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    for n in 1..=6 {
        scene.put(target, n, seconds(100 - n as u64)).await;
    }
    for n in [1, 2] {
        scene.lose(n, BodyLoss::BodyAndCount).await;
    }
    scene.lose(3, BodyLoss::Body).await;
    let first = scene.page(target, None, 3).await;
    assert_eq!(first.mails, []);
    assert_eq!(first.bodiless, scene.ids(1..=3));
    let second = scene.page(target, first.next, 3).await;
    let ids: Vec<MessageId> = second.mails.iter().map(|mail| mail.id).collect();
    assert_eq!((ids, second.next), (scene.ids(4..=6), None));

    let removed_ids = scene.acknowledge(target, scene.ids([1, 2, 3])).await;
    assert_eq!(removed_ids, scene.ids([1, 2, 3]));
    assert_eq!(scene.waiting(target).await, scene.ids(4..=6));
}

/// An append that finds its body missing restores it for all of the user's platforms that hold the
/// message.
pub(crate) async fn an_append_repairs_a_lost_body(scene: &Scene) {
    let (one, other) = (scene.ios(1), scene.on(1, Platform::Desktop));
    scene.put(one, 1, seconds(1)).await;
    scene.lose(1, BodyLoss::Body).await;
    scene.put(other, 1, seconds(1)).await;
    assert_eq!(scene.waiting(one).await, scene.ids([1]));
    scene.acknowledge(one, scene.ids([1])).await;
    assert_eq!(scene.waiting(other).await, scene.ids([1]));
}

/// The newest received message is remembered, and an older one changes nothing.
pub(crate) async fn received_position_never_goes_back(scene: &Scene) {
    // proves S0-83
    let (one, other) = (scene.user(1), scene.user(2));
    let read_received = async |user| scene.store.received(user).await.expect("answers");
    assert_eq!(read_received(one).await, None);
    let (early, late) = (scene.id(1), scene.id(2));
    for (update, expected) in [(late, late), (early, late), (late, late)] {
        let update = vec![(one, update), (other, early)];
        scene.store.set_received(update).await.expect("written");
        assert_eq!(read_received(one).await, Some(expected));
        assert_eq!(read_received(other).await, Some(early));
    }
    let updates = vec![(other, late), (other, early)];
    scene.store.set_received(updates).await.expect("written");
    assert_eq!(
        read_received(other).await,
        Some(late),
        "also inside one call"
    );
}
