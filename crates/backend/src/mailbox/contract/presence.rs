//! Presence: sessions, and the answers to logins.

use protocol::mailbox::TooManySessions;

use super::*;

/// A route returns live sessions, on other platforms too, and stores nothing for platforms that
/// have one.
pub(crate) async fn platforms_with_sessions_store_nothing(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    scene.connect(&scene.session(1, phone)).await;
    scene.connect(&scene.session(2, desk)).await;
    let answer = scene.put(phone, 1, seconds(1)).await;
    let mut live: Vec<Platform> = answer.live.iter().map(|entry| entry.platform).collect();
    live.sort();
    assert_eq!(live, [Platform::Ios, Platform::Desktop]);
    assert_eq!(answer.stored_platforms, []);
    assert_eq!(scene.waiting(phone).await, []);
}

/// A forced store happens despite a live session, and returns that session so that it can be woken.
pub(crate) async fn a_forced_store_returns_the_live_session(scene: &Scene) {
    let phone = scene.ios(1);
    scene.connect(&scene.session(1, phone)).await;
    let mut request = scene.request(phone, scene.mail(1, seconds(1)));
    request.forced_platforms = vec![Platform::Ios];
    let answer = scene.route(request).await;
    assert_eq!(answer.live.len(), 1);
    assert_eq!(answer.stored_platforms, [Platform::Ios]);
    assert_eq!(scene.waiting(phone).await, scene.ids([1]));
}

/// A route without mail only looks.
pub(crate) async fn a_look_stores_nothing(scene: &Scene) {
    let phone = scene.ios(1);
    let mut request = scene.request(phone, scene.mail(1, seconds(1)));
    request.mail = None;
    let answer = scene.route(request).await;
    assert_eq!(
        (answer.live.len(), answer.stored_platforms),
        (0, Vec::new())
    );
    assert_eq!(scene.waiting(phone).await, []);
}

/// Requests of one call take effect in order, separately for each user.
pub(crate) async fn a_batch_keeps_its_order(scene: &Scene) {
    let (absent, present) = (scene.ios(1), scene.ios(2));
    scene.connect(&scene.session(1, present)).await;
    let mut requests = Vec::new();
    for n in 1..=100 {
        let target = if n % 3 == 0 { present } else { absent };
        requests.push(scene.request(target, scene.mail(n, seconds(5))));
    }
    let answers = scene.store.route_or_store(requests).await;
    for (n, answer) in (1..=100).zip(answers) {
        let answer = answer.expect("routed");
        assert_eq!(answer.live.len(), usize::from(n % 3 == 0));
        assert_eq!(answer.stored_platforms.len(), usize::from(n % 3 != 0));
    }
    assert_eq!(
        scene.waiting(absent).await,
        scene.ids([94, 95, 97, 98, 100])
    );
    assert_eq!(scene.waiting(present).await, []);
}

/// A login announces mail stored before it; a route after it finds the session.
// proves S0-73, S0-74
pub(crate) async fn a_login_announces_waiting_mail(scene: &Scene) {
    let phone = scene.ios(1);
    scene.put(phone, 1, seconds(1)).await;
    let answer = scene.connect(&scene.session(1, phone)).await;
    assert!(answer.mail_waits);
    let answer = scene.put(phone, 2, seconds(1)).await;
    assert_eq!(
        (answer.live.len(), answer.stored_platforms),
        (1, Vec::new())
    );
    let desk = scene.session(2, scene.on(1, Platform::Desktop));
    assert!(
        !scene.connect(&desk).await.mail_waits,
        "nothing waits there"
    );
}

