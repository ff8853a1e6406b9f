use super::*;

// proves S3-13, S3-14, S3-15
#[test]
fn a_push_is_done_when_it_is_acknowledged() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(1)]
    );
    session.handle_frame(received(&[1]), after(20));
    let actions = drain_actions(&mut session);
    assert_eq!(actions[0], resolve_action(1, Outcome::Done));
    assert!(matches!(&actions[1], Action::Receipts(ack) if ack.items == [ack_item(1)]));
    let acked = Acked {
        kind: ReceiptKind::Received,
        ids: vec![message(1)],
        refusals: vec![],
    };
    session.handle_receipts(Ok(acked.clone()), after(21));
    assert_eq!(
        server_frames(&drain_actions(&mut session)),
        [&ServerFrame::Acked(acked)]
    );
}

// proves S1 Pitfall C: the acknowledgement is expected before the frame is handed out.
#[test]
fn an_acknowledgement_faster_than_the_write_counts() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    session.handle_frame(received(&[1]), START);
    let actions = drain_actions(&mut session);
    assert!(
        actions.contains(&resolve_action(1, Outcome::Done)),
        "{actions:?}"
    );
    session.handle_timeout(after(2000));
    assert_eq!(drain_actions(&mut session), []);
}

/// A time in a session's second minute: in its first it does not end for lack of an acknowledgement.
fn minute(millis: u64) -> Timestamp {
    after(60_000 + millis)
}

/// Time at which the session ends, which is then, or later by the travel time of a test's few small
/// frames.
fn ends_at(session: &Session, ack_due: Timestamp) -> Timestamp {
    let ends_at = session.ack_deadline().expect("something is waited for");
    let travel = ends_at.since(ack_due);
    assert!(
        ends_at >= ack_due && travel < Duration::from_millis(50),
        "{travel:?} late"
    );
    ends_at
}

// proves S1-15: who does not acknowledge in time is closed, and all that is owed is answered.
#[test]
fn a_missing_acknowledgement_ends_the_session() {
    let mut session = open();
    session.push(SOURCE, push(1), minute(0));
    drain_actions(&mut session);
    write_all(&mut session, minute(0));
    session.push(SOURCE, push(2), minute(1500));
    drain_actions(&mut session);
    assert_eq!(session.poll_timeout(), Some(minute(2000)));
    session.handle_timeout(minute(1999));
    assert_eq!(drain_actions(&mut session), []);
    let ack_deadline = ends_at(&session, minute(2000));
    session.handle_timeout(ack_deadline);
    let actions = drain_actions(&mut session);
    assert_eq!(
        actions[..2],
        [
            resolve_action(1, Outcome::NoAck),
            resolve_action(2, Outcome::NoAck)
        ]
    );
    assert_eq!(actions[2], Action::Leave);
    assert_eq!(close_code(&actions), Some(Code::Reconnect));
    // R9: the late acknowledgement has no effect.
    session.handle_frame(received(&[1]), minute(2001));
    assert_eq!(drain_actions(&mut session), []);
    session.push(SOURCE, push(3), minute(2002));
    assert_eq!(
        drain_actions(&mut session),
        [resolve_action(3, Outcome::NoSession)]
    );
}

// A client ten seconds away: its carriers do not wait, its session does.
#[test]
fn a_client_far_away_stays_and_is_measured() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    drain_actions(&mut session);
    write_all(&mut session, START);
    session.handle_timeout(after(2000));
    assert_eq!(
        drain_actions(&mut session),
        [resolve_action(1, Outcome::NoAck)]
    );
    // What comes meanwhile is stored, and comes as mail.
    session.push(SOURCE, push(1), after(3000));
    session.push(SOURCE, push(2), after(3000));
    let outcomes = [
        resolve_action(1, Outcome::Full),
        resolve_action(2, Outcome::Full),
    ];
    assert_eq!(drain_actions(&mut session), outcomes);
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1, 2], None), after(3100));
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(2)],
        "1 was written"
    );
    write_all(&mut session, after(3100));
    session.handle_frame(received(&[1]), after(10_000));
    session.handle_frame(received(&[2]), after(13_100));
    let actions = drain_actions(&mut session);
    let removal = Action::RemoveMail {
        ids: vec![message(1), message(2)],
    };
    assert!(actions.contains(&removal), "{actions:?}");
    // Later it is given twice the round trip besides.
    session.push(SOURCE, push(3), minute(0));
    drain_actions(&mut session);
    write_all(&mut session, minute(0));
    ends_at(&session, minute(22_000));
}

