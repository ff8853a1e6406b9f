use super::*;

// The last word on a send is the right one: accepted, then placed or refused.
#[test]
fn a_notice_waits_for_the_answers_to_sends_under_way() {
    let mut session = open();
    let notice = |number: u8| Bytes::from(vec![number; 10]);
    let frames = |actions: &[Action]| -> Vec<String> {
        (actions.iter())
            .filter_map(|action| match action {
                Action::Transmit(Outgoing::Notice(notice)) => Some(format!("notice {}", notice[0])),
                Action::Transmit(Outgoing::Frame(ServerFrame::Accepted(_))) => {
                    Some("accepted".into())
                }
                _ => None,
            })
            .collect()
    };
    session.notice(notice(1), START);
    assert_eq!(frames(&drain_actions(&mut session)), ["notice 1"]);
    session.handle_frame(send_to(2, 1), START);
    drain_actions(&mut session);
    session.handle_frame(send_to(2, 2), START);
    session.notice(notice(2), START);
    session.notice(notice(3), START);
    assert_eq!(frames(&drain_actions(&mut session)), [""; 0]);
    session.handle_submitted(vec![accepted_answer(1)], START);
    let actions = drain_actions(&mut session);
    assert_eq!(frames(&actions), ["accepted", "notice 2", "notice 3"]);
    // The next batch is under way: more than it may hold back goes out, in order.
    session.notice(notice(4), START);
    session.notice(Bytes::from(vec![5; 70_000]), START);
    assert_eq!(
        frames(&drain_actions(&mut session)),
        ["notice 4", "notice 5"]
    );
}

// A script that sends and leaves loses nothing.
#[test]
fn sends_that_came_before_the_end_reach_the_station() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    assert_eq!(submitted_ids(&drain_actions(&mut session)), [send_id(1)]);
    session.handle_frame(send_to(2, 2), START);
    session.push(SOURCE, push(1), START);
    drain_actions(&mut session);
    session.handle_end(START);
    let actions = drain_actions(&mut session);
    assert_eq!(actions, [resolve_action(1, Outcome::NoAck)]);
    session.handle_submitted(vec![accepted_answer(1)], START);
    let actions = drain_actions(&mut session);
    assert!(matches!(
        server_frames(&actions)[..],
        [ServerFrame::Accepted(_)]
    ));
    assert_eq!(submitted_ids(&actions), [send_id(2)]);
    // Now the client no longer reads, either.
    session.handle_closed(START);
    assert_eq!(drain_actions(&mut session), [Action::Leave]);
    assert!(!session.is_settled());
    session.handle_submitted(vec![accepted_answer(2)], START);
    assert_eq!(drain_actions(&mut session), []);
    assert!(session.is_settled());
}

#[test]
fn a_client_that_owes_and_is_owed_nothing_ends_at_once() {
    let mut session = open();
    session.handle_end(START);
    assert_eq!(drain_actions(&mut session), [Action::Leave]);
    assert!(session.is_settled());
}

// proves S3-08, S3-11, S3-12
#[test]
fn a_send_is_submitted_and_answered() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    assert_eq!(submitted_ids(&drain_actions(&mut session)), [send_id(1)]);
    session.handle_submitted(vec![accepted_answer(1)], START);
    let actions = drain_actions(&mut session);
    let Ok(answer) = accepted_answer(1) else {
        unreachable!()
    };
    assert_eq!(server_frames(&actions), [&ServerFrame::Accepted(answer)]);
}

#[test]
fn a_send_is_submitted_for_the_session_that_it_came_from() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    let (actions, ClientFrame::Send(send)) = (drain_actions(&mut session), send_to(2, 1)) else {
        unreachable!()
    };
    let submit = Submit {
        session: session.id(),
        user: user(1),
        device: hello().device,
        platform: hello().platform,
        send,
        ticket: None,
    };
    assert_eq!(actions, [Action::Submit(vec![submit])]);
}

#[test]
fn sends_during_a_batch_go_with_the_next() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    assert_eq!(submitted_ids(&drain_actions(&mut session)), [send_id(1)]);
    session.handle_frame(send_to(2, 2), START);
    session.handle_frame(send_to(3, 3), START);
    assert_eq!(drain_actions(&mut session), []);
    session.handle_submitted(vec![accepted_answer(1)], START);
    assert_eq!(
        submitted_ids(&drain_actions(&mut session)),
        [send_id(2), send_id(3)]
    );
}

// The answer under way names only the send_id: the second send must not take it as its own.
#[test]
fn a_send_id_under_way_is_not_taken_for_somebody_else() {
    let mut session = open();
    for is_in_flight in [true, false] {
        let number = if is_in_flight { 1 } else { 2 };
        session.handle_frame(send_to(2, number), START);
        session.handle_frame(send_to(2, number), START);
        session.handle_frame(send_to(3, number), START);
        let actions = drain_actions(&mut session);
        let expected = [(send_id(number), Code::InvalidArgument)];
        assert_eq!(refusals(&actions), expected);
    }
    session.handle_submitted(vec![accepted_answer(1)], START);
    assert_eq!(submitted_ids(&drain_actions(&mut session)), [send_id(2)]);
}

#[test]
fn the_window_is_kept_and_its_refusal_keeps_the_order() {
    let mut session = open_session(SessionLimits {
        send_window: 2,
        ..SessionLimits::default()
    });
    for number in 1..=3 {
        session.handle_frame(send_to(2, number), START);
    }
    let actions = drain_actions(&mut session);
    assert_eq!(refusals(&actions), [(send_id(3), Code::WindowFull)]);
    session.handle_submitted(vec![accepted_answer(1), accepted_answer(2)], START);
    // 4 must not overtake 3, but another conversation goes on.
    session.handle_frame(send_to(2, 4), START);
    session.handle_frame(send_to(5, 5), START);
    let actions = drain_actions(&mut session);
    assert_eq!(refusals(&actions), [(send_id(4), Code::EarlierSendFailed)]);
    assert_eq!(submitted_ids(&actions), [send_id(5)]);
    session.handle_submitted(vec![accepted_answer(5)], START);
    session.handle_frame(send_to(2, 3), START);
    session.handle_frame(send_to(2, 4), START);
    assert_eq!(
        submitted_ids(&drain_actions(&mut session)),
        [send_id(3), send_id(4)]
    );
}