/// The same under concurrency, many times over: no message falls between.
// proves S0-72, S0-75
pub(crate) async fn no_message_falls_between(scene: &Scene) {
    const USERS: i64 = 64;
    for round in 0..15 {
        let users: Vec<i64> = (1..=USERS).map(|n| round * USERS + n).collect();
        let request = |n: &i64| scene.request(scene.ios(*n), scene.mail(*n, seconds(1)));
        let requests = users.iter().map(request).collect();
        let store = scene.store.clone();
        let route_task = tokio::spawn(async move { store.route_or_store(requests).await });
        let mut waits = Vec::new();
        for n in &users {
            let login = scene.connect(&scene.session(*n, scene.ios(*n))).await;
            waits.push(login.mail_waits);
        }
        for (answer, waits) in route_task.await.expect("no panic").into_iter().zip(waits) {
            let answer = answer.expect("routed");
            let is_stored = !answer.stored_platforms.is_empty();
            assert_ne!(
                is_stored,
                !answer.live.is_empty(),
                "one of both: {answer:?}"
            );
            assert_eq!(waits, is_stored);
        }
    }
}

/// A login removes the platform's other session in the same step and names it.
pub(crate) async fn a_login_displaces_its_platform_only(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    let (first, second) = (scene.session(1, phone), scene.session(2, phone));
    let other = scene.session(3, desk);
    let login = scene.connect(&first).await;
    assert_eq!(login.displaced_sessions, []);
    assert_eq!(scene.connect(&other).await.displaced_sessions, []);
    let second_login = scene.connect(&second).await;
    assert_eq!(second_login.displaced_sessions, [first.key]);
    assert!(second_login.login > login.login);
    let live: BTreeSet<SessionId> = scene
        .live(phone.user, DeniedBoats::default())
        .await
        .into_iter()
        .collect();
    assert_eq!(
        live,
        BTreeSet::from([second.key.session, other.key.session])
    );
}

/// A device that signs in again replaces its own session, which does not count as displacement: its
/// sign-ins may have overtaken each other, and it may have given up the one that arrived last.
pub(crate) async fn a_device_replaces_itself(scene: &Scene) {
    let phone = scene.ios(1);
    let first = scene.session(1, phone);
    let second = NewSession {
        device: first.device.clone(),
        ..scene.session(2, phone)
    };
    scene.connect(&second).await;
    let late = scene.connect(&first).await;
    assert_eq!(
        (late.displaced_sessions, late.replaced_sessions),
        (vec![], vec![second.key.clone()])
    );
    assert_eq!(scene.reassert(&second).await, ReassertAnswer::Replaced);
    let other = scene.connect(&scene.session(3, phone)).await;
    assert_eq!(
        (other.displaced_sessions, other.replaced_sessions),
        (vec![first.key], vec![])
    );
    assert_eq!(scene.reassert(&second).await, ReassertAnswer::Displaced);
}

/// Bots displace nobody: each has a session of its own, and a message finds all of them.
pub(crate) async fn bots_stand_side_by_side(scene: &Scene) {
    let target = scene.on(1, Platform::Bot);
    for n in 1..=3 {
        let answer = scene.connect(&scene.session(n, target)).await;
        assert_eq!(answer.displaced_sessions, []);
    }
    let answer = scene.put(target, 1, seconds(1)).await;
    assert_eq!(
        (answer.live.len(), answer.stored_platforms),
        (3, Vec::new())
    );
    let first = scene.session(1, target);
    scene.sign_off(vec![first.key.clone()]).await;
    let reply = scene.reassert(&first).await;
    assert!(
        matches!(reply, ReassertAnswer::Restored { .. }),
        "{reply:?}"
    );
    assert_eq!(
        scene.live(target.user, DeniedBoats::default()).await.len(),
        3
    );
}

/// A bot of the scene's user, on the given boat.
fn bot(scene: &Scene, n: i64, boat: &str) -> NewSession {
    let mut session = scene.session(n, scene.on(1, Platform::Bot));
    session.key.life = life(boat, 1);
    session
}

async fn sign_in(
    scene: &Scene,
    session: &NewSession,
    denied_boats: DeniedBoats,
) -> Result<(), TooManySessions> {
    let request = ConnectRequest {
        user: session.key.user,
        entry: session.clone(),
        denied_boats,
        now: scene.now,
    };
    let answer = scene.store.connect(request).await.expect("an answer");
    answer.map(drop)
}

