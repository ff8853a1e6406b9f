use super::*;
use crate::frame::Refresh;
use crate::ticket::RESUME_TICKET_BYTES;

#[test]
fn pings_are_answered() {
    let mut session = open();
    session.handle_frame(ClientFrame::Ping { nonce: 5 }, after(10));
    let pong = ServerFrame::Pong {
        nonce: 5,
        server_time: after(10),
    };
    assert_eq!(server_frames(&drain_actions(&mut session)), [&pong]);
}

#[test]
fn any_frame_counts_as_a_heartbeat_and_silence_ends_it() {
    let mut session = open();
    session.handle_frame(received(&[1]), after(70_000));
    session.handle_timeout(after(75_000));
    assert_eq!(close_code(&drain_actions(&mut session)), None);
    assert_eq!(session.poll_timeout(), Some(after(145_000)));
    session.handle_timeout(after(145_000));
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::HeartbeatMissed));
    assert!(actions.contains(&Action::Leave));
}

// A library that pings by itself need not send frames.
#[test]
fn a_sign_of_life_counts_as_a_heartbeat_once_admitted() {
    let mut session = open();
    session.handle_sign_of_life(after(70_000));
    assert_eq!(session.poll_timeout(), Some(after(145_000)));
    let mut not_admitted = opened_session(SessionLimits::default());
    let deadline = not_admitted.poll_timeout();
    not_admitted.handle_sign_of_life(after(1000));
    assert_eq!(not_admitted.poll_timeout(), deadline);
}

// A thousand bytes a second are a slow line, and no slow client: not even after a heartbeat in which it said nothing.
#[test]
fn a_frame_that_comes_on_is_waited_for() {
    const IDLE: u64 = 30;
    let mut session = open();
    for second in 1..=64 {
        let now = IDLE + second;
        session.handle_partial(second as usize * 1024, after(now * 1000));
        session.handle_timeout(after(now * 1000 + 999));
        assert_eq!(session.received(), second as usize * 1024);
    }
    session.handle_frame(received(&[1]), after(95_000));
    session.handle_timeout(after(160_000));
    assert_eq!(close_code(&drain_actions(&mut session)), None);
    assert_eq!(session.received(), 0);
    assert_eq!(session.poll_timeout(), Some(after(170_000)));
}

#[test]
fn a_frame_that_does_not_come_on_ends_it() {
    let mut session = open();
    session.handle_partial(60_000, after(1000));
    // Between its fragments come pings, whose bytes are none of the frame's.
    for millis in (2000..20_000).step_by(1000) {
        session.handle_sign_of_life(after(millis));
        session.handle_partial(60_000, after(millis));
    }
    assert_eq!(session.poll_timeout(), Some(after(21_000)));
    session.handle_timeout(after(20_999));
    assert_eq!(close_code(&drain_actions(&mut session)), None);
    session.handle_timeout(after(21_000));
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::HeartbeatMissed));
    assert_eq!(session.received(), 0);
}

#[test]
fn a_frame_does_not_come_on_for_ever() {
    let mut session = open();
    for (step, millis) in (1000..76_000).step_by(15_000).enumerate() {
        session.handle_timeout(after(millis));
        session.handle_sign_of_life(after(millis));
        session.handle_partial(60_000 + step, after(millis));
    }
    assert_eq!(close_code(&drain_actions(&mut session)), None);
    assert_eq!(session.poll_timeout(), Some(after(76_000)));
    session.handle_timeout(after(76_000));
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::HeartbeatMissed));
}

#[test]
fn an_expired_token_ends_it() {
    let expires_at = after(30_000);
    let mut session = admitted_session(
        SessionLimits::default(),
        Admission {
            expires_at,
            ..admission()
        },
    );
    drain_actions(&mut session);
    write_all(&mut session, START);
    assert_eq!(session.poll_timeout(), Some(expires_at));
    session.handle_timeout(expires_at);
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::TokenExpired)
    );
}

#[test]
fn too_many_frames_in_a_second_end_it() {
    let mut session = open_session(SessionLimits {
        frames_per_second: 3,
        ..SessionLimits::default()
    });
    // The hello counted as the first frame of this second.
    for nonce in 1..=2 {
        session.handle_frame(ClientFrame::Ping { nonce }, after(500));
    }
    for nonce in 1..=3 {
        session.handle_frame(ClientFrame::Ping { nonce }, after(1000));
    }
    let actions = drain_actions(&mut session);
    assert_eq!(
        (close_code(&actions), counted_bounds(&actions)),
        (None, vec![])
    );
    session.handle_frame(ClientFrame::Ping { nonce: 9 }, after(1999));
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::RateLimited));
    assert_eq!(counted_bounds(&actions), [Bound::Frames]);
}

