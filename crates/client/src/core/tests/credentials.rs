use std::time::Duration;

use protocol::frame::{ClientFrame, Hello, Refresh, ServerFrame};
use protocol::ticket::{RESUME_LIFE, RESUME_TICKET_BYTES, ResumeTicket};
use protocol::{Code, Refusal};

use super::device::{Device, SERVER_AHEAD};
use crate::core::{Action, ConnectionState};

const HOUR: Duration = Duration::from_secs(3600);

fn ticket() -> ResumeTicket {
    ResumeTicket::from_bytes([7; RESUME_TICKET_BYTES])
}

impl Device {
    fn leaves_with_ticket(&mut self) {
        let refusal = Refusal::new(Code::Draining, "leaving");
        let resume = Some(ticket());
        self.hear(ServerFrame::Closing { refusal, resume });
        self.lose(0);
        self.wait(0);
    }

    fn hello(&mut self) -> Hello {
        self.sent_frames.clear();
        self.core.handle_connected(self.now);
        self.drain();
        match self.sent_frames.remove(0) {
            ClientFrame::Hello(hello) => hello,
            other => panic!("{other:?}"),
        }
    }

    fn refused(&mut self, code: Code) {
        let refusal = Refusal::new(code, "no");
        let resume = None;
        self.hear(ServerFrame::Closing { refusal, resume });
        self.lose(0);
        self.wait(0);
    }

    fn fetches(&self) -> usize {
        let fetches = self.actions.iter();
        fetches
            .filter(|action| **action == Action::FetchToken)
            .count()
    }

    fn fetched(&mut self, token: Result<&str, Code>) {
        let token = token.map(str::to_owned);
        let token = token.map_err(|code| Refusal::new(code, "no token"));
        self.core.handle_token(token, self.now, 0);
        self.drain();
    }