pub(crate) async fn a_platform_holds_sessions_up_to_its_capacity(scene: &Scene) {
    for n in 1..=16 {
        let bot = bot(scene, n, "boat");
        sign_in(scene, &bot, DeniedBoats::default())
            .await
            .expect("room");
    }
    let late = bot(scene, 17, "boat");
    for _ in 0..2 {
        let result = sign_in(scene, &late, DeniedBoats::default()).await;
        assert_eq!(result, Err(TooManySessions));
    }
    let repeat = sign_in(scene, &bot(scene, 3, "boat"), DeniedBoats::default()).await;
    assert_eq!(repeat, Ok(()), "registered already");
    let live = scene.live(late.key.user, DeniedBoats::default()).await;
    assert_eq!(live.len(), 16);
    // Other platforms of the user, and other users, have capacity of their own.
    scene.connect(&scene.session(20, scene.ios(1))).await;
    let other = scene.on(2, Platform::Bot);
    scene.connect(&scene.session(21, other)).await;
    // A bot whose connection died blocks nobody: its next login replaces it.
    let device = bot(scene, 7, "boat").device;
    let replacement = NewSession {
        device,
        ..bot(scene, 18, "boat")
    };
    let answer = scene.connect(&replacement).await;
    assert_eq!(answer.replaced_sessions, [bot(scene, 7, "boat").key]);
    let leaves = vec![bot(scene, 5, "boat").key];
    scene.sign_off(leaves).await;
    sign_in(scene, &late, DeniedBoats::default())
        .await
        .expect("one has left");
}

pub(crate) async fn sessions_of_the_denied_leave_room(scene: &Scene) {
    for n in 1..=16 {
        let boat = if n % 2 == 0 { "boat" } else { "sunk" };
        let bot = bot(scene, n, boat);
        sign_in(scene, &bot, DeniedBoats::default())
            .await
            .expect("room");
    }
    let sunk = denied([life("sunk", 1), life("elsewhere", 1)]);
    for n in 17..=24 {
        let bot = bot(scene, n, "boat");
        sign_in(scene, &bot, sunk.clone())
            .await
            .expect("room of the sunk");
    }
    let late = bot(scene, 25, "boat");
    assert_eq!(sign_in(scene, &late, sunk).await, Err(TooManySessions));
    let live = scene.live(late.key.user, DeniedBoats::default()).await;
    assert_eq!(live.len(), 16);
}

pub(crate) async fn a_login_beyond_the_capacity_displaces_the_oldest(scene: &Scene) {
    for (user, (platform, room)) in (1..).zip(ROOMY) {
        let target = scene.on(user, platform);
        let room = i64::from(room);
        let session = |n| scene.session(user * 100 + n, target);
        for n in 1..=room {
            let answer = scene.connect(&session(n)).await;
            assert_eq!(
                (answer.displaced_sessions, answer.replaced_sessions),
                (vec![], vec![])
            );
        }
        // A repeated login, or one on another platform, ends no session.
        let repeat = scene.connect(&session(1)).await;
        assert_eq!(
            (repeat.displaced_sessions, repeat.replaced_sessions),
            (vec![], vec![])
        );
        scene
            .connect(&scene.session(user * 100 + 50, scene.ios(user)))
            .await;
        // The device's own session goes first, whatever the room.
        let second = NewSession {
            device: session(1).device,
            ..session(20)
        };
        let answer = scene.connect(&second).await;
        let removals = (answer.displaced_sessions, answer.replaced_sessions);
        assert_eq!(removals, (vec![], vec![session(1).key]));
        // Now the device's session is the newest; the others are displaced before it, one per
        // login.
        for n in 2..=room {
            let answer = scene.connect(&session(20 + n)).await;
            let removals = (answer.displaced_sessions, answer.replaced_sessions);
            assert_eq!(removals, (vec![session(n).key], vec![]));
        }
        let answer = scene.connect(&session(30)).await;
        assert_eq!(answer.displaced_sessions, [second.key]);
        let live = scene.live(target.user, DeniedBoats::default()).await;
        assert_eq!(live.len() as i64, room + 1, "and the telephone");
    }
}

