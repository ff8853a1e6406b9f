//! Tickets of sessions: carried by every call for one, and renewed.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::v1;
use api::v1::reassert_result::Outcome;
use bytes::Bytes;
use protocol::frame::{Ack, AckItem, ClientFrame, ServerFrame};
use protocol::receipt::ReceiptKind;
use protocol::ticket::{KEY_BYTES, KeyFile, SignIn, TICKET_BYTES, Tickets};
use protocol::{Code, ConversationId, Platform, Seq, SessionId, Timestamp};

use super::client::{message, question, text_send, user};
use super::eventually;
use super::harbour::{Harbour, message_frame};

fn ticket(number: u8) -> Bytes {
    Bytes::copy_from_slice(&[number; TICKET_BYTES])
}

impl Harbour {
    fn issue(&self, number: u8) {
        *self.peer.ticket.lock() = ticket(number);
    }

    /// Calls so far that carried a ticket, each with it.
    fn take_shown_tickets(&self) -> BTreeSet<(&'static str, Bytes)> {
        self.peer.shown_tickets.lock().drain(..).collect()
    }

    async fn await_call(&self, call: &str) {
        let is_known = || {
            let shown_tickets = self.peer.shown_tickets.lock();
            shown_tickets
                .iter()
                .any(|(ticket_call, _)| *ticket_call == call)
        };
        eventually(call, is_known).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_goes_with_every_call_for_its_session() {
    let harbour = Harbour::piped(|_| ()).await;
    harbour.issue(7);
    harbour.peer.mail.lock().push_back(v1::MailItem {
        msg_id: 5,
        frame: message_frame(5),
    });
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    client.send(&text_send(2, 1, "a")).await;
    client.send(&question(3)).await;
    let ack = Ack {
        kind: ReceiptKind::Received,
        items: vec![AckItem {
            id: message(5),
            conversation: ConversationId::private(user(1), user(2)).expect("two"),
            seq: Seq(1),
        }],
    };
    client.send(&ClientFrame::Ack(ack)).await;
    for call in ["send", "sync", "receipts", "mail_page", "mail_ack"] {
        harbour.await_call(call).await;
    }
    drop(client);
    harbour.await_call("disconnect").await;
    let calls = [
        "disconnect",
        "mail_ack",
        "mail_page",
        "receipts",
        "send",
        "sync",
    ];
    let expected: BTreeSet<_> = calls.map(|call| (call, ticket(7))).into();
    assert_eq!(harbour.take_shown_tickets(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_assertion_renews_it() {
    let harbour = Harbour::piped(|config| config.sweep_interval = Duration::from_millis(100)).await;
    harbour.issue(7);
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    harbour.issue(8);
    harbour.await_call("reassert").await;
    assert!(
        harbour
            .take_shown_tickets()
            .contains(&("reassert", ticket(7)))
    );
    harbour.await_call("reassert").await;
    // A station without tickets leaves the old one in place.
    *harbour.peer.ticket.lock() = Bytes::new();
    harbour.await_call("reassert").await;
    client.send(&text_send(2, 1, "a")).await;
    harbour.await_call("send").await;
    assert!(harbour.take_shown_tickets().contains(&("send", ticket(8))));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_nothing_proves_signs_in_again() {
    let harbour = Harbour::piped(|config| config.sweep_interval = Duration::from_millis(100)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    *harbour.peer.reassert_as.lock() = Outcome::Unproved;
    let code = client.closing().await.expect("it ends");
    assert_eq!(code, Code::Reconnect);
    assert!(code.retryable(), "by itself");
}

// A pass over all sessions takes minutes: a ticket may expire before its turn.
#[tokio::test(start_paused = true)]
async fn a_call_with_a_ticket_that_ends_has_it_renewed_at_once() {
    const MINUTE: Duration = Duration::from_secs(60);
    let harbour = Harbour::piped(|config| {
        config.sweep_interval = 60 * MINUTE;
        config.sweep_pause_max = 60 * MINUTE;
        // Clients send no heartbeats meanwhile.
        config.session.heartbeat = 60 * MINUTE;
    })
    .await;
    let now = harbour.handle.door.drivers.connections.now();
    *harbour.peer.ticket.lock() = signed_at(now);
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    harbour.issue(9);
    let mut send = async |number, text| {
        client.send(&text_send(2, number, text)).await;
        client.next().await.expect("an answer")
    };
    tokio::time::sleep(13 * MINUTE).await;
    send(1, "it is good").await;
    tokio::time::sleep(MINUTE).await;
    assert!(harbour.peer.reassertions.lock().is_empty());
    harbour.peer.shown_tickets.lock().clear();
    harbour.peer.is_down.store(true, Ordering::Relaxed);
    let answer = send(2, "again").await;
    assert!(matches!(answer, ServerFrame::Refused { .. }), "{answer:?}");
    tokio::time::sleep(MINUTE).await;
    harbour.peer.is_down.store(false, Ordering::Relaxed);
    tokio::time::sleep(MINUTE).await;
    // An assertion was lost.
    assert_eq!(send(2, "again").await, ServerFrame::Resync);
    harbour.await_call("send").await;
    assert!(harbour.take_shown_tickets().contains(&("send", ticket(9))));
    tokio::time::sleep(MINUTE).await;
    let assertion_count = harbour.peer.reassertions.lock().len();
    assert_eq!(assertion_count, 1, "once, and not again");
}

/// A ticket valid for a quarter of an hour, of a token valid for a day.
fn signed_at(now: Timestamp) -> Bytes {
    let sign_in = SignIn {
        user: user(1),
        session: SessionId::new(1).expect("positive"),
        platform: Platform::Desktop,
        issued_at: now,
        ends_at: now + Duration::from_secs(24 * 3600),
    };
    let keys = KeyFile::new(1, [7; KEY_BYTES]);
    let ticket = Tickets::new(&keys, true).sign(&sign_in, None, now);
    Bytes::copy_from_slice(ticket.expect("a key").as_bytes())
}
