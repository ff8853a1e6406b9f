//! Revoked tokens: refused here and at the other stations, also after a lost read.

use std::time::Duration;

use api::station::{Admission, Connect, Reassert, ReassertOutcome, Reasserted, RevokedPage};
use api::v1;
use api::v1::station_service_client::StationServiceClient;
use backend::hook::{Calls, Fault};
use protocol::access;
use protocol::mailbox::ReassertAnswer;
use protocol::revocation::{PageStart, Revocation};
use protocol::{Code, Platform, Refusal, Timestamp};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::world::{BEGIN, Client, World, device, refusal_code, user, world, world_with};
use crate::{Config, StartError, auth, start};

/// Longer than a station waits between two reads.
const POLL: Duration = Duration::from_millis(6100);
const SECOND: Duration = Duration::from_secs(1);

const REVOCATIONS: Calls = Calls::to("revocations");

fn strict() -> Config {
    Config {
        auth: auth::Config {
            strict: true,
            ..auth::Config::default()
        },
        ..Config::default()
    }
}

impl World {
    pub(super) async fn revoke(&self, number: i64, cutoff: i64) -> Result<Timestamp, Code> {
        let request = v1::RevokeRequest {
            user: number,
            before: cutoff,
            reason: "stolen".into(),
            by: "ann".into(),
        };
        let answer = self.client.clone().revoke(request).await;
        let answer = answer.map_err(|status| refusal_code(&status))?;
        Ok(Timestamp::from_millis(answer.into_inner().before))
    }

    /// Revokes as another station does.
    async fn revoke_elsewhere(&self, number: i64) {
        let now = self.backends.clock.now();
        let revocation = Revocation {
            user: user(number),
            before: now,
            reason: "stolen".into(),
            by: "ann".into(),
            at: now,
        };
        let outcome = self
            .backends
            .revocations
            .add(&revocation, SECOND * 3600)
            .await;
        outcome.expect("written");
    }

    async fn code(&self, connect: &Connect) -> Option<Code> {
        self.connect(connect)
            .await
            .err()
            .map(|refusal| refusal.code)
    }

    async fn revoked(&self, from: PageStart) -> RevokedPage {
        let request = v1::RevokedRequest::from(from);
        let answer = self.client.clone().revoked(request).await;
        answer
            .expect("answered")
            .into_inner()
            .try_into()
            .expect("whole")
    }
}