#[test]
fn after_a_failure_the_conversation_waits_for_that_send() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    drain_actions(&mut session);
    session.handle_frame(send_to(2, 2), START);
    session.handle_frame(send_to(3, 3), START);
    session.handle_submitted(vec![Err(unavailable())], START);
    let actions = drain_actions(&mut session);
    let expected = [
        (send_id(1), Code::Unavailable),
        (send_id(2), Code::EarlierSendFailed),
    ];
    assert_eq!(refusals(&actions), expected);
    assert_eq!(submitted_ids(&actions), [send_id(3)]);
    session.handle_submitted(vec![accepted_answer(3)], START);

    session.handle_frame(send_to(2, 2), START);
    assert_eq!(
        refusals(&drain_actions(&mut session)),
        [(send_id(2), Code::EarlierSendFailed)]
    );
    session.handle_frame(send_to(2, 1), START);
    session.handle_frame(send_to(2, 2), START);
    assert_eq!(
        submitted_ids(&drain_actions(&mut session)),
        [send_id(1), send_id(2)]
    );
}

#[test]
fn a_send_given_up_frees_its_conversation() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    drain_actions(&mut session);
    session.handle_submitted(vec![Err(unavailable())], START);
    session.handle_frame(ClientFrame::GiveUp(send_id(1)), START);
    session.handle_frame(send_to(2, 2), START);
    assert_eq!(submitted_ids(&drain_actions(&mut session)), [send_id(2)]);
}

#[test]
fn a_send_that_can_never_succeed_holds_nobody_up() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    drain_actions(&mut session);
    let forbidden = Refusal::new(Code::Forbidden, "blocked");
    session.handle_submitted(vec![Err(forbidden)], START);
    session.handle_frame(send_to(2, 2), START);
    let actions = drain_actions(&mut session);
    assert_eq!(refusals(&actions), [(send_id(1), Code::Forbidden)]);
    assert_eq!(submitted_ids(&actions), [send_id(2)]);
}

// Inside a session, an impatient repeat is not even submitted.
#[test]
fn a_repeat_of_a_send_under_way_waits_for_the_same_answer() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    session.handle_frame(send_to(2, 1), START);
    assert_eq!(submitted_ids(&drain_actions(&mut session)), [send_id(1)]);
    session.handle_frame(send_to(2, 1), START);
    assert_eq!(drain_actions(&mut session), []);
}

#[test]
fn to_oneself_and_too_large_are_refused() {
    let mut session = open_session(SessionLimits {
        body_bytes_max: 1,
        ..SessionLimits::default()
    });
    session.handle_frame(send_to(1, 1), START);
    session.handle_frame(send_to(2, 2), START);
    let expected = [(send_id(1), Code::ToSelf), (send_id(2), Code::TooLarge)];
    let actions = drain_actions(&mut session);
    assert_eq!(refusals(&actions), expected);
    assert_eq!(counted_bounds(&actions), [Bound::BodyBytes]);
}

#[test]
fn an_answer_that_is_missing_is_a_failure() {
    let mut session = open();
    session.handle_frame(send_to(2, 1), START);
    session.handle_frame(send_to(3, 2), START);
    drain_actions(&mut session);
    session.handle_submitted(vec![accepted_answer(1)], START);
    assert_eq!(
        refusals(&drain_actions(&mut session)),
        [(send_id(2), Code::Unavailable)]
    );
}

#[test]
fn a_client_that_never_resends_what_failed_is_stopped() {
    let mut session = open_session(SessionLimits {
        held_max: 3,
        ..SessionLimits::default()
    });
    session.handle_frame(send_to(2, 0), START);
    drain_actions(&mut session);
    session.handle_submitted(vec![Err(unavailable())], START);
    for number in 1..=2 {
        session.handle_frame(send_to(2, number), START);
    }
    assert_eq!(close_code(&drain_actions(&mut session)), None);
    session.handle_frame(send_to(2, 3), START);
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::RateLimited)
    );
}

#[test]
fn a_batch_is_bounded_in_bytes() {
    let limits = SessionLimits {
        submit_bytes_max: 300,
        ..SessionLimits::default()
    };
    let mut session = open_session(limits);
    for number in 1..=3 {
        session.handle_frame(send_to(2, number), START);
    }
    assert_eq!(
        submitted_ids(&drain_actions(&mut session)),
        [send_id(1), send_id(2)]
    );
    session.handle_submitted(vec![accepted_answer(1), accepted_answer(2)], START);
    assert_eq!(submitted_ids(&drain_actions(&mut session)), [send_id(3)]);
}

#[test]
fn a_send_that_cannot_be_is_refused_and_the_session_goes_on() {
    let mut session = open();
    let refusal = Refusal::new(Code::InvalidArgument, "to_id: 0");
    session.handle_invalid_send(send_id(1), refusal.clone(), START);
    session.handle_invalid_question(7, refusal, START);
    let actions = drain_actions(&mut session);
    assert_eq!(refusals(&actions), [(send_id(1), Code::InvalidArgument)]);
    assert!(matches!(
        server_frames(&actions)[1],
        ServerFrame::Error {
            request: Some(7),
            ..
        }
    ));
    assert!(!session.is_closed());
}
