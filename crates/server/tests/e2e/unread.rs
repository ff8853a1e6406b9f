//! Clients that do not read: they are closed as slow, pin little memory, and lose nothing.

use std::time::Duration;

use protocol::Code;
use protocol::frame::{ClientFrame, ServerFrame};

use crate::all::All;
use crate::neighbours::Chat;
use crate::process::{WAIT_TIMEOUT, run, within};
use crate::raw::{RawClient, connect_from, message};

const CLIENTS: u16 = 300;
/// Time for a boat to give up on sockets that take nothing for 20 seconds.
const SLOW_TIMEOUT: Duration = WAIT_TIMEOUT.saturating_mul(2);
const FIRST: i64 = 5_000;
const SENDER: i64 = 4_999;
/// Bytes for each client: enough to fill the kernel's buffers.
const MESSAGES: u16 = 5;
const BYTES: usize = 12_000;

fn send_to(user: i64, client: u16, number: u16) -> ClientFrame {
    let mut send_id = [0; 16];
    send_id[..2].copy_from_slice(&client.to_be_bytes());
    send_id[2] = number as u8 + 1;
    message(user, send_id, BYTES)
}

/// Sends to all clients, a few at a time.
fn send_to_all(sender: &mut RawClient) {
    for number in 0..MESSAGES {
        for first in (0..CLIENTS).step_by(30) {
            for client in first..first + 30 {
                sender.send(&send_to(FIRST + i64::from(client), client, number));
            }
            let mut open = 30;
            while open > 0 {
                match sender.next().expect("an answer") {
                    ServerFrame::Accepted(_) => open -= 1,
                    ServerFrame::Refused { refusal, .. } => panic!("{refusal:?}"),
                    _ => {}
                }
            }
        }
    }
}

// T-B7, T-B3.
#[test]
fn client_that_reads_nothing_is_closed_as_slow_and_catches_up() {
    // The silence of those who wait must not end them first.
    let all = All::with("boat.session.heartbeat = \"5m\"");
    let mut deaf: Vec<RawClient> = (0..CLIENTS)
        .map(|client| {
            let socket = connect_from(all.tcp(), 1, Some(2048));
            RawClient::tcp_over(socket).signed_in(FIRST + i64::from(client))
        })
        .collect();
    let chat = Chat::beside(&all);
    let old_memory = all.process.resident();
    let mut sender = RawClient::tcp(all.tcp()).signed_in(SENDER);
    send_to_all(&mut sender);
    within(SLOW_TIMEOUT, || {
        all.metric("boat_disconnects_total{code=\"slow\"}") >= u64::from(CLIENTS)
    });
    let grown = all.process.resident().saturating_sub(old_memory);
    println!("{CLIENTS} clients that do not read: {} KiB", grown / 1024);
    // Limit for the queues of all clients, and for the growth of the stores meanwhile.
    assert!(grown < 256 << 20, "{grown} bytes");
    // Only messages of the chat, in flight.
    within(WAIT_TIMEOUT, || {
        all.metric("boat_outbound_queue_bytes") < BYTES as u64
    });
    chat.goes_on(&all);
    chat.end().undisturbed();
    // The reason comes behind the unread bytes, if it got through.
    let close_code = deaf.pop().and_then(|mut last| last.closing());
    assert!(
        matches!(close_code, None | Some(Code::Slow)),
        "{close_code:?}"
    );
    drop(deaf);
    all.at_rest();
    for user in [FIRST, FIRST + i64::from(CLIENTS) - 1] {
        let messages = all.listen(&user.to_string(), usize::from(MESSAGES));
        assert_eq!(messages.len(), usize::from(MESSAGES));
        all.nothing_for(&user.to_string());
    }
    run(&mut all.operator(&["audit", "--deep"])).ok();
}