#[test]
fn no_session_ends_for_an_acknowledgement_in_its_first_minute() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    drain_actions(&mut session);
    write_all(&mut session, START);
    session.handle_timeout(after(59_999));
    assert_eq!(
        drain_actions(&mut session),
        [resolve_action(1, Outcome::NoAck)]
    );
    session.handle_timeout(minute(0));
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::Reconnect)
    );
}

// A slow link: a frame that the socket has not taken cannot be acknowledged.
#[test]
fn the_time_to_acknowledge_begins_when_the_frame_is_written() {
    let mut session = open_session(SessionLimits {
        link_bytes_min: u32::MAX,
        ..SessionLimits::default()
    });
    session.push(SOURCE, push(1), minute(0));
    session.push(SOURCE, push(2), minute(0));
    drain_actions(&mut session);
    session.handle_timeout(minute(5000));
    let outcomes = [
        resolve_action(1, Outcome::NoAck),
        resolve_action(2, Outcome::NoAck),
    ];
    assert_eq!(drain_actions(&mut session), outcomes);
    let first = encoded_frame(1).len();
    session.handle_written(first - 1, minute(6000));
    session.handle_timeout(minute(8500));
    assert_eq!(drain_actions(&mut session), [], "a byte is missing");
    session.handle_written(1, minute(9000));
    assert_eq!(session.poll_timeout(), Some(minute(11_000)));
    session.handle_frame(received(&[1]), minute(10_000));
    drain_actions(&mut session);
    session.handle_timeout(minute(11_000));
    assert_eq!(drain_actions(&mut session), [], "the second is not written");
    session.handle_written(first, minute(12_000));
    // Two seconds, and twice the round trip of one.
    assert_eq!(session.poll_timeout(), Some(minute(16_000)));
    session.handle_timeout(minute(16_000));
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::Reconnect)
    );
}

// The socket takes bytes that the link has yet to carry.
#[test]
fn a_large_message_is_given_the_time_that_a_slow_link_needs() {
    let mut session = open_session(SessionLimits {
        link_bytes_min: 10_000,
        ..SessionLimits::default()
    });
    let large_push = |id| Push {
        frame: Bytes::from(vec![0; 60_000]),
        ..push(id)
    };
    session.push(SOURCE, large_push(1), minute(0));
    session.push(SOURCE, large_push(2), minute(0));
    drain_actions(&mut session);
    write_all(&mut session, minute(0));
    ends_at(&session, minute(8000));
    session.handle_frame(received(&[1]), minute(1000));
    drain_actions(&mut session);
    // Fourteen, and twice the round trip of one.
    let both_due = ends_at(&session, minute(16_000));
    session.handle_timeout(both_due);
    assert_eq!(
        close_code(&drain_actions(&mut session)),
        Some(Code::Reconnect)
    );
}

