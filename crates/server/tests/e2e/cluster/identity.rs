//! Services of a fleet prove their identity: strangers and wrong roles at their ports, and renewals
//! under load.

use std::time::Duration;

use api::transport::{Config, Connector};
use api::v1::boat_service_client::BoatServiceClient;
use api::v1::station_service_client::StationServiceClient;
use api::v1::{
    BoatLife, ConnectRequest, KickoutRequest, OnlineRequest, ProbeRequest, Send, SendBatchRequest,
    SendItem, SyncCall, SyncRequest, UnreadQuery, connect_response, sync_request,
};
use backend::tls::IdentityConfig;
use bytes::Bytes;
use protocol::access::Role;
use server::compose::identity::prove;
use server::settings::Settings;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::door::get;
use crate::fleet::Fleet;
use crate::process::{Process, packetboat, run};
use crate::real::eventually;
use crate::rotation::runbook;

/// A caller with the service certificate `NAME.crt` of the fleet's folder, or without any.
pub(super) fn caller(fleet: &Fleet, service: Option<(Role, &str)>) -> Connector {
    let connector = Connector::new(Config::default());
    let Some((role, name)) = service else {
        return connector;
    };
    let settings = Settings {
        identity: IdentityConfig::within(&fleet.identities(), name),
        ..Settings::default()
    };
    let identity = prove(&settings, role, &CancellationToken::new()).expect("its files");
    connector.with_identity(identity.expect("an identity"))
}

/// Sends in the name of user 7, whose session is on no boat here.
async fn forge(connector: &Connector, station: &str) -> Result<(), Status> {
    let send = SendItem {
        session: 1,
        user: 7,
        device: "d".into(),
        platform: 1,
        send: Some(Send::default()),
        ..SendItem::default()
    };
    let request = SendBatchRequest {
        life: Some(BoatLife {
            boat: "boat-1".into(),
            incarnation: 1,
        }),
        items: vec![send],
    };
    let channel = connector.channel(Role::Station, station);
    let answer = StationServiceClient::new(channel).send_batch(request).await;
    answer.map(drop)
}

/// Signs user 7 in at this boat. Returns the session's ticket.
async fn sign_in(connector: &Connector, station: &str, fleet: &Fleet, session: i64) -> Bytes {
    let token = run(&mut fleet.command(&["token", "--user", "7"]))
        .ok()
        .stdout;
    let request = ConnectRequest {
        session,
        life: Some(BoatLife {
            boat: "boat-2".into(),
            incarnation: 1,
        }),
        token: token.trim().to_owned(),
        device: "d".into(),
        platform: 1,
        ..ConnectRequest::default()
    };
    let channel = connector.channel(Role::Station, station);
    let answer = StationServiceClient::new(channel).connect(request).await;
    match answer.expect("answered").into_inner().result {
        Some(connect_response::Result::Admission(admission)) => admission.ticket,
        other => panic!("not admitted: {other:?}"),
    }
}

/// A question for a session of user 7.
async fn ask(
    connector: &Connector,
    station: &str,
    session: i64,
    ticket: &Bytes,
) -> Result<(), Status> {
    let unread = SyncRequest {
        request: 1,
        query: Some(sync_request::Query::Unread(UnreadQuery::default())),
    };
    let call = SyncCall {
        user: 7,
        session,
        request: Some(unread),
        ticket: ticket.clone(),
    };
    let channel = connector.channel(Role::Station, station);
    let answer = StationServiceClient::new(channel).sync(call).await;
    answer.map(drop)
}

async fn kick(connector: &Connector, station: &str) -> Result<(), Status> {
    let request = KickoutRequest {
        user: 7,
        ..KickoutRequest::default()
    };
    let channel = connector.channel(Role::Station, station);
    let answer = StationServiceClient::new(channel).kickout(request).await;
    answer.map(drop)
}

