//! Clients of a boat that leaves resume at another one, without a sign-in.

use protocol::Code;
use protocol::frame::{ClientFrame, Hello, ServerFrame};

use super::identity::count_at;
use crate::fleet::Fleet;
use crate::process::WAIT_TIMEOUT;
use crate::raw::{RawClient, hello};

const CLIENTS: i64 = 20;

fn resume_at(url: &str, resume: Option<protocol::ticket::ResumeTicket>) -> Result<RawClient, Code> {
    let ClientFrame::Hello(hello) = hello(1) else {
        panic!("no hello");
    };
    let mut client = RawClient::websocket(url);
    client.send(&ClientFrame::Hello(Hello {
        token: String::new(),
        resume,
        ..hello
    }));
    match client.next() {
        Some(ServerFrame::Welcome(_)) => Ok(client),
        Some(ServerFrame::Closing { refusal, .. }) => Err(refusal.code),
        other => panic!("{other:?}"),
    }
}

// Threat 12.
#[test]
#[ignore = "needs the real parts: make e2e"]
fn a_boat_that_leaves_costs_no_sign_in() {
    let mut fleet = Fleet::start("single");
    let (first, second) = (fleet.boat("boat-1"), fleet.boat("boat-2"));
    let mut clients: Vec<RawClient> = (1..=CLIENTS)
        .map(|user| RawClient::websocket(&first).signed_in(user))
        .collect();
    fleet.process("boat-1").signal("TERM");
    let tickets: Vec<_> = (clients.iter_mut())
        .map(|client| {
            loop {
                match client.next() {
                    Some(ServerFrame::Closing { refusal, resume }) => {
                        assert_eq!(refusal.code, Code::Draining);
                        break resume;
                    }
                    Some(_) => {}
                    None => panic!("ended without a word"),
                }
            }
        })
        .collect();
    drop(clients);
    assert!(fleet.process("boat-1").ended(WAIT_TIMEOUT).success());
    let stations = ["station-1", "station-2"].map(|name| fleet.admin_of(name));
    let sign_ins = || count_at(&stations, "station_connects_total{result=\"admitted\"}");
    let resumptions = || count_at(&stations, "station_sessions_resumed_total");
    let old_count = sign_ins();
    assert!(tickets.iter().all(Option::is_some), "each has a ticket");
    let mut clients: Vec<RawClient> = tickets
        .iter()
        .map(|ticket| resume_at(&second, *ticket).expect("welcome"))
        .collect();
    for client in &mut clients {
        client.ping();
    }
    assert_eq!(resumptions(), CLIENTS as u64);
    assert_eq!(sign_ins() - old_count, CLIENTS as u64);
    assert_eq!(resume_at(&second, None).err(), Some(Code::Unauthenticated));
    // The token is still valid, and boat-1 takes clients again.
    fleet.restart("boat-1");
    RawClient::websocket(&first).signed_in(1).ping();
}