pub(crate) async fn a_session_comes_back_where_there_is_room(scene: &Scene) {
    let [(platform, room), _] = ROOMY;
    assert_eq!(room, 2);
    let session = |n| scene.session(n, scene.on(1, platform));
    for n in 1..=3 {
        scene.connect(&session(n)).await;
    }
    assert_eq!(scene.reassert(&session(1)).await, ReassertAnswer::Displaced);
    let expected = ReassertAnswer::Known { mail_waits: false };
    assert_eq!(scene.reassert(&session(2)).await, expected);
    let own = NewSession {
        device: session(3).device,
        ..session(4)
    };
    assert_eq!(scene.reassert(&own).await, ReassertAnswer::Replaced);
    scene.sign_off(vec![session(2).key]).await;
    let reply = scene.reassert(&session(1)).await;
    assert!(
        matches!(reply, ReassertAnswer::Restored { .. }),
        "{reply:?}"
    );
    assert_eq!(scene.reassert(&session(2)).await, ReassertAnswer::Displaced);
    // The restored session is the newest, so the other one is displaced.
    let answer = scene.connect(&session(5)).await;
    assert_eq!(answer.displaced_sessions, [session(3).key]);
}

/// A store that has lost its sessions: a boat whose kick was lost, too, may be the first to assert
/// what it holds.
pub(crate) async fn sessions_come_back_in_the_order_of_their_logins(scene: &Scene) {
    let is_restored = |answer: &ReassertAnswer| matches!(answer, ReassertAnswer::Restored { .. });
    let none = DeniedBoats::default;
    let phone = scene.ios(1);
    let (first_session, second_session) = (scene.session(1, phone), scene.session(2, phone));
    let first = scene.connect(&first_session).await.login;
    let second = scene.connect(&second_session).await.login;
    scene.sign_off(vec![second_session.key.clone()]).await;
    let back = scene.reassert_as(&first_session, first).await;
    assert!(is_restored(&back), "{back:?}");
    let back = scene.reassert_as(&second_session, second).await;
    assert!(is_restored(&back), "{back:?}");
    assert_eq!(
        scene.reassert_as(&first_session, first).await,
        ReassertAnswer::Displaced
    );
    let known_answer = ReassertAnswer::Known { mail_waits: false };
    assert_eq!(
        scene.reassert_as(&second_session, second).await,
        known_answer
    );
    assert_eq!(
        scene.live(phone.user, none()).await,
        [second_session.key.session]
    );

    // Of one device.
    let third_session = NewSession {
        device: second_session.device.clone(),
        ..scene.session(3, phone)
    };
    let third = scene.connect(&third_session).await.login;
    scene.sign_off(vec![third_session.key.clone()]).await;
    let back = scene.reassert_as(&second_session, second).await;
    assert!(is_restored(&back), "{back:?}");
    let back = scene.reassert_as(&third_session, third).await;
    assert!(is_restored(&back), "{back:?}");
    assert_eq!(
        scene.reassert_as(&second_session, second).await,
        ReassertAnswer::Replaced
    );

    // The latest stay, and the oldest of them leaves next.
    let [_, (platform, room)] = ROOMY;
    assert_eq!(room, 3);
    let target = scene.on(1, platform);
    let session = |n: i64| scene.session(10 + n, target);
    let mut logins = Vec::new();
    for n in 0..5 {
        logins.push(scene.connect(&session(n)).await.login);
    }
    let keys = (0..5).map(|n| session(n).key);
    scene.sign_off(keys.collect()).await;
    for n in [2, 4, 0, 3, 1] {
        scene.reassert_as(&session(n), logins[n as usize]).await;
    }
    let live: BTreeSet<_> = scene.live(target.user, none()).await.into_iter().collect();
    let expected = [2, 3, 4].map(|n| session(n).key.session);
    assert!(
        expected.iter().all(|session| live.contains(session)),
        "{live:?}"
    );
    assert_eq!(live.len(), 4, "with the phone's");
    let next = scene.connect(&session(5)).await;
    assert_eq!(next.displaced_sessions, [session(2).key]);
    assert!(next.login > logins[4]);
}

