//! Sessions over the wire: admitted, displaced, looked up, ended.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Admission, Connect, Kickout, Reassert, ReassertOutcome, Reasserted};
use api::v1;
use api::v1::station_service_client::StationServiceClient;
use backend::embedded::Engine;
use backend::hook::Fault;
use backend::installation::{EmbeddedInstallation, InstallationStore};
use protocol::access;
use protocol::mailbox::ReassertAnswer;
use protocol::presence::SessionKey;
use protocol::record::{KickoutTask, Work};
use protocol::{Code, Platform, Timestamp};
use tokio_util::sync::CancellationToken;

use super::groups::CLOSED;
use super::refusals::Refusals;
use super::world::*;
use crate::{Config, StartError, start};

impl World {
    pub(super) fn key(&self, number: i64, session_number: i64) -> SessionKey {
        SessionKey {
            user: user(number),
            session: session(session_number),
            life: self.life.clone(),
        }
    }

    pub(super) async fn online(&self, numbers: &[i64]) -> Vec<Vec<i64>> {
        let request = v1::OnlineRequest {
            users: numbers.to_vec(),
        };
        let answer = self.client.clone().online(request).await;
        let users = answer.expect("answered").into_inner().users;
        users
            .into_iter()
            .map(|user| {
                user.sessions
                    .iter()
                    .map(|session| session.session)
                    .collect()
            })
            .collect()
    }

    async fn kickouts(&self) -> Vec<KickoutTask> {
        let tasks = self.tasks().await.into_iter();
        tasks
            .filter_map(|work| match work {
                Work::Kickout(kickout) => Some(kickout),
                Work::Message(_) | Work::Deliver(_) => None,
            })
            .collect()
    }
}

/// Sessions of these members of a group, page after page.
async fn list_online_members(world: &World, in_group: i64) -> Vec<(i64, Vec<i64>)> {
    let (mut online, mut cursor) = (Vec::new(), 0);
    loop {
        let request = v1::OnlineMembersRequest {
            group: in_group,
            after: cursor,
        };
        let answer = world.client.clone().online_members(request).await;
        let page = answer.expect("answered").into_inner();
        online.extend(page.users.into_iter().map(|user| {
            let sessions = user.sessions.iter().map(|session| session.session);
            (user.user, sessions.collect())
        }));
        if page.next == 0 {
            return online;
        }
        assert!(page.next > cursor, "it goes on");
        cursor = page.next;
    }
}

// proves S3-38: each user's connections are kept, and a group's online users are those of its members. There is no
// second table that a crash could leave behind.
#[tokio::test(start_paused = true)]
async fn connected_group_members_are_listed_in_pages() {
    let world = world_with(Config {
        batch_items_max: 2,
        ..Config::default()
    })
    .await;
    world.create_group(7, CLOSED, &[1, 2, 3, 4, 5]).await;
    assert_eq!(list_online_members(&world, 7).await, []);
    world.sign_in(1, Platform::Ios, 11).await;
    world.sign_in(3, Platform::Ios, 13).await;
    world.sign_in(3, Platform::Web, 14).await;
    world.sign_in(5, Platform::Ios, 15).await;
    world.sign_in(6, Platform::Ios, 16).await;
    let online = [(1, vec![11]), (3, vec![13, 14]), (5, vec![15])];
    assert_eq!(list_online_members(&world, 7).await, online);
    // One server of the mailbox is away: its users are unknown, and keep back nobody else's page.
    world.lose_mailboxes(&[2, 3]);
    let online = [(1, vec![11]), (2, vec![]), (3, vec![]), (5, vec![15])];
    assert_eq!(list_online_members(&world, 7).await, online);
    let request = v1::OnlineRequest { users: vec![1, 2] };
    let answer = world.client.clone().online(request).await;
    let users = answer.expect("answered").into_inner().users;
    let unknown: Vec<bool> = users.iter().map(|user| user.unknown).collect();
    assert_eq!(unknown, [false, true]);
    world.restore_mailboxes();
    assert_eq!(
        list_online_members(&world, 8).await,
        [],
        "there is no such group"
    );
    world.set_role(7, CLOSED, 1, None).await;
    let sign_off = v1::DisconnectRequest {
        sessions: vec![(&world.key(5, 15)).into()],
        tickets: Vec::new(),
    };
    world.client.clone().disconnect(sign_off).await.unwrap();
    assert_eq!(list_online_members(&world, 7).await, [(3, vec![13, 14])]);
}

