//! Mail waiting for absent platforms, and its expiry.

use super::*;

/// A message for an absent platform waits for it, with its body.
pub(crate) async fn the_absent_are_stored_for(scene: &Scene) {
    let target = scene.ios(1);
    let answer = scene.put(target, 1, seconds(1)).await;
    assert_eq!(answer.live, []);
    assert_eq!(answer.stored, [Platform::Ios]);
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
        assert_eq!((answer.stored, answer.dropped), (vec![Platform::Ios], 0));
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
        assert_eq!(answer.dropped, u32::from(n > i64::from(COUNT_MAX)));
    }
    assert_eq!(scene.waiting(target).await, scene.ids(4..=8));
    // Older than all messages kept, so it is the one dropped.
    let answer = scene.put(target, 9, seconds(1_000)).await;
    assert_eq!(answer.dropped, 1);
    assert_eq!(scene.waiting(target).await, scene.ids(4..=8));
    scene.acknowledge(target, scene.ids(4..=8)).await;
}

/// Without a maximum all messages are kept.
// proves S1-53
pub(crate) async fn no_maximum_keeps_all(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    for n in 1..=60 {
        let answer = scene.put(target, n, seconds(100 - n as u64)).await;
        assert_eq!(answer.dropped, 0);
    }
    assert_eq!(scene.waiting(target).await, scene.ids(1..=60));
}

/// Messages older than the bound expire; a message exactly at the bound does not.
// proves S1-49, S1-50
pub(crate) async fn expiry_excludes_the_bound(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    let bound = seconds(600);
    for (n, age) in [
        (1, seconds(700)),
        (2, bound + Duration::from_millis(1)),
        (3, bound),
        (4, seconds(1)),
    ] {
        scene.put(target, n, age).await;
    }
    let policy = MailboxPolicy {
        expire: bound,
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
    let trimmed = scene.store.trim(target, policy, scene.now).await;
    assert_eq!(trimmed.expect("trimmed"), 13);
    assert_eq!(scene.waiting(target).await, scene.ids(14..=20));
    assert_eq!(scene.waiting(other).await, scene.ids([1]));
}

/// Expired mail is neither paged nor announced at login.
// proves S1-54
pub(crate) async fn what_expired_is_not_seen(scene: &Scene) {
    let target = scene.ios(1);
    scene.put(target, 1, EXPIRE - seconds(60)).await;
    let later = scene.now + seconds(120);
    let page = scene.store.page(target, None, 10, later).await;
    assert_eq!(page.expect("paged"), MailPage::default());
    let session = scene.session(1, target);
    let answer = scene
        .connect_with(&session, DeniedBoats::default(), later)
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
        assert_eq!((answer.stored, answer.dropped), (vec![Platform::Ios], 0));
    }
    let seen = async |now| {
        let page = scene
            .store
            .page(target, None, 10, now)
            .await
            .expect("paged");
        page.mails.iter().map(|mail| mail.id).collect::<Vec<_>>()
    };
    let end = scene.now + EXPIRE;
    assert_eq!(seen(scene.now).await, scene.ids([1, 2]));
    assert_eq!(seen(scene.now + seconds(120)).await, scene.ids([2]));
    assert_eq!(seen(end).await, scene.ids([2]));
    let later = end + Duration::from_millis(1);
    assert_eq!(seen(later).await, []);
    let policy = scene.store.policy(target.platform);
    let trimmed = scene.store.trim(target, policy, later).await;
    assert_eq!(trimmed.expect("trimmed"), 2, "one entry for each message");
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
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = scene.page(target, after, 3).await;
            assert!(page.mails.len() <= 3);
            seen.extend(page.mails.iter().map(|mail| mail.id));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, scene.ids(1..=7));
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
    let waited = scene.acknowledge(phone, scene.ids([3, 1, 99])).await;
    assert_eq!(waited, scene.ids([3, 1]));
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
    assert_eq!(answer.acknowledged, [Platform::Ios]);
    assert_eq!(answer.stored, [Platform::Desktop]);
    for n in [4, 6] {
        let answer = scene.put(phone, n, seconds(1)).await;
        assert_eq!(
            (answer.stored, answer.acknowledged),
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
    let asked = [(phone, 1), (desk, 1), (phone, 2), (phone, 3), (desk, 3)];
    let asked = asked.map(|(target, n)| (target, scene.id(n)));
    let find = async |now| {
        let found = scene.store.find(&asked, now).await.into_iter();
        found
            .map(|found| found.expect("answered"))
            .collect::<Vec<_>>()
    };
    use MailLocation::{Absent, Acknowledged, Waits};
    for _ in 0..2 {
        let found = find(scene.now).await;
        assert_eq!(found, [Acknowledged, Waits, Waits, Waits, Absent]);
    }
    let page = scene.page(phone, None, 100).await;
    let there: Vec<MessageId> = page.mails.iter().map(|mail| mail.id).collect();
    assert_eq!((there, page.bodiless), (scene.ids([3]), scene.ids([2])));
    // Expired messages count as absent, and old acknowledgements are forgotten.
    let found = find(scene.now + seconds(120)).await;
    assert_eq!(found, [Acknowledged, Waits, Waits, Absent, Absent]);
    let found = find(scene.now + protocol::mailbox::ACKED_KEEP).await;
    assert_eq!(found, [Absent, Waits, Waits, Absent, Absent]);
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
    let seen: Vec<MessageId> = second.mails.iter().map(|mail| mail.id).collect();
    assert_eq!((seen, second.next), (scene.ids(4..=6), None));

    let waited = scene.acknowledge(target, scene.ids([1, 2, 3])).await;
    assert_eq!(waited, scene.ids([1, 2, 3]));
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
pub(crate) async fn how_far_a_user_received_never_goes_back(scene: &Scene) {
    // proves S0-83
    let (one, other) = (scene.user(1), scene.user(2));
    let received = async |user| scene.store.received(user).await.expect("answers");
    assert_eq!(received(one).await, None);
    let (early, late) = (scene.id(1), scene.id(2));
    for (told, known) in [(late, late), (early, late), (late, late)] {
        let told = vec![(one, told), (other, early)];
        scene.store.set_received(told).await.expect("written");
        assert_eq!(received(one).await, Some(known));
        assert_eq!(received(other).await, Some(early));
    }
    let both = vec![(other, late), (other, early)];
    scene.store.set_received(both).await.expect("written");
    assert_eq!(received(other).await, Some(late), "also inside one call");
}