/// An earlier session stays if the place that another one needs is that of an ended boat.
pub(crate) async fn ended_boat_displaces_no_session(scene: &Scene) {
    let [(platform, room), _] = ROOMY;
    assert_eq!(room, 2);
    let target = scene.on(1, platform);
    let on = |n, boat| {
        let mut session = scene.session(n, target);
        session.key.life = life(boat, 1);
        session
    };
    let (earliest, back, sunk) = (on(1, "boat"), on(2, "boat"), on(3, "sunk"));
    scene.connect(&earliest).await;
    let login = scene.connect(&back).await.login;
    scene.sign_off(vec![back.key.clone()]).await;
    scene.connect(&sunk).await;
    let held_session = HeldSession {
        session: back.clone(),
        login: Some(login),
    };
    let dead = denied([life("sunk", 1)]);
    let request = vec![(target.user, held_session)];
    let answers = scene.store.reassert(request, dead, scene.now).await;
    let answer = answers[0].as_ref().expect("answered");
    assert!(
        matches!(answer, ReassertAnswer::Restored { .. }),
        "{answer:?}"
    );
    let live = scene.live(target.user, DeniedBoats::default()).await;
    assert_eq!(live, [earliest.key.session, back.key.session]);
}

/// A boat's word alone must not make its sessions the latest for ever.
pub(crate) async fn a_future_login_number_counts_as_unknown(scene: &Scene) {
    let phone = scene.ios(1);
    scene.reassert_as(&scene.session(1, phone), u64::MAX).await;
    let session = scene.session(2, phone);
    let answer = scene.reassert_as(&session, u64::MAX).await;
    assert_eq!(answer, ReassertAnswer::Displaced);
    let login = scene.connect(&session).await.login;
    assert!(login < u64::MAX / 2, "{login}");
}

pub(crate) async fn denied_sessions_take_no_capacity(scene: &Scene) {
    for (user, (platform, room)) in (1..).zip(ROOMY) {
        let target = scene.on(user, platform);
        let session = |n: i64, boat| {
            let mut session = scene.session(user * 100 + n, target);
            session.key.life = life(boat, 1);
            session
        };
        scene.connect(&session(1, "boat")).await;
        for n in 2..=i64::from(room) {
            scene.connect(&session(n, "sunk")).await;
        }
        let sunk = denied([life("sunk", 1), life("elsewhere", 1)]);
        let back = vec![(target.user, session(20, "boat").into())];
        let mut answers = scene.store.reassert(back, sunk.clone(), scene.now).await;
        let back = answers.remove(0).expect("answered");
        assert!(matches!(back, ReassertAnswer::Restored { .. }), "{back:?}");
        for n in 3..=i64::from(room) {
            let next = session(30 + n, "boat");
            let answer = scene.connect_with(&next, sunk.clone(), scene.now).await;
            assert_eq!(answer.displaced_sessions, []);
        }
        let next = session(40, "boat");
        let answer = scene.connect_with(&next, sunk.clone(), scene.now).await;
        assert_eq!(answer.displaced_sessions, [session(1, "boat").key]);
        assert_eq!(scene.live(target.user, sunk).await.len(), room as usize);
    }
}

pub(crate) async fn all_sessions_of_a_platform_get_the_message(scene: &Scene) {
    let [_, (platform, room)] = ROOMY;
    let target = scene.on(1, platform);
    for n in 1..=i64::from(room) {
        scene.connect(&scene.session(n, target)).await;
    }
    let answer = scene.put(target, 1, seconds(1)).await;
    assert_eq!(answer.live.len(), room as usize);
    assert_eq!(answer.stored_platforms, [], "somebody is there");
    // Sessions of a platform share its mail: a message acknowledged by one is owed to none of them.
    let mut request = scene.request(target, scene.mail(2, seconds(1)));
    request.forced_platforms = vec![platform];
    assert_eq!(
        scene.route(request.clone()).await.stored_platforms,
        [platform]
    );
    assert_eq!(
        scene.acknowledge(target, scene.ids([2])).await,
        scene.ids([2])
    );
    let answer = scene.route(request).await;
    assert_eq!(answer.acknowledged_platforms, [platform]);
    // A session that leaves does not end the others.
    scene.sign_off(vec![scene.session(1, target).key]).await;
    let answer = scene.put(target, 3, seconds(1)).await;
    assert_eq!((answer.live.len(), answer.stored_platforms), (2, vec![]));
}