#[test]
fn client_that_does_not_read_is_closed_without_loss() {
    let mut session = open_session(SessionLimits {
        outgoing_bytes_max: 1000,
        ..SessionLimits::default()
    });
    session.push(SOURCE, push(1), START);
    session.notice(Bytes::from(vec![0; 1000]), START);
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        None,
        "the last one may pass the bound"
    );
    session.notice(Bytes::from_static(b"one more"), START);
    let actions = drain_actions(&mut session);
    assert_eq!(counted_bounds(&actions), [Bound::OutgoingBytes]);
    assert_eq!(actions[1], resolve_action(1, Outcome::NoAck));
    assert_eq!(close_code(&actions), Some(Code::Slow));
}

#[test]
fn written_bytes_make_room() {
    let mut session = open_session(SessionLimits {
        outgoing_bytes_max: 100,
        ..SessionLimits::default()
    });
    for _ in 0..100 {
        session.notice(Bytes::from(vec![0; 60]), START);
        for action in drain_actions(&mut session) {
            let Action::Transmit(outgoing) = action else {
                panic!("{action:?}")
            };
            session.handle_written(outgoing.weight(), START);
        }
    }
    assert!(!session.is_closed());
}

// proves S1-15: a peer that reads nothing is ended, though no acknowledgement is overdue yet.
#[test]
fn client_that_reads_nothing_is_closed_after_the_write_wait() {
    let mut session = open();
    session.push(SOURCE, push(1), after(1000));
    session.notice(Bytes::from(vec![0; 3000]), after(2000));
    drain_actions(&mut session);
    session.handle_timeout(after(20_999));
    assert_eq!(
        drain_actions(&mut session),
        [resolve_action(1, Outcome::NoAck)]
    );
    assert_eq!(session.poll_timeout(), Some(after(21_000)));
    session.handle_progress(after(5000));
    assert_eq!(session.poll_timeout(), Some(after(25_000)), "it reads");
    session.handle_written(7, after(10_000));
    session.handle_frame(received(&[1]), after(10_100));
    drain_actions(&mut session);
    assert_eq!(session.poll_timeout(), Some(after(30_000)));
    session.handle_timeout(after(29_999));
    assert_eq!(drain_actions(&mut session), []);
    session.handle_timeout(after(30_000));
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::Slow));
}

#[test]
fn a_displaced_session_is_told_why_and_leaves_once() {
    let mut session = open();
    let refusal = Refusal::new(Code::Displaced, "signed in elsewhere");
    session.close(refusal.clone(), START);
    session.close(refusal.clone(), START);
    let expected = [
        Action::Leave,
        Action::Transmit(Outgoing::Frame(ServerFrame::Closing {
            refusal: refusal.clone(),
            resume: None,
        })),
        Action::Close(refusal),
    ];
    assert_eq!(drain_actions(&mut session), expected);
    session.handle_closed(START);
    assert_eq!(drain_actions(&mut session), []);
}

// R18: sends under way get their answers before the boat announces that it leaves.
#[test]
fn a_drain_finishes_what_is_under_way() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    session.push(SOURCE, push(1), START);
    drain_actions(&mut session);
    let draining =
        Refusal::new(Code::Draining, "this boat leaves").retry_after(Duration::from_millis(700));
    let resume = Some(ResumeTicket::from_bytes([7; RESUME_TICKET_BYTES]));
    session.drain(draining.clone(), resume, START);
    session.handle_frame(send_to(2, 2), START);
    session.push(SOURCE, push(2), START);
    let actions = drain_actions(&mut session);
    assert_eq!(refusals(&actions), [(send_id(2), Code::Draining)]);
    assert!(actions.contains(&resolve_action(2, Outcome::NoSession)));
    assert_eq!(close_code(&actions), None);
    session.handle_submitted(vec![accepted_answer(1)], START);
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        None,
        "a push is unacknowledged"
    );
    session.handle_frame(received(&[1]), START);
    let actions = drain_actions(&mut session);
    assert!(actions.contains(&resolve_action(1, Outcome::Done)));
    let refusal = draining.clone();
    let last_frame = ServerFrame::Closing { refusal, resume };
    assert!(actions.contains(&Action::Transmit(Outgoing::Frame(last_frame))));
    assert_eq!(actions.last(), Some(&Action::Close(draining)));
}

#[test]
fn a_drain_ends_in_order_although_a_frame_does_not_come_on() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    session.handle_partial(60_000, START);
    session.drain(Refusal::new(Code::Draining, "leaving"), None, START);
    session.handle_timeout(after(20_000));
    assert_eq!(close_code(&drain_actions(&mut session)), None);
    session.handle_submitted(vec![accepted_answer(1)], after(20_000));
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::Draining)
    );
}

