use std::time::Duration;

use protocol::frame::{ClientFrame, ServerFrame};
use protocol::{Code, Refusal};

use super::device::Device;
use crate::core::{Action, ConnectionState};

#[test]
fn hello_comes_first_and_carries_the_marker_of_the_last_welcome() {
    let mut device = Device::ready();
    let hello = |device: &Device| match &device.sent_frames[0] {
        ClientFrame::Hello(hello) => hello.marker,
        frame => panic!("{frame:?} before hello"),
    };
    assert_eq!(hello(&device), None);
    device.take_sent();
    device.reconnect();
    assert_eq!(hello(&device), Some(5));
}

fn closing_frame(refusal: Refusal) -> ServerFrame {
    let resume = None;
    ServerFrame::Closing { refusal, resume }
}

#[test]
fn reconnect_pause_is_random_and_the_server_may_widen_it() {
    let mut device = Device::ready();
    device.lose(300);
    assert!(matches!(
        device.core.state(),
        ConnectionState::Reconnecting { .. }
    ));
    device.wait(299);
    assert_eq!(device.connects, 1);
    device.wait(1);
    assert_eq!(device.connects, 2);
    device.sign_in();
    let refusal = Refusal::new(Code::Draining, "leaving").retry_after(Duration::from_secs(9));
    for (jitter, pause) in [(9000, 9000), (9001, 0), (8000, 8000)] {
        let connects = device.connects;
        device.hear(closing_frame(refusal.clone()));
        device.lose(jitter);
        if pause > 0 {
            device.wait(pause - 1);
            assert_eq!(device.connects, connects);
        }
        device.wait(1);
        assert_eq!(device.connects, connects + 1);
        device.sign_in();
    }
}

#[test]
fn terminal_codes_end_it() {
    for code in [Code::Displaced, Code::Unauthenticated, Code::TokenExpired] {
        let mut device = Device::ready();
        device.hear(closing_frame(Refusal::new(code, "for good")));
        device.lose(1);
        device.wait(3_600_000);
        assert!(matches!(device.core.state(), ConnectionState::Closed(why) if why.code == code));
        assert_eq!(device.connects, 1);
        assert_eq!(device.core.poll_timeout(), None);
    }
}

// An earlier sign-in is refused, too, and uses up what the user's other devices have.
#[test]
fn limited_client_waits_as_long_as_the_server_says() {
    for code in [Code::RateLimited, Code::TooManySessions] {
        let mut device = Device::ready();
        let refusal = Refusal::new(code, "later").retry_after(Duration::from_secs(60));
        device.hear(closing_frame(refusal));
        device.lose(0);
        device.wait(59_999);
        assert_eq!(device.connects, 1);
        device.wait(1);
        assert_eq!(device.connects, 2);
    }
}

fn replaced(device: &mut Device) {
    let refusal = Refusal::new(
        Code::Replaced,
        "another connection of this device signed in",
    );
    device.hear(closing_frame(refusal));
    device.lose(0);
}

// An abandoned connection of the device may be admitted after the current one.
#[test]
fn a_connection_that_the_device_itself_replaced_comes_again() {
    let mut device = Device::ready();
    for connects in 2..20 {
        replaced(&mut device);
        assert!(matches!(
            device.core.state(),
            ConnectionState::Reconnecting { .. }
        ));
        device.wait(0);
        assert_eq!(device.connects, connects);
        device.sign_in();
        device.wait(30_000);
        let server_time = device.now;
        let pong = ServerFrame::Pong {
            nonce: 1,
            server_time,
        };
        device.hear(pong);
        device.wait(25_000);
    }
}

#[test]
fn two_programs_under_one_devices_name_do_not_fight_for_ever() {
    let mut device = Device::ready();
    for _ in 0..4 {
        replaced(&mut device);
        assert!(matches!(
            device.core.state(),
            ConnectionState::Reconnecting { .. }
        ));
        device.wait(0);
        device.sign_in();
    }
    replaced(&mut device);
    assert!(
        matches!(device.core.state(), ConnectionState::Closed(why) if why.code == Code::Displaced)
    );
    assert_eq!(device.core.poll_timeout(), None);
}

#[test]
fn a_silent_client_pings_and_a_silent_server_is_left() {
    let mut device = Device::ready();
    device.take_sent();
    device.wait(30_000);
    let nonce = match device.take_sent()[..] {
        [ClientFrame::Ping { nonce }] => nonce,
        ref other => panic!("{other:?}"),
    };
    let server_time = device.now;
    device.hear(ServerFrame::Pong { nonce, server_time });
    device.wait(30_000);
    assert!(matches!(device.take_sent()[..], [ClientFrame::Ping { .. }]));
    device.wait(19_999);
    assert!(device.actions.is_empty());
    device.wait(1);
    assert!(
        matches!(&device.actions[..], [Action::Disconnect(why)] if why.code == Code::HeartbeatMissed)
    );
}

/// Found by random worlds: acks repeated into a dead connection kept it alive.
#[test]
fn client_that_only_sends_notices_a_dead_connection() {
    let mut device = Device::ready();
    device.push(super::device::message(1));
    device.wait(50_000);
    assert!(
        matches!(&device.actions[..], [Action::Disconnect(why)] if why.code == Code::HeartbeatMissed)
    );
}

#[test]
fn no_welcome_in_time_is_tried_again() {
    let mut device = Device::new();
    device.core.handle_connected(device.now);
    device.drain();
    device.wait(20_000);
    assert!(
        matches!(&device.actions[..], [Action::Disconnect(why)] if why.code == Code::HandshakeTimeout)
    );
    device.wait(1000);
    assert_eq!(device.connects, 2);
}