pub(crate) async fn concurrent_logins_fill_the_capacity(scene: &Scene) {
    let [_, (platform, room)] = ROOMY;
    let target = scene.on(1, platform);
    let logins = (1..=40).map(|n| {
        let session = scene.session(n, target);
        let store = scene.store.clone();
        let request = ConnectRequest {
            user: target.user,
            entry: session.clone(),
            denied_boats: DeniedBoats::default(),
            now: scene.now,
        };
        tokio::spawn(async move { (session.key.session, store.connect(request).await) })
    });
    let (mut by_login, mut displaced_sessions) =
        (std::collections::BTreeMap::new(), BTreeSet::new());
    for login in join_all(logins).await {
        let (session, answer) = login.expect("no panic");
        let answer = answer
            .expect("connected")
            .expect("people are never refused");
        assert_eq!(by_login.insert(answer.login, session), None);
        for key in answer.displaced_sessions {
            assert!(
                displaced_sessions.insert(key.session),
                "displaced twice: {key:?}"
            );
        }
    }
    let mut newest: Vec<SessionId> = by_login.into_values().collect();
    let live = newest.split_off(newest.len() - room as usize);
    assert_eq!(displaced_sessions.into_iter().collect::<Vec<_>>(), {
        newest.sort_unstable();
        newest
    });
    assert_eq!(scene.live(target.user, DeniedBoats::default()).await, live);
}

/// Concurrent logins leave one session, the one with the largest number; each other session is
/// displaced once.
pub(crate) async fn concurrent_logins_leave_one_session(scene: &Scene) {
    let phone = scene.ios(1);
    let logins = (1..=40).map(|n| {
        let session = scene.session(n, phone);
        let store = scene.store.clone();
        let request = ConnectRequest {
            user: phone.user,
            entry: session.clone(),
            denied_boats: DeniedBoats::default(),
            now: scene.now,
        };
        tokio::spawn(async move { (session.key.session, store.connect(request).await) })
    });
    let (mut logins_seen, mut displaced_sessions) = (BTreeSet::new(), BTreeSet::new());
    for login in join_all(logins).await {
        let (session, answer) = login.expect("no panic");
        let answer = answer.expect("connected").expect("one at a time");
        assert!(logins_seen.insert((answer.login, session)));
        for key in answer.displaced_sessions {
            assert!(
                displaced_sessions.insert(key.session),
                "displaced twice: {key:?}"
            );
        }
    }
    let numbers: BTreeSet<u64> = logins_seen.iter().map(|(login, _)| *login).collect();
    assert_eq!(numbers.len(), 40, "each login has its own number");
    let winner = logins_seen.last().expect("forty").1;
    assert_eq!(
        scene.live(phone.user, DeniedBoats::default()).await,
        [winner]
    );
    assert_eq!(displaced_sessions.len(), 39);
    assert!(!displaced_sessions.contains(&winner));
}

/// A login repeated because its answer was lost changes nothing.
pub(crate) async fn a_login_may_be_repeated(scene: &Scene) {
    let session = scene.session(1, scene.ios(1));
    let first = scene.connect(&session).await;
    let second = scene.connect(&session).await;
    assert_eq!(
        (second.login, second.displaced_sessions),
        (first.login, Vec::new())
    );
    let live = scene.live(session.key.user, DeniedBoats::default()).await;
    assert_eq!(live, [session.key.session]);
}

/// Login numbers grow, whatever the caller's clock says.
pub(crate) async fn login_numbers_only_grow(scene: &Scene) {
    let phone = scene.ios(1);
    let mut last = 0;
    for (n, age) in [(1, 0), (2, 60), (3, 3_600), (4, 0)] {
        let now = scene.ago(seconds(age));
        let session = scene.session(n, phone);
        let login = scene
            .connect_with(&session, DeniedBoats::default(), now)
            .await;
        assert!(login.login > last);
        last = login.login;
        scene.sign_off(vec![session.key]).await;
    }
    assert!(last >= scene.now.millis() as u64, "at least the time");
}