// Threats 3 and 6.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "needs the real parts: make e2e"]
async fn strangers_have_no_connection_and_roles_no_foreign_call() {
    let fleet = Fleet::start("single");
    let other = tempfile::tempdir().expect("a directory");
    let more = ["backend/backend-1", "horn/horn-1"];
    let mut certs = packetboat(&["certs", "new"]);
    certs.arg(fleet.identities());
    run(certs.args(more.map(|service| ["--service", service]).concat())).ok();
    let mut foreign = packetboat(&["certs", "new"]);
    run(foreign.arg(other.path())).ok();

    let station = fleet.member_address("station-1");
    let (secure, plain) = (format!("https://{station}"), format!("http://{station}"));
    let nobody = caller(&fleet, None);
    let code =
        |answer: Result<(), Status>| answer.map_or_else(|status| status.code(), |()| Code::Ok);
    assert_eq!(code(forge(&nobody, &plain).await), Code::Unavailable);
    assert_eq!(code(kick(&nobody, &plain).await), Code::Unavailable);

    let settings = Settings {
        identity: IdentityConfig::within(other.path(), "boat"),
        ..Settings::default()
    };
    let stranger = prove(&settings, Role::Boat, &CancellationToken::new()).expect("its files");
    let stranger = Connector::new(Config::default()).with_identity(stranger.expect("an identity"));
    assert_eq!(code(forge(&stranger, &secure).await), Code::Unavailable);

    let boat = caller(&fleet, Some((Role::Boat, "boat-1")));
    let carrier = caller(&fleet, Some((Role::Carrier, "carrier-1")));
    let horn = caller(&fleet, Some((Role::Horn, "horn-1")));
    let backend = caller(&fleet, Some((Role::Backend, "backend-1")));
    for other in [&carrier, &horn, &backend] {
        assert_eq!(code(forge(other, &secure).await), Code::PermissionDenied);
    }
    for other in [&boat, &carrier, &horn] {
        assert_eq!(code(kick(other, &secure).await), Code::PermissionDenied);
    }
    assert_eq!(code(kick(&backend, &secure).await), Code::Ok);
    let channel = horn.channel(Role::Station, &secure);
    let online = OnlineRequest { users: vec![7] };
    let online = StationServiceClient::new(channel).online(online).await;
    online.expect("a horn asks who is there");

    // A boat answers no other boat, and is no station.
    let at_boat = format!("https://{}", fleet.member_address("boat-1"));
    let channel = boat.channel(Role::Boat, &at_boat);
    let mut other = BoatServiceClient::new(channel);
    let probe = other.probe(ProbeRequest::default()).await;
    let status = probe.expect_err("a boat's");
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(code(forge(&boat, &at_boat).await), Code::Unavailable);

    // Threat 1: a boat needs the ticket of each session, issued to itself.
    let second = caller(&fleet, Some((Role::Boat, "boat-2")));
    let ticket = sign_in(&second, &secure, &fleet, 77).await;
    assert_eq!(code(ask(&second, &secure, 77, &ticket).await), Code::Ok);
    for (boat, session, ticket, wanted) in [
        (&boat, 77, &ticket, Code::PermissionDenied),
        (&second, 78, &ticket, Code::PermissionDenied),
        (&boat, 77, &Bytes::new(), Code::Unavailable),
        (&second, 77, &Bytes::new(), Code::Unavailable),
    ] {
        assert_eq!(code(ask(boat, &secure, session, ticket).await), wanted);
    }
    assert!(count(&fleet, "station_tickets_refused_total{reason=\"forged\"}") >= 2);

    // Legitimate users are not affected.
    fleet.send("1", "2", "hello");
    assert_eq!(fleet.listen("2", 1).len(), 1);
}

/// Sum of a counter over the whole fleet.
pub(super) fn count(fleet: &Fleet, start: &str) -> u64 {
    count_at(&fleet.admins(), start)
}