// proves S1-60: sessions are in the mailbox store; messages and kickouts are on the queue, and nothing else is. Mail that
// waits is pulled, page by page.
#[tokio::test(start_paused = true)]
async fn sessions_go_to_the_mailbox_store_and_tasks_to_the_queue() {
    let world = world().await;
    let mut expected_ids = Vec::new();
    for seq in 1..=3 {
        let entry = world.place(1, 2, seq, "x").await;
        world.store(&entry).await;
        expected_ids.push(entry.message.id);
    }
    assert!(world.sign_in(2, Platform::Ios, 22).await.mail_waits);
    assert_eq!(world.online(&[2]).await, [[22]]);
    let (mut pulled_ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = world.mail(cursor, 2).await;
        pulled_ids.extend(page.mails.iter().map(|mail| mail.id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pulled_ids, expected_ids);
    settle().await;
    assert_eq!(world.tasks().await, [], "nobody is told to send it");

    world.sign_in(2, Platform::Ios, 23).await;
    let result = world.submit_one(item(2, send(1, 1, "hello"))).await;
    let id = result.expect("accepted");
    settle().await;
    assert_eq!(world.messages().await, [(id, "hello".to_owned())]);
    let kickouts = world.kickouts().await;
    assert_eq!(kickouts.len(), 1);
    assert_eq!(kickouts[0].sessions, [world.key(2, 22)]);
    assert_eq!(world.tasks().await.len(), 2);
}

// proves S1-59, S1-60 in part
#[tokio::test(start_paused = true)]
async fn a_session_is_admitted_found_and_gone() {
    let world = world().await;
    let admission = world.sign_in(1, Platform::Ios, 11).await;
    assert_eq!(admission.user, user(1));
    assert_eq!(admission.server_time, BEGIN);
    assert_eq!(admission.expires_at, BEGIN + Duration::from_secs(3600));
    let cluster = world.backends.registry.cluster().await.expect("reads");
    assert_eq!(Some(admission.cluster), cluster);
    assert!(admission.is_recovered && !admission.mail_waits);
    let devices = &world.backends.devices;
    let platforms = devices.platforms(&[user(1)], Timestamp::ZERO).await;
    assert_eq!(platforms.expect("readable"), [[Platform::Ios]]);
    assert_eq!(world.online(&[1, 2]).await, [vec![11], vec![]]);

    let request = v1::DisconnectRequest {
        sessions: vec![(&world.key(1, 99)).into(), (&world.key(1, 11)).into()],
        tickets: Vec::new(),
    };
    let answer = world.client.clone().disconnect(request).await;
    answer.expect("a session that is not there is no error");
    assert_eq!(world.online(&[1]).await, [Vec::<i64>::new()]);
}

// proves S1-08 in part: of those who leave together the store is told together.
#[tokio::test(start_paused = true)]
async fn many_who_leave_at_once_are_one_call_to_the_store() {
    const LEAVING: i64 = 1024;
    let world = world().await;
    for number in [1, LEAVING, LEAVING + 1] {
        world.sign_in(number, Platform::Ios, number).await;
    }
    let keys = (1..=LEAVING).map(|number| world.key(number, number));
    let request = v1::DisconnectRequest {
        sessions: keys.map(|key| (&key).into()).collect(),
        tickets: Vec::new(),
    };
    let answer = world.client.clone().disconnect(request).await;
    answer.expect("signed off");
    let calls = world.faults.calls("mailbox", "disconnect");
    assert_eq!(calls, 1, "for {LEAVING} sessions");
    let online = world.online(&[1, LEAVING, LEAVING + 1]).await;
    assert_eq!(online, [vec![], vec![], vec![LEAVING + 1]]);
}

// A server of the mailbox that is away: its sessions are named, and the others are signed off.
#[tokio::test(start_paused = true)]
async fn unanswered_sign_offs_are_named() {
    let world = world().await;
    for number in 1..=3 {
        world.sign_in(number, Platform::Ios, 10 + number).await;
    }
    let sign_off = async |world: &World| {
        let keys = (1..=3).map(|number| world.key(number, 10 + number));
        let request = v1::DisconnectRequest {
            sessions: keys.map(|key| (&key).into()).collect(),
            tickets: Vec::new(),
        };
        let answer = world.client.clone().disconnect(request).await;
        answer.expect("answered").into_inner().unanswered
    };
    world.lose_mailboxes(&[2]);
    assert_eq!(sign_off(&world).await, [1]);
    world.restore_mailboxes();
    assert_eq!(
        world.online(&[1, 3]).await,
        [const { Vec::<i64>::new() }; 2]
    );
    assert_eq!(sign_off(&world).await, [0; 0]);
}

// proves S1-22: the second login kicks the first one out, and does not wait for it.
#[tokio::test(start_paused = true)]
async fn a_second_login_kicks_the_first_out_in_the_background() {
    let world = world().await;
    let first = world.sign_in(1, Platform::Ios, 11).await;
    world.sign_in(1, Platform::Web, 12).await;
    world.faults.next(3, PUBLISHES, Fault::Unavailable);
    let second = world.sign_in(1, Platform::Ios, 13).await;
    assert!(second.login > first.login);
    assert_eq!(world.kickouts().await, [], "the answer did not wait");
    assert_eq!(world.online(&[1]).await[0].len(), 2);

    // The log comes back: it is tried again.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let kickouts = world.kickouts().await;
    assert_eq!(kickouts.len(), 1);
    assert_eq!(kickouts[0].sessions, [world.key(1, 11)]);
    assert_eq!(kickouts[0].refusal.code, Code::Displaced);
    let key = protocol::keys::control_key(user(1));
    assert_eq!(world.log().await[0].key, &key[..]);
}

#[tokio::test(start_paused = true)]
async fn seventeenth_bot_session_is_refused_and_not_registered() {
    let refusals = Refusals::default();
    let _recorder = metrics::set_default_local_recorder(&refusals);
    let world = world().await;
    for at in 1..=16 {
        world.sign_in(1, Platform::Bot, at).await;
    }
    let late = world.connect_request(1, Platform::Bot, 17);
    let refusal = world.connect(&late).await.expect_err("no room");
    assert_eq!(refusal.code, Code::TooManySessions);
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(60)));
    assert!(refusals.counted_only("user_sessions", 1));
    assert_eq!(world.online(&[1]).await[0].len(), 16);
    world.sign_in(1, Platform::Ios, 18).await;
    world.sign_in(2, Platform::Bot, 19).await;
    let keys = vec![world.key(1, 3)];
    let answers = world.backends.mailbox.disconnect(keys).await;
    assert!(matches!(answers[..], [Ok(())]));
    world.connect(&late).await.expect("one has left");
}

