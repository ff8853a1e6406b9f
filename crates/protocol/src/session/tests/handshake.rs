use super::*;

#[test]
fn the_first_frame_is_hello_or_the_last() {
    for frame in [
        ClientFrame::Ping { nonce: 1 },
        send_to(2, 1),
        received(&[1]),
        ClientFrame::GiveUp(send_id(1)),
    ] {
        let mut session = opened_session(SessionLimits::default());
        session.handle_frame(frame, START);
        let actions = drain_actions(&mut session);
        assert_eq!(close_code(&actions), Some(Code::Malformed));
        assert!(!actions.contains(&Action::Leave), "it was never admitted");
        assert!(session.is_settled());
    }
}

#[test]
fn a_second_hello_or_haste_is_malformed() {
    for frame in [ClientFrame::Hello(hello()), send_to(2, 1)] {
        let mut session = opened_session(SessionLimits::default());
        session.handle_frame(ClientFrame::Hello(hello()), START);
        session.handle_frame(frame, START);
        assert_eq!(
            close_code(&drain_actions(&mut session)),
            Some(Code::Malformed)
        );
    }
    let mut session = open();
    session.handle_frame(ClientFrame::Hello(hello()), START);
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::Malformed)
    );
}

#[test]
fn another_version_is_refused_before_the_station_is_asked() {
    let mut session = opened_session(SessionLimits::default());
    session.handle_frame(
        ClientFrame::Hello(Hello {
            version: 2,
            ..hello()
        }),
        START,
    );
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::UnsupportedVersion));
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::Admit(_)))
    );
}

#[test]
fn hello_has_a_deadline() {
    let mut session = opened_session(SessionLimits::default());
    assert_eq!(session.poll_timeout(), Some(after(20_000)));
    session.handle_timeout(after(19_999));
    assert_eq!(session.poll_action(), None);
    session.handle_timeout(after(20_000));
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::HandshakeTimeout)
    );
    assert_eq!(session.poll_timeout(), None);
}

#[test]
fn a_station_that_says_no_ends_it_with_its_code() {
    let mut session = opened_session(SessionLimits::default());
    session.handle_frame(ClientFrame::Hello(hello()), START);
    session.handle_admitted(Err(Refusal::new(Code::Unauthenticated, "forged")), START);
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::Unauthenticated));
    assert!(!actions.contains(&Action::Leave));
    assert!(session.is_settled(), "nobody waits for it any more");
}

// proves S1 Pitfall J: a close while the station is asked neither waits nor leaves a registration behind.
#[test]
fn client_that_leaves_during_admission_is_signed_off_afterwards() {
    let mut session = opened_session(SessionLimits::default());
    session.handle_frame(ClientFrame::Hello(hello()), START);
    drain_actions(&mut session);
    session.close(Refusal::new(Code::KickedOut, "out"), START);
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::KickedOut));
    assert!(!actions.contains(&Action::Leave) && !session.is_settled());
    session.handle_admitted(Ok(admission()), START);
    assert_eq!(drain_actions(&mut session), [Action::Leave]);
    assert_eq!(session.user(), Some(user(1)));
    assert!(session.is_settled());
}

// proves S3-30
#[test]
fn pushes_that_come_before_the_welcome_are_written_after_it() {
    let mut session = opened_session(SessionLimits {
        push_window: 2,
        ..SessionLimits::default()
    });
    session.push(SOURCE, push(9), START);
    assert_eq!(
        drain_actions(&mut session),
        [resolve_action(9, Outcome::NoSession)]
    );
    session.handle_frame(ClientFrame::Hello(hello()), START);
    for id in [1, 2, 3] {
        session.push(SOURCE, push(id), START);
    }
    let actions = drain_actions(&mut session);
    assert_eq!(
        actions,
        [Action::Admit(hello()), resolve_action(3, Outcome::Full)]
    );
    session.handle_admitted(Ok(admission()), START);
    let actions = drain_actions(&mut session);
    assert!(matches!(
        server_frames(&actions)[..],
        [ServerFrame::Welcome(_)]
    ));
    assert_eq!(
        pushed_frames(&actions[1..]),
        [encoded_frame(1), encoded_frame(2)]
    );
}

#[test]
fn pushes_before_a_refused_hello_find_no_session() {
    let mut session = opened_session(SessionLimits::default());
    session.handle_frame(ClientFrame::Hello(hello()), START);
    session.push(SOURCE, push(1), START);
    session.handle_admitted(Err(unavailable()), START);
    assert!(drain_actions(&mut session).contains(&resolve_action(1, Outcome::NoSession)));
}