/// Sum of a counter over these processes.
pub fn count_at(admins: &[String], start: &str) -> u64 {
    let metrics = admins.iter().map(|admin| get(admin, "/metrics").1);
    let value = |line: &str| -> Option<u64> {
        let value = line.starts_with(start).then(|| line.rsplit(' ').next())??;
        value.parse().ok()
    };
    let sum = |text: String| text.lines().filter_map(value).sum::<u64>();
    metrics.map(sum).sum()
}

// proves S1-09 in part: certificates of services. T-X3, threat 26.
#[test]
#[ignore = "needs the real parts: make e2e"]
fn certificates_and_roots_change_under_load() {
    // The sweep renews tickets: each second here, while the runbook waits for five sweeps of five
    // minutes.
    let mut fleet = Fleet::with("single", "boat.sweep_interval = \"1s\"");
    let mut ada = fleet.user(&["chat", "--user", "1", "--to", "2"]);
    let mut ada = Process::start(&mut ada);
    let mut bea = fleet.user(&["chat", "--user", "2", "--to", "1"]);
    let bea = Process::start(bea.env("PACKETBOAT_URL", fleet.boat("boat-2")));
    let mut line_number = 0;
    let mut talk = |lines: usize| {
        for _ in 0..lines {
            line_number += 1;
            ada.type_line(&format!("line {line_number}"));
            bea.line_is(&format!("1: line {line_number}"));
            ada.line_is(&format!("[read] line {line_number}"));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    talk(5);
    let disconnects = "boat_disconnects_total";
    let connects = "station_connects_total";
    let old_counts = (count(&fleet, disconnects), count(&fleet, connects));

    let tls_reloads = "tls_reloads_total{result=\"reloaded\"}";
    let folder = fleet.identities();
    // All services but the horns reload their files.
    let services = 6;
    let lines = runbook("A new root");
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (step, line) in (1..).zip(lines) {
        let words: Vec<&str> = line.split(' ').collect();
        let ["packetboat", "certs", verb, "identity"] = words[..] else {
            panic!("{line:?} is no step");
        };
        match verb {
            // Uses the names of the fleet's members.
            "new" => fleet.certify(),
            verb => {
                run(packetboat(&["certs", verb]).arg(&folder)).ok();
            }
        }
        eventually("every service has the new files", || {
            talk(1);
            (count(&fleet, tls_reloads) >= step * services).then_some(())
        });
        talk(5);
    }
    // Ticket keys: each session has a ticket of the new key before the old one goes.
    let key_reloads = "station_ticket_keys_reloads_total{result=\"reloaded\"}";
    let mut step = 0;
    for line in runbook("New keys of tickets") {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["sleep", "25m"] => {
                // Two whole passes over both sessions, and two more for calls in flight.
                let recover_count = || count(&fleet, "boat_recover_total");
                let passes = recover_count() + 4 * 2;
                eventually("each session has a ticket of the new key", || {
                    talk(1);
                    (recover_count() >= passes).then_some(())
                });
                continue;
            }
            ["packetboat", "keys", verb, "ticket.keys"] => {
                run(packetboat(&["keys", verb]).arg(fleet.ticket_keys())).ok();
            }
            _ => panic!("{line:?} is no step"),
        }
        step += 1;
        eventually("both stations have the new keys", || {
            talk(1);
            (count(&fleet, key_reloads) >= step * 2).then_some(())
        });
        talk(5);
    }
    assert_eq!(count(&fleet, "station_tickets_refused_total"), 0);
    assert_eq!(
        (count(&fleet, disconnects), count(&fleet, connects)),
        old_counts
    );
    assert_eq!(count(&fleet, "tls_reloads_total{result=\"refused\"}"), 0);

    // New connections, in both directions, use the present certificates.
    for name in ["carrier-1", "station-1"] {
        fleet.process(name).signal("TERM");
        assert!(
            fleet
                .process(name)
                .ended(crate::process::WAIT_TIMEOUT)
                .success()
        );
        fleet.restart(name);
    }
    talk(5);
    fleet.at_rest();
    run(&mut fleet.operator(&["audit"])).ok();
}