/// A disconnect names the exact session and its boat; an unknown session is no error.
// proves S1-36
pub(crate) async fn a_disconnect_removes_exactly_one(scene: &Scene) {
    let session = scene.session(1, scene.ios(1));
    scene.connect(&session).await;
    let mut of_another_boat = session.key.clone();
    of_another_boat.life = life("other", 2);
    let mut of_another_session = session.key.clone();
    of_another_session.session = scene.session(2, scene.ios(1)).key.session;
    let strangers = vec![of_another_boat, of_another_session];
    scene.sign_off(strangers).await;
    let user = session.key.user;
    assert_eq!(
        scene.live(user, DeniedBoats::default()).await,
        [session.key.session]
    );
    for _ in 0..2 {
        scene.sign_off(vec![session.key.clone()]).await;
    }
    assert_eq!(scene.live(user, DeniedBoats::default()).await, []);
}

/// Sessions of a denied life are invisible at once, everywhere; another life of the same boat is
/// not affected.
// proves S1-35
pub(crate) async fn the_denied_are_invisible_at_once(scene: &Scene) {
    let phone = scene.ios(1);
    let session = scene.session(1, phone);
    scene.connect(&session).await;
    let unknown = denied([life("boat", 2), life("other", 1)]);
    assert_eq!(
        scene.live(phone.user, unknown.clone()).await,
        [session.key.session],
        "unknown means alive"
    );
    let mut request = scene.request(phone, scene.mail(1, seconds(1)));
    request.denied_boats = unknown;
    assert_eq!(scene.route(request.clone()).await.live.len(), 1);

    let dead = denied([life("boat", 1)]);
    assert_eq!(scene.live(phone.user, dead.clone()).await, []);
    request.denied_boats = dead;
    let answer = scene.route(request).await;
    assert_eq!(
        (answer.live.len(), answer.stored_platforms),
        (0, vec![Platform::Ios])
    );

    // Whatever the reason for the denial, the session drains once it is asserted again.
    let reply = scene.reassert(&session).await;
    assert!(
        matches!(
            reply,
            ReassertAnswer::Restored {
                mail_waits: true,
                ..
            }
        ),
        "{reply:?}"
    );
}

/// A session whose boat has ended is displaced without being reported for a kick.
pub(crate) async fn the_denied_are_not_kicked(scene: &Scene) {
    let phone = scene.ios(1);
    let mut dead = scene.session(1, phone);
    dead.key.life = life("dead", 1);
    scene.connect(&dead).await;
    let dead_boats = denied([life("dead", 1)]);
    let session = scene.session(2, phone);
    let answer = scene.connect_with(&session, dead_boats, scene.now).await;
    assert_eq!(answer.displaced_sessions, []);
    let live = scene.live(phone.user, DeniedBoats::default()).await;
    assert_eq!(live, [session.key.session]);
    assert_eq!(scene.reassert(&dead).await, ReassertAnswer::Displaced);
}

/// A reasserted session is known, restored or displaced.
// proves S1-37 in part
pub(crate) async fn a_boat_may_reassert_its_sessions(scene: &Scene) {
    let phone = scene.ios(1);
    let session = scene.session(1, phone);
    let marker = scene.connect(&session).await.marker;
    assert_eq!(
        scene.reassert(&session).await,
        ReassertAnswer::Known { mail_waits: false }
    );

    scene.sign_off(vec![session.key.clone()]).await;
    scene.put(phone, 1, seconds(1)).await;
    let expected = ReassertAnswer::Restored {
        marker,
        mail_waits: true,
    };
    assert_eq!(scene.reassert(&session).await, expected);
    assert_eq!(
        scene.reassert(&session).await,
        ReassertAnswer::Known { mail_waits: true }
    );

    let new_session = scene.session(2, phone);
    scene.connect(&new_session).await;
    assert_eq!(scene.reassert(&session).await, ReassertAnswer::Displaced);
    let live = scene.live(phone.user, DeniedBoats::default()).await;
    assert_eq!(live, [new_session.key.session]);
}

