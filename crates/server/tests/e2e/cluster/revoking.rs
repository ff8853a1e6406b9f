//! A user is revoked while connected: the session ends and the token is refused within a minute,
//! whatever was lost meanwhile.

use std::thread::sleep;
use std::time::Duration;

use api::transport::Connector;
use api::v1::RevokeRequest;
use api::v1::station_service_client::StationServiceClient;
use protocol::Code;
use protocol::access::Role;
use protocol::frame::ServerFrame;
use tokio::time::Instant;

use super::identity::caller;
use crate::fleet::Fleet;
use crate::process::{packetboat, run};
use crate::raw::{RawClient, hello_with};
use crate::real::{self, eventually, tool};

/// Time limit of a revocation.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// Longer than the polling interval of a boat.
const POLL: Duration = Duration::from_secs(11);
const STATIONS: [&str; 2] = ["station-1", "station-2"];

fn token(fleet: &Fleet, user: i64) -> String {
    let output = run(&mut fleet.command(&["token", "--user", &user.to_string()])).ok();
    output.stdout.trim().to_owned()
}

fn sign_in(fleet: &Fleet, boat: &str, token: &str) -> Result<RawClient, Code> {
    let mut client = RawClient::websocket(&fleet.boat(boat));
    client.send(&hello_with(token.to_owned()));
    match client.next() {
        Some(ServerFrame::Welcome(_)) => Ok(client),
        Some(ServerFrame::Closing { refusal, .. }) => Err(refusal.code),
        other => panic!("{other:?}"),
    }
}

/// Revokes the tokens of a user without a kick: boats have to poll.
async fn revoke(backend: &Connector, station: &str, user: i64) {
    // A token carries the second of its issue.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let request = RevokeRequest {
        user,
        reason: "the phone was stolen".into(),
        by: "a test".into(),
        ..RevokeRequest::default()
    };
    let channel = backend.channel(Role::Station, station);
    let answer = StationServiceClient::new(channel).revoke(request).await;
    answer.expect("written down");
}

fn is_gone(client: &mut RawClient, start: Instant) {
    assert_eq!(client.closing(), Some(Code::KickedOut));
    let took = start.elapsed();
    println!("gone after {took:?}");
    assert!(took < GONE_WITHIN, "{took:?}");
}

// T-X4, threat 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "needs the real parts: make e2e"]
async fn revoked_user_is_disconnected_within_a_minute() {
    let mut fleet = Fleet::start("single");
    let mut certs = packetboat(&["certs", "new"]);
    certs.arg(fleet.identities());
    run(certs.args(["--service", "backend/backend-1"])).ok();
    let backend = caller(&fleet, Some((Role::Backend, "backend-1")));
    let station = format!("https://{}", fleet.member_address("station-2"));
    let mut other = sign_in(&fleet, "boat-2", &token(&fleet, 9)).expect("a good token");

    // One poll of the boats is lost: no station answers for longer than they wait.
    let stolen = token(&fleet, 7);
    let mut session = sign_in(&fleet, "boat-1", &stolen).expect("a good token");
    revoke(&backend, &station, 7).await;
    let since = Instant::now();
    for station in STATIONS {
        fleet.process(station).signal("STOP");
    }
    sleep(POLL);
    for station in STATIONS {
        fleet.process(station).signal("CONT");
    }
    is_gone(&mut session, since);
    for boat in ["boat-1", "boat-2"] {
        let refused = eventually("the stations answer", || {
            let answer = sign_in(&fleet, boat, &stolen).err();
            answer.filter(|code| !code.retryable())
        });
        assert_eq!(refused, Code::Unauthenticated);
    }

    // The mailbox has lost everything; it never stored revocations.
    let lost = token(&fleet, 8);
    let mut session = sign_in(&fleet, "boat-2", &lost).expect("a good token");
    revoke(&backend, &station, 8).await;
    let since = Instant::now();
    for address in real::addresses("redis-single") {
        let (_, port) = address.rsplit_once(':').expect("a port");
        let flushed = tool("redis-cli", &["-p", port, "flushall"]);
        assert_eq!(flushed.trim(), "OK");
    }
    is_gone(&mut session, since);
    // The other boat asks another station, which has its own interval.
    for stolen in [&stolen, &lost] {
        let refused = eventually("the token is refused", || {
            sign_in(&fleet, "boat-1", stolen).err()
        });
        assert_eq!(refused, Code::Unauthenticated);
    }
    let took = since.elapsed();
    assert!(took < GONE_WITHIN, "{took:?}");

    // No other session is affected, and a new token is valid.
    other.ping();
    sign_in(&fleet, "boat-1", &token(&fleet, 7))
        .expect("a new token")
        .ping();
    // A restarted station refuses the token before its first poll.
    for station in STATIONS {
        fleet.kill(station);
    }
    for station in STATIONS {
        fleet.restart(station);
    }
    let refused = eventually("the stations answer", || {
        let answer = sign_in(&fleet, "boat-1", &stolen).err();
        answer.filter(|code| !code.retryable())
    });
    assert_eq!(refused, Code::Unauthenticated);
}