// proves S1-34 in part: who was revoked is registered no more.
#[tokio::test(start_paused = true)]
async fn a_revoked_token_is_refused_and_a_newer_one_is_not() {
    let world = world().await;
    let old = world.connect_request(1, Platform::Ios, 11);
    let other = world.connect_request(2, Platform::Ios, 12);
    world.connect(&old).await.expect("admitted");
    sleep(SECOND * 3 / 2).await;
    assert_eq!(world.revoke(1, 0).await, Ok(BEGIN + SECOND * 3 / 2));
    let refusal = world.connect(&old).await.expect_err("revoked");
    assert_eq!(refusal.code, Code::Unauthenticated);
    assert!(refusal.text.contains("revoked"), "{refusal}");
    sleep(SECOND).await;
    assert_eq!(
        world
            .code(&world.connect_request(1, Platform::Ios, 13))
            .await,
        None
    );
    assert_eq!(world.code(&other).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_of_another_station_is_known_within_one_read() {
    let world = world().await;
    let connect = world.connect_request(1, Platform::Ios, 11);
    sleep(SECOND).await;
    world.revoke_elsewhere(1).await;
    assert_eq!(world.code(&connect).await, None, "not read yet");
    sleep(POLL).await;
    assert_eq!(world.code(&connect).await, Some(Code::Unauthenticated));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_is_lost_is_made_up_for_by_the_next() {
    let world = world().await;
    let connect = world.connect_request(1, Platform::Ios, 11);
    sleep(SECOND).await;
    world.revoke_elsewhere(1).await;
    world.faults.begin(REVOCATIONS, Fault::Unavailable);
    sleep(POLL).await;
    assert_eq!(world.code(&connect).await, None, "the read was lost");
    world.faults.end(REVOCATIONS);
    sleep(POLL).await;
    assert_eq!(world.code(&connect).await, Some(Code::Unauthenticated));
}

#[tokio::test(start_paused = true)]
async fn without_the_store_sign_ins_go_on() {
    let world = world().await;
    let old_connect = world.connect_request(1, Platform::Ios, 11);
    sleep(SECOND).await;
    world.revoke(1, 0).await.expect("written");
    world.faults.begin(REVOCATIONS, Fault::Unavailable);
    sleep(SECOND * 600).await;
    let other = world.connect_request(2, Platform::Ios, 12);
    assert_eq!(world.code(&other).await, None);
    assert_eq!(world.code(&old_connect).await, Some(Code::Unauthenticated));
}

#[tokio::test(start_paused = true)]
async fn a_strict_station_lets_nobody_in_that_it_knows_too_little_of() {
    let world = world_with(strict()).await;
    let connect = || world.connect_request(2, Platform::Ios, 12);
    world.faults.begin(REVOCATIONS, Fault::Unavailable);
    sleep(SECOND * 50).await;
    assert_eq!(world.code(&connect()).await, None);
    sleep(SECOND * 11).await;
    let refusal = world.connect(&connect()).await.expect_err("too old");
    assert_eq!(refusal.code, Code::Unavailable);
    assert!(refusal.text.contains("strict"), "{refusal}");
    world.faults.end(REVOCATIONS);
    sleep(POLL).await;
    assert_eq!(world.code(&connect()).await, None);
}

/// Another station on the same backends, until its token is cancelled.
async fn second_station(world: &World) -> Result<(Client, CancellationToken), StartError> {
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
    .await?;
    let channel = world
        .connector
        .channel(access::Role::Station, &other.instance().address);
    Ok((StationServiceClient::new(channel), stop))
}

#[tokio::test(start_paused = true)]
async fn a_station_that_starts_knows_what_was_revoked() {
    let world = world().await;
    let connect = world.connect_request(1, Platform::Ios, 11);
    sleep(SECOND).await;
    world.revoke(1, 0).await.expect("written");
    // Many hours later, and the token has not ended.
    sleep(SECOND * 1800).await;
    let (mut other, stop) = second_station(&world).await.expect("a station");
    let request = v1::ConnectRequest::from(&connect);
    let answer = other.connect(request).await.expect("answered").into_inner();
    let answer: Result<Admission, Refusal> = answer.try_into().expect("whole");
    let refusal = answer.expect_err("revoked");
    assert_eq!(refusal.code, Code::Unauthenticated);
    stop.cancel();

    world.faults.begin(REVOCATIONS, Fault::Unavailable);
    let outcome = second_station(&world).await;
    assert!(
        matches!(outcome, Err(StartError::Part(_))),
        "it knows nothing"
    );
}

// Each question had its deadline, and all of them together had none.
#[tokio::test(start_paused = true)]
async fn a_station_that_starts_gives_a_slow_store_two_minutes() {
    let world = world().await;
    let begin = Instant::now();
    // 723 hours, eight at a time.
    world.faults.end(REVOCATIONS);
    world
        .faults
        .begin(REVOCATIONS, Fault::Delay(Duration::from_millis(1000)));
    let (_, stop) = second_station(&world).await.expect("slow, and in time");
    stop.cancel();
    assert!(begin.elapsed() > SECOND * 80, "{:?}", begin.elapsed());
    world.faults.end(REVOCATIONS);
    world
        .faults
        .begin(REVOCATIONS, Fault::Delay(Duration::from_millis(2000)));
    let begin = Instant::now();
    let start_error = second_station(&world).await.expect_err("too slow");
    assert!(begin.elapsed() < SECOND * 130, "{:?}", begin.elapsed());
    let StartError::Part(error) = start_error else {
        panic!("{start_error:?}");
    };
    let text = error.source.to_string();
    assert!(text.contains("longer than 120s"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_assertion_of_a_revoked_session_says_so() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let admission = world.sign_in(2, Platform::Ios, 12).await;
    assert_eq!(admission.issued_at, Some(BEGIN));
    sleep(SECOND).await;
    world.revoke(1, 0).await.expect("written");
    let session_for = |number, at, issued_at| {
        v1::ReassertSession::from(&Reassert {
            key: world.key(number, at),
            platform: Platform::Ios,
            device: device(&format!("phone-{at}")),
            login: None,
            issued_at,
            ticket: None,
        })
    };
    let request = v1::ReassertRequest {
        sessions: vec![
            session_for(1, 11, Some(BEGIN)),
            session_for(2, 12, Some(BEGIN)),
            // One of an older station, one with a newer token.
            session_for(1, 11, None),
            session_for(1, 11, Some(BEGIN + SECOND * 2)),
        ],
    };
    let answer = world.client.clone().reassert(request).await;
    let results = answer.expect("answered").into_inner().results;
    let results: Vec<_> = (results.into_iter())
        .map(|result| Reasserted::try_from(result).map(|answer| answer.outcome))
        .collect();
    let expected = || {
        Ok(ReassertOutcome::Answer(ReassertAnswer::Known {
            mail_waits: false,
        }))
    };
    assert_eq!(
        results,
        [
            Ok(ReassertOutcome::Revoked),
            expected(),
            expected(),
            expected()
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn boats_are_told_of_all_from_a_time_on() {
    let world = world().await;
    for number in [3, 1, 2] {
        sleep(SECOND).await;
        world.revoke(number, 0).await.expect("written");
    }
    let page = world.revoked(PageStart::of(BEGIN + SECOND * 2)).await;
    let users: Vec<_> = page.users.iter().map(|one| one.user).collect();
    assert_eq!(users, [user(1), user(2)]);
    assert!(!page.more);
    assert_eq!(page.users[0].before, BEGIN + SECOND * 2);
    let start = PageStart::behind(BEGIN + SECOND * 2, user(1));
    assert_eq!(world.revoked(start).await.users.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn invalid_revocation_is_refused_and_changes_nothing() {
    let world = world().await;
    let future = (BEGIN + SECOND * 120).millis();
    assert_eq!(world.revoke(1, future).await, Err(Code::InvalidArgument));
    assert_eq!(world.revoke(0, 0).await, Err(Code::InvalidArgument));
    let connect = world.connect_request(1, Platform::Ios, 11);
    sleep(SECOND).await;
    world.faults.begin(REVOCATIONS, Fault::Unavailable);
    assert_eq!(world.revoke(1, 0).await, Err(Code::Unavailable));
    assert_eq!(world.code(&connect).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_kick_says_how_many_sessions_end() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    world.sign_in(1, Platform::Web, 12).await;
    let kick = async |number, platform| {
        let request = v1::KickoutRequest {
            user: number,
            platform,
            text: "out".into(),
        };
        let answer = world.client.clone().kickout(request).await;
        answer.expect("answered").into_inner().sessions
    };
    assert_eq!(kick(1, v1::Platform::Web.into()).await, 1);
    assert_eq!(kick(1, 0).await, 2);
    assert_eq!(kick(2, 0).await, 0);
}