// Two sign-ins of one device, of which the later may be admitted first: the other one must come
// again.
#[tokio::test(start_paused = true)]
async fn device_that_signs_in_again_is_replaced_not_displaced() {
    let world = world().await;
    let connect = |at| Connect {
        device: device("phone"),
        ..world.connect_request(1, Platform::Ios, at)
    };
    world.connect(&connect(12)).await.expect("admitted");
    world.connect(&connect(11)).await.expect("admitted late");
    settle().await;
    let kickouts = world.kickouts().await;
    assert_eq!(kickouts.len(), 1);
    assert_eq!(kickouts[0].sessions, [world.key(1, 12)]);
    assert_eq!(kickouts[0].refusal.code, Code::Replaced);
    assert!(kickouts[0].refusal.code.retryable());
}

#[tokio::test(start_paused = true)]
async fn connecting_again_with_the_same_session_changes_nothing() {
    let world = world().await;
    let connect = world.connect_request(1, Platform::Ios, 11);
    let first = world.connect(&connect).await.expect("admitted");
    let second = world.connect(&connect).await.expect("admitted again");
    assert_eq!(first, second);
    settle().await;
    assert_eq!(world.kickouts().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_marker_of_other_data_means_not_recovered() {
    let world = world().await;
    let mut connect = world.connect_request(1, Platform::Ios, 11);
    let marker = world.connect(&connect).await.expect("admitted").marker;
    connect.marker = Some(marker);
    assert!(
        world
            .connect(&connect)
            .await
            .expect("admitted")
            .is_recovered
    );
    connect.marker = Some(marker ^ 1);
    assert!(
        !world
            .connect(&connect)
            .await
            .expect("admitted")
            .is_recovered
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_mailbox_keeps_nobody_out() {
    let world = world().await;
    let mut connect = world.connect_request(1, Platform::Ios, 11);
    let marker = world.connect(&connect).await.expect("admitted").marker;
    world.faults.begin(MAILBOX, Fault::Hang);
    connect.marker = Some(marker);
    let admission = world.connect(&connect).await.expect("T-R1");
    assert!(admission.is_degraded && !admission.is_recovered && !admission.mail_waits);
    assert_eq!(admission.marker, marker, "nothing is known of another");
    let request = v1::ReassertRequest {
        sessions: vec![reassert(&world, 1, 11)],
    };
    let answer = world.client.clone().reassert(request).await;
    let results = answer.expect("answered").into_inner().results;
    let result = Reasserted::try_from(results[0].clone())
        .expect("known")
        .outcome;
    assert_eq!(result, ReassertOutcome::Unavailable);
}

fn reassert(world: &World, number: i64, session_number: i64) -> v1::ReassertSession {
    (&Reassert {
        key: world.key(number, session_number),
        platform: Platform::Ios,
        device: device(&format!("phone-{session_number}")),
        login: None,
        issued_at: None,
        ticket: None,
    })
        .into()
}

#[tokio::test(start_paused = true)]
async fn a_boat_learns_what_became_of_its_sessions() {
    let world = world().await;
    let marker = world.sign_in(1, Platform::Ios, 11).await.marker;
    world.sign_in(2, Platform::Ios, 12).await;
    world.sign_in(2, Platform::Ios, 13).await;
    let request = v1::ReassertRequest {
        sessions: vec![
            reassert(&world, 1, 11),
            reassert(&world, 2, 12),
            reassert(&world, 3, 14),
        ],
    };
    let answer = world.client.clone().reassert(request).await;
    let results = answer.expect("answered").into_inner().results;
    let results: Vec<_> = results
        .into_iter()
        .map(|result| Reasserted::try_from(result).expect("known").outcome)
        .collect();
    let expected = ReassertAnswer::Restored {
        marker,
        mail_waits: false,
    };
    assert_eq!(
        results,
        [
            ReassertOutcome::Answer(ReassertAnswer::Known { mail_waits: false }),
            ReassertOutcome::Answer(ReassertAnswer::Displaced),
            ReassertOutcome::Answer(expected),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_operator_kicks_out_one_platform_or_all() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    world.sign_in(1, Platform::Web, 12).await;
    let kick = async |number: i64, platform| {
        let request = v1::KickoutRequest::from(&Kickout {
            user: user(number),
            platform,
            text: "by order".into(),
        });
        let answer = world.client.clone().kickout(request).await;
        answer.expect("answered");
        let kickouts = world.kickouts().await;
        kickouts.last().map(|kickout| kickout.sessions.clone())
    };
    assert_eq!(kick(2, None).await, None, "nobody is there");
    let web = kick(1, Some(Platform::Web)).await;
    assert_eq!(web, Some(vec![world.key(1, 12)]));
    let all = kick(1, None).await.map(|sessions| sessions.len());
    assert_eq!(all, Some(2));
    world.faults.next(1, PUBLISHES, Fault::Unavailable);
    let request = v1::KickoutRequest::from(&Kickout {
        user: user(1),
        platform: None,
        text: "by order".into(),
    });
    let outcome = world.client.clone().kickout(request).await;
    assert_eq!(
        refusal_code(&outcome.expect_err("not in the log")),
        Code::Unavailable
    );
}

// A boat that begins anew under its name ended its earlier life, and with it the sessions there.
#[tokio::test(start_paused = true)]
async fn sessions_of_an_earlier_life_do_not_count() {
    use backend::discovery::Role;

    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let request = world
        .backends
        .registry
        .register(Role::Boat, "boat-1", "inproc:boat-1");
    let _registration = request.await.expect("a lease");
    settle().await;
    assert_eq!(world.online(&[1]).await, [Vec::<i64>::new()]);
}

// design 5: unknown means alive; a life is over when its lease is gone and nobody answers for it.
#[tokio::test(start_paused = true)]
async fn a_boat_without_a_lease_lives_as_long_as_it_answers() {
    let mut world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    drop(world.lease.take());
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.online(&[1]).await, [vec![11]]);
    drop(world.door.take());
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.online(&[1]).await, [Vec::<i64>::new()]);
}

// The station keeps the address of a boat that counts as over: nobody else would name it.
#[tokio::test(start_paused = true)]
async fn a_boat_that_counted_as_over_lives_once_it_answers() {
    let mut world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    drop(world.lease.take());
    drop(world.door.take());
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.online(&[1]).await, [Vec::<i64>::new()]);
    world.reopen_boat();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.online(&[1]).await, [vec![11]]);
}

#[tokio::test(start_paused = true)]
async fn a_station_that_lost_its_lease_registers_again() {
    use backend::discovery::Role;

    let world = world().await;
    let mut directory = world
        .backends
        .registry
        .watch(Role::Station)
        .await
        .expect("a roster");
    let first = directory.borrow_and_update()[0].life.clone();
    assert_eq!(first, world.station.instance().life);
    assert!(world.registry.revoke(Role::Station, first.boat.as_str()));
    settle().await;
    let second = directory.borrow_and_update()[0].life.clone();
    assert!(second.boat == first.boat && second.incarnation > first.incarnation);
    assert!(world.submit_one(item(1, send(2, 1, "x"))).await.is_ok());
}

/// Answer of another station on the same backends to a client.
async fn other_station_admission(world: &World) -> Admission {
    let config = Config {
        name: "station-2".into(),
        ..Config::default()
    };
    let stop = CancellationToken::new();
    let other = start(
        config,
        world.backends.clone(),
        world.connector.clone(),
        stop.clone(),
    )
    .await;
    let other = other.expect("a station");
    let channel = world
        .connector
        .channel(access::Role::Station, &other.instance().address);
    let connect = world.connect_request(2, Platform::Ios, 12);
    let answer = StationServiceClient::new(channel)
        .connect(v1::ConnectRequest::from(&connect))
        .await;
    stop.cancel();
    other.drained().await;
    let answer: Result<Admission, _> = answer
        .expect("answered")
        .into_inner()
        .try_into()
        .expect("whole");
    answer.expect("admitted")
}

// Discovery is set up anew and a station is started: no client takes the installation for another
// one.
#[tokio::test(start_paused = true)]
async fn installation_number_survives_the_loss_of_discovery() {
    let world = world().await;
    let old_cluster = world.sign_in(1, Platform::Ios, 11).await.cluster;
    world.registry.lose_numbers().expect("lost");
    assert_eq!(other_station_admission(&world).await.cluster, old_cluster);
    // The number comes back even if no station starts anew.
    world.registry.lose_numbers().expect("lost");
    tokio::time::sleep(Duration::from_secs(61)).await;
    let cluster = world.backends.registry.cluster().await;
    assert_eq!(cluster.expect("reads"), Some(old_cluster));
}

// A new store beside an old discovery: the number is put there as well.
#[tokio::test(start_paused = true)]
async fn installation_number_survives_the_loss_of_the_store() {
    let mut world = world().await;
    let old_cluster = world.sign_in(1, Platform::Ios, 11).await.cluster;
    let store = Arc::new(EmbeddedInstallation::new(Engine::memory()));
    world.backends.installation = store.clone();
    assert_eq!(other_station_admission(&world).await.cluster, old_cluster);
    assert_eq!(store.number().await.expect("reads"), Some(old_cluster));
}

#[tokio::test(start_paused = true)]
async fn a_station_does_not_start_between_two_installations() {
    let mut world = world().await;
    let store = EmbeddedInstallation::new(Engine::memory());
    store.record(7, BEGIN).await.expect("writes");
    world.backends.installation = Arc::new(store);
    let outcome = start(
        Config::default(),
        world.backends.clone(),
        world.connector.clone(),
        CancellationToken::new(),
    )
    .await;
    assert!(matches!(
        outcome,
        Err(StartError::Installations { store: 7, .. })
    ));
}