#[test]
fn a_drain_does_not_wait_a_minute_for_a_silent_client() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    write_all(&mut session, START);
    let draining = Refusal::new(Code::Draining, "this boat leaves");
    session.drain(draining.clone(), None, START);
    let wait = SessionLimits::default().ack_wait;
    assert!(session.poll_timeout().expect("a deadline") >= START + wait);
    let deadline = after(5_000);
    session.handle_timeout(deadline);
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::Draining), "{actions:?}");
}

fn refresh() -> ClientFrame {
    let token = "second".to_owned();
    ClientFrame::Refresh(Refresh { token })
}

// Threat 3: a session with a new token in time goes on, one without ends with the old token.
#[test]
fn a_session_lives_as_long_as_its_newest_token() {
    let mut session = opened_session(talkative());
    session.handle_frame(ClientFrame::Hello(hello()), START);
    session.handle_admitted(Ok(admission()), START);
    let actions = drain_actions(&mut session);
    let [ServerFrame::Welcome(welcome)] = server_frames(&actions)[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(welcome.expires_at, Some(after(3_600_000)));

    session.handle_frame(refresh(), after(3_000_000));
    let token = "second".to_owned();
    let refresh_action = Action::Refresh(Refresh { token });
    assert_eq!(drain_actions(&mut session), [refresh_action]);
    let expires_at = after(7_200_000);
    session.handle_refreshed(Ok(expires_at), after(3_000_100));
    let reply = ServerFrame::Refreshed { expires_at };
    assert_eq!(server_frames(&drain_actions(&mut session)), [&reply]);
    write_all(&mut session, after(3_000_100));
    session.handle_timeout(after(7_199_999));
    assert_eq!(drain_actions(&mut session), []);
    session.handle_timeout(expires_at);
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::TokenExpired)
    );
    session.handle_refreshed(Ok(after(9_000_000)), expires_at);
    assert_eq!(drain_actions(&mut session), [], "too late");
}

#[test]
fn a_token_that_is_not_taken_changes_nothing() {
    let mut session = opened_session(talkative());
    session.handle_frame(ClientFrame::Hello(hello()), START);
    session.handle_admitted(Ok(admission()), START);
    session.handle_frame(refresh(), START);
    drain_actions(&mut session);
    let refusal = Refusal::new(Code::Unauthenticated, "forged");
    session.handle_refreshed(Err(refusal.clone()), START);
    let request = None;
    let error = ServerFrame::Error { request, refusal };
    assert_eq!(server_frames(&drain_actions(&mut session)), [&error]);
    write_all(&mut session, START);
    session.handle_timeout(after(3_600_000));
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::TokenExpired)
    );
}

#[test]
fn a_token_is_refreshed_once_a_minute() {
    let mut session = open();
    let try_refresh = |session: &mut Session, millis| {
        session.handle_frame(refresh(), after(millis));
        let actions = drain_actions(session);
        let was_asked = actions.iter().any(|it| matches!(it, Action::Refresh(_)));
        let was_refused = server_frames(&actions).iter().any(|frame| {
            matches!(frame, ServerFrame::Error { refusal, .. } if refusal.code == Code::RateLimited)
        });
        assert_ne!(was_asked, was_refused);
        was_asked
    };
    let results = [0, 1, 59_999, 60_000].map(|millis| try_refresh(&mut session, millis));
    assert_eq!(results, [true, false, false, true]);
    let mut not_admitted = opened_session(SessionLimits::default());
    not_admitted.handle_frame(refresh(), START);
    assert_eq!(
        close_code(&drain_actions(&mut not_admitted)),
        Some(Code::Malformed)
    );
}

/// Has the client read everything.
fn write_all(session: &mut Session, now: Timestamp) {
    let weight = session.outgoing();
    session.handle_written(weight, now);
}

/// Silence ends nothing.
fn talkative() -> SessionLimits {
    SessionLimits {
        heartbeat: Duration::from_secs(100_000),
        ..SessionLimits::default()
    }
}

#[test]
fn an_idle_session_is_small_and_holds_nothing() {
    assert!(size_of::<Session>() <= 272, "{}", size_of::<Session>());
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    session.push(SOURCE, push(1), START);
    session.hint();
    session.handle_frame(received(&[1]), START);
    drain_actions(&mut session);
    session.handle_submitted(vec![accepted_answer(1)], START);
    session.handle_receipts(Err(unavailable()), START);
    session.handle_page(mails(&[], None), START);
    drain_actions(&mut session);
    assert_eq!(session.actions.capacity(), 0);
    assert!(session.sends.is_none() && session.pushes.is_none());
    assert!(session.receipts.is_none() && session.mail.is_none());
}