/// A boat that registered anew asserts its sessions under a later life: they are its own and move
/// to that life, and late calls of the earlier life change nothing.
pub(crate) async fn a_later_life_takes_its_sessions_along(scene: &Scene) {
    let phone = scene.ios(1);
    let session = scene.session(1, phone);
    let with_life = |incarnation| {
        let mut session = session.clone();
        session.key.life = life("boat", incarnation);
        session
    };
    let read_session = async || {
        let mut live = scene
            .store
            .sessions(&[phone.user], DeniedBoats::default())
            .await
            .remove(0)
            .expect("answered");
        let entry = live.pop().expect("one");
        assert_eq!((live.len(), entry.session), (0, session.key.session));
        (entry.life.incarnation.0, entry.login)
    };
    let login = scene.connect(&with_life(1)).await.login;
    let reply = scene.reassert(&with_life(2)).await;
    assert!(
        matches!(reply, ReassertAnswer::Restored { .. }),
        "{reply:?}"
    );
    assert_eq!(read_session().await, (2, login));

    // Late calls of the earlier life.
    scene.sign_off(vec![with_life(1).key]).await;
    let expected = ReassertAnswer::Known { mail_waits: false };
    assert_eq!(scene.reassert(&with_life(1)).await, expected);
    let repeat = scene.connect(&with_life(1)).await;
    assert_eq!(
        (repeat.login, repeat.displaced_sessions),
        (login, Vec::new())
    );
    assert_eq!(read_session().await, (2, login));
    let dead = denied([life("boat", 1)]);
    assert_eq!(scene.live(phone.user, dead).await, [session.key.session]);

    // A new login on the platform displaces the session under its current life.
    let new_session = scene.session(2, phone);
    assert_eq!(
        scene.connect(&new_session).await.displaced_sessions,
        [with_life(2).key]
    );
    assert_eq!(
        scene.reassert(&with_life(3)).await,
        ReassertAnswer::Displaced
    );
    // A session that signed off under a life not yet asserted is removed too.
    let mut key = new_session.key;
    key.life = life("boat", 9);
    scene.sign_off(vec![key]).await;
    assert_eq!(scene.live(phone.user, DeniedBoats::default()).await, []);
}

// proves S1 Pitfall A
/// Names may contain separators.
pub(crate) async fn names_may_hold_any_sign(scene: &Scene) {
    let phone = scene.ios(1);
    let names = [
        "boat-1-2",
        "ios-boat",
        "a:b|c/d",
        "{b0001}",
        "bö at\u{2003}7",
    ];
    for (n, name) in (1..).zip(names) {
        let mut session = scene.session(n, phone);
        session.key.life = life(name, u64::MAX);
        session.device = DeviceId::new("ios-1|{x}").expect("short");
        scene.connect(&session).await;
        let answer = scene.put(phone, n, seconds(1)).await;
        assert_eq!(answer.live.len(), 1);
        assert_eq!(answer.live[0].life, session.key.life);
        let other_lives = denied([life(name, 1), life("boat", u64::MAX)]);
        assert_eq!(
            scene.live(phone.user, other_lives).await,
            [session.key.session]
        );
        scene.sign_off(vec![session.key]).await;
        assert_eq!(scene.live(phone.user, DeniedBoats::default()).await, []);
    }
}

/// Many users append and acknowledge one message concurrently: each body stays as long as a mailbox
/// needs it.
pub(crate) async fn a_shared_body_survives_a_crowd(scene: &Scene) {
    let crowd = (1..=32).map(|n| {
        let (target, store) = (scene.ios(n), scene.store.clone());
        let request = scene.request(target, scene.mail(1, seconds(1)));
        let (id, now) = (scene.id(1), scene.now);
        tokio::spawn(async move {
            let mut answers = store.route_or_store(vec![request]).await;
            answers.remove(0).expect("stored");
            tokio::task::yield_now().await;
            let page = store.page(target, None, 10, now).await.expect("paged");
            assert_eq!(page.mails.len(), 1, "{page:?}");
            let acks = vec![(target, vec![id])];
            assert!(store.acknowledge(acks, now).await[0].is_ok());
        })
    });
    for member in join_all(crowd).await {
        member.expect("no panic");
    }
}