    fn refreshes(&mut self) -> Vec<String> {
        let frames = self.sent_frames.drain(..);
        frames
            .filter_map(|frame| match frame {
                ClientFrame::Refresh(Refresh { token }) => Some(token),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn client_reconnects_with_its_ticket_after_a_drain() {
    let mut device = Device::ready();
    device.leaves_with_ticket();
    let hello = device.hello();
    assert_eq!((hello.token.as_str(), hello.resume), ("", Some(ticket())));
    // The connection fails before the welcome: the ticket is still good.
    device.lose(0);
    device.wait(0);
    assert_eq!(device.hello().resume, Some(ticket()));
    device.sign_in_again();
    device.lose(0);
    device.wait(0);
    let hello = device.hello();
    assert_eq!(
        (hello.token.as_str(), hello.resume),
        ("token", None),
        "once"
    );
}

#[test]
fn a_ticket_that_is_not_good_ends_nothing_with_a_token_at_hand() {
    for code in [Code::Unauthenticated, Code::TokenExpired] {
        let mut device = Device::ready();
        device.leaves_with_ticket();
        assert_eq!(device.hello().resume, Some(ticket()));
        device.refused(code);
        let hello = device.hello();
        assert_eq!((hello.token.as_str(), hello.resume), ("token", None));
        device.refused(code);
        assert!(
            matches!(device.core.state(), ConnectionState::Closed(_)),
            "the token"
        );
    }
    let mut device = Device::ready();
    device.leaves_with_ticket();
    device.wait(RESUME_LIFE.as_millis() as u64);
    assert_eq!(device.hello().resume, None, "it has ended");
}

#[test]
fn a_full_boat_does_not_take_the_ticket() {
    let mut device = Device::ready();
    device.leaves_with_ticket();
    assert_eq!(device.hello().resume, Some(ticket()));
    device.refused(Code::Full);
    assert_eq!(device.hello().resume, Some(ticket()));
}

// Refreshed after four fifths of its life, give or take a tenth of that.
#[test]
fn a_token_is_refreshed_before_it_ends() {
    let mut device = Device::renewing("token");
    // The session's number replaces the random number.
    device.sign_in_for(1, HOUR);
    let earliest = 2_592_000;
    device.wait_live(earliest);
    assert_eq!(device.fetches(), 0);
    device.wait_live(2);
    assert_eq!(device.fetches(), 1);
    device.wait_live(100_000);
    assert_eq!(device.fetches(), 1, "one at a time");
    device.fetched(Ok("second"));
    assert_eq!(device.refreshes(), ["second"]);
    let expires_at = device.now + SERVER_AHEAD + HOUR;
    device.hear(ServerFrame::Refreshed { expires_at });
    device.wait_live(earliest);
    assert_eq!(device.fetches(), 1);
    device.wait_live(2);
    assert_eq!(device.fetches(), 2);
    assert_eq!(device.connects, 1);
}

#[test]
fn a_refresh_that_fails_is_tried_again_a_minute_later() {
    let mut device = Device::renewing("token");
    device.sign_in_for(1, HOUR);
    device.wait_live(3_600_000 * 9 / 10);
    assert_eq!(device.fetches(), 1);
    device.fetched(Err(Code::Unavailable));
    device.wait_live(59_999);
    assert_eq!(device.fetches(), 1);
    device.wait_live(1);
    assert_eq!(device.fetches(), 2);
    device.fetched(Ok("second"));
    let refusal = Refusal::new(Code::Unauthenticated, "no");
    let request = None;
    device.hear(ServerFrame::Error { request, refusal });
    device.wait_live(59_999);
    assert_eq!(device.fetches(), 2);
    device.wait_live(1);
    assert_eq!(device.fetches(), 3);
}

#[test]
fn a_token_that_has_ended_is_renewed_before_the_next_hello() {
    let mut device = Device::renewing("token");
    device.sign_in_for(1, HOUR);
    device.refused(Code::TokenExpired);
    assert_eq!((device.fetches(), device.connects), (1, 1));
    device.fetched(Err(Code::Unavailable));
    device.wait(60_000);
    assert_eq!((device.fetches(), device.connects), (2, 1));
    device.fetched(Ok("second"));
    assert_eq!(device.connects, 2);
    assert_eq!(device.hello().token, "second");
    device.refused(Code::TokenExpired);
    device.fetched(Err(Code::Forbidden));
    assert!(matches!(device.core.state(), ConnectionState::Closed(_)));
}

#[test]
fn the_first_token_may_be_fetched_too() {
    let mut device = Device::renewing("");
    assert_eq!((device.fetches(), device.connects), (1, 0));
    device.fetched(Ok("first"));
    assert_eq!(device.connects, 1);
    assert_eq!(device.hello().token, "first");
}

#[test]
fn without_a_source_nothing_is_refreshed() {
    let mut device = Device::new();
    device.sign_in_for(1, HOUR);
    device.wait_live(3_500_000);
    assert_eq!(device.fetches(), 0);
    device.refused(Code::TokenExpired);
    assert!(matches!(device.core.state(), ConnectionState::Closed(_)));
}

// The provider may have retired the key of a token that the device kept for long.
#[test]
fn a_token_that_is_refused_is_replaced_once() {
    let mut device = Device::renewing("token");
    device.hello();
    device.refused(Code::Unauthenticated);
    assert_eq!(device.fetches(), 1);
    device.fetched(Ok("second"));
    assert_eq!(device.hello().token, "second");
    device.refused(Code::Unauthenticated);
    assert!(
        matches!(device.core.state(), ConnectionState::Closed(_)),
        "no loop"
    );

    let mut device = Device::renewing("token");
    device.sign_in_for(1, HOUR);
    device.wait_live(3_600_000 * 9 / 10);
    device.fetched(Ok("early"));
    let refusal = Refusal::new(Code::Unauthenticated, "its key is unknown yet");
    let request = None;
    device.hear(ServerFrame::Error { request, refusal });
    device.lose(0);
    device.wait(0);
    assert_eq!(device.fetches(), 2, "before the next hello");
    device.fetched(Ok("second"));
    assert_eq!(device.hello().token, "second");
}

// As far as is known, the token is as good as the one before, and its source may be away.
#[test]
fn a_refresh_whose_answer_is_lost_waits_for_no_source() {
    let mut device = Device::renewing("token");
    device.sign_in_for(1, HOUR);
    device.wait_live(3_600_000 * 9 / 10);
    device.fetched(Ok("second"));
    device.lose(0);
    device.wait(0);
    assert_eq!((device.fetches(), device.connects), (1, 2));
    assert_eq!(device.hello().token, "second");
    device.refused(Code::Unauthenticated);
    assert_eq!(device.fetches(), 2);
    device.fetched(Ok("third"));
    assert_eq!(device.hello().token, "third");
}

// An older boat takes the frame for garbage.
#[test]
fn a_boat_that_knows_of_no_refresh_gets_none() {
    let mut device = Device::renewing("token");
    device.sign_in_for(1, HOUR);
    device.wait_live(3_600_000 * 9 / 10);
    device.lose(0);
    device.wait(0);
    device.core.handle_connected(device.now);
    device.drain();
    device.sign_in_again();
    device.fetched(Ok("second"));
    assert_eq!(device.refreshes(), Vec::<String>::new());
    device.lose(0);
    device.wait(0);
    assert_eq!(device.hello().token, "second");
}