// Earlier answers are ahead of it on the link.
#[test]
fn a_message_behind_a_page_is_given_the_time_of_both() {
    let mut session = open_session(SessionLimits {
        link_bytes_min: 10_000,
        ..SessionLimits::default()
    });
    let answer = |session: &mut Session, request, at| {
        session.handle_frame(ClientFrame::Sync(question(request)), at);
        drain_actions(session);
        let page = Outgoing::Encoded(Bytes::from(vec![0; 90_000]));
        session.handle_answer(request, Ok(page), at);
    };
    answer(&mut session, 1, minute(0));
    session.push(SOURCE, push(1), minute(0));
    drain_actions(&mut session);
    write_all(&mut session, minute(0));
    ends_at(&session, minute(11_000));
    // An acknowledgement proves the arrival of everything before it.
    answer(&mut session, 2, minute(100));
    session.push(SOURCE, push(2), minute(100));
    drain_actions(&mut session);
    write_all(&mut session, minute(100));
    session.handle_frame(received(&[2]), minute(100));
    session.push(SOURCE, push(3), minute(200));
    drain_actions(&mut session);
    write_all(&mut session, minute(200));
    session.handle_frame(received(&[1]), minute(200));
    drain_actions(&mut session);
    // Two seconds, and twice the round trip of a fifth.
    ends_at(&session, minute(2600));
}

// proves S3-07: a message that reached the socket but was not acknowledged is not done.
// proves S0-80: … which goes with the connection; what was not acknowledged is in the stores.
#[test]
fn a_connection_that_ends_leaves_its_pushes_undone() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    for action in drain_actions(&mut session) {
        if let Action::Transmit(outgoing) = action {
            session.handle_written(outgoing.weight(), START);
        }
    }
    session.handle_closed(START);
    let expected = [resolve_action(1, Outcome::NoAck), Action::Leave];
    assert_eq!(drain_actions(&mut session), expected);
    assert!(session.is_settled());
    session.handle_closed(START);
    assert_eq!(drain_actions(&mut session), []);
}

// proves S0-80: what is on its way to somebody online is a bounded queue in memory,
#[test]
fn the_window_counts_messages_and_bytes() {
    let limits = SessionLimits {
        push_window: 2,
        push_window_bytes: 20,
        ..SessionLimits::default()
    };
    let mut session = open_session(limits);
    let large_push = |id| Push {
        frame: Bytes::from(vec![0; 30]),
        ..push(id)
    };
    session.push(SOURCE, large_push(1), START);
    session.push(SOURCE, push(2), START);
    let actions = drain_actions(&mut session);
    assert_eq!(
        pushed_frames(&actions).len(),
        1,
        "a single large one passes"
    );
    assert_eq!(actions[1], resolve_action(2, Outcome::Full));
    session.handle_frame(received(&[1]), START);
    for id in [3, 4, 5] {
        session.push(SOURCE, push(id), START);
    }
    let actions = drain_actions(&mut session);
    assert_eq!(
        pushed_frames(&actions),
        [encoded_frame(3), encoded_frame(4)]
    );
    assert!(actions.contains(&resolve_action(5, Outcome::Full)));
}

#[test]
fn without_acknowledgement_a_push_is_done_when_it_is_written() {
    let mut session = open();
    session.push(
        SOURCE,
        Push {
            needs_ack: false,
            ..push(1)
        },
        START,
    );
    session.push(
        SOURCE,
        Push {
            needs_ack: false,
            ..push(2)
        },
        START,
    );
    let first = encoded_frame(1).len();
    assert_eq!(pushed_frames(&drain_actions(&mut session)).len(), 2);
    session.handle_written(first - 1, START);
    assert_eq!(drain_actions(&mut session), []);
    session.handle_written(1, START);
    assert_eq!(
        drain_actions(&mut session),
        [resolve_action(1, Outcome::Done)]
    );
    session.handle_closed(START);
    assert_eq!(
        drain_actions(&mut session)[0],
        resolve_action(2, Outcome::NoAck)
    );
}

#[test]
fn a_message_pushed_again_is_written_once_and_done_for_all() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    session.push(
        SOURCE,
        Push {
            token: PushToken::from_number(77),
            ..push(1)
        },
        START,
    );
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(1)]
    );
    session.handle_frame(received(&[1]), START);
    let actions = drain_actions(&mut session);
    assert_eq!(
        actions[..2],
        [
            resolve_action(1, Outcome::Done),
            resolve_action(77, Outcome::Done)
        ]
    );
    session.push(SOURCE, push(1), START);
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(1)]
    );
}
