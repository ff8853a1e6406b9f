use super::*;

// proves S3-13, S3-14, S3-15
#[test]
fn a_push_is_done_when_it_is_acknowledged() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    assert_eq!(pushed(&drained(&mut session)), [frame_of(1)]);
    session.handle_frame(received(&[1]), after(20));
    let actions = drained(&mut session);
    assert_eq!(actions[0], resolved(1, Outcome::Done));
    assert!(matches!(&actions[1], Action::Receipts(ack) if ack.items == [ack_item(1)]));
    let acked = Acked {
        kind: ReceiptKind::Received,
        ids: vec![message(1)],
        refused: vec![],
    };
    session.handle_receipts(Ok(acked.clone()), after(21));
    assert_eq!(told(&drained(&mut session)), [&ServerFrame::Acked(acked)]);
}

// proves S1 Pitfall C: the acknowledgement is expected before the frame is handed out.
#[test]
fn an_acknowledgement_faster_than_the_write_counts() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    session.handle_frame(received(&[1]), START);
    let actions = drained(&mut session);
    assert!(actions.contains(&resolved(1, Outcome::Done)), "{actions:?}");
    session.handle_timeout(after(2000));
    assert_eq!(drained(&mut session), []);
}

/// Returns its deadline, which is then, or later by the travel time of a test's few small frames.
fn waited_for_until(session: &Session, millis: u64) -> Timestamp {
    let due = session.poll_timeout().expect("something is waited for");
    assert!(
        (after(millis)..after(millis + 50)).contains(&due),
        "{due:?}"
    );
    due
}

// proves S1-15: who does not acknowledge in time is closed, and all that is owed is answered.
#[test]
fn a_missing_acknowledgement_ends_the_session() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    drained(&mut session);
    write_all(&mut session, START);
    session.push(SOURCE, push(2), after(1500));
    drained(&mut session);
    let due = waited_for_until(&session, 2000);
    session.handle_timeout(after(1999));
    assert_eq!(drained(&mut session), []);
    session.handle_timeout(due);
    let actions = drained(&mut session);
    assert_eq!(
        actions[..2],
        [resolved(1, Outcome::NoAck), resolved(2, Outcome::NoAck)]
    );
    assert_eq!(actions[2], Action::Leave);
    assert_eq!(closed(&actions), Some(Code::Reconnect));
    // R9: the late acknowledgement has no effect.
    session.handle_frame(received(&[1]), after(2001));
    assert_eq!(drained(&mut session), []);
    session.push(SOURCE, push(3), after(2002));
    assert_eq!(drained(&mut session), [resolved(3, Outcome::NoSession)]);
}

// A slow link: a frame that the socket has not taken cannot be acknowledged.
#[test]
fn the_time_to_acknowledge_begins_when_the_frame_is_written() {
    let mut session = open_with(SessionLimits {
        link_bytes_min: u32::MAX,
        ..SessionLimits::default()
    });
    session.push(SOURCE, push(1), START);
    session.push(SOURCE, push(2), START);
    drained(&mut session);
    session.handle_timeout(after(5000));
    assert_eq!(drained(&mut session), []);
    let first = frame_of(1).len();
    session.handle_written(first - 1, after(6000));
    session.handle_timeout(after(8500));
    assert_eq!(drained(&mut session), [], "a byte is missing");
    session.handle_written(1, after(9000));
    assert_eq!(session.poll_timeout(), Some(after(11_000)));
    session.handle_frame(received(&[1]), after(10_999));
    drained(&mut session);
    session.handle_timeout(after(11_000));
    assert_eq!(drained(&mut session), [], "the second is not written");
    session.handle_written(first, after(12_000));
    session.push(SOURCE, push(2), after(13_000));
    assert_eq!(drained(&mut session), [], "a repeat changes nothing");
    assert_eq!(session.poll_timeout(), Some(after(14_000)));
    session.handle_timeout(after(14_000));
    assert_eq!(closed(&drained(&mut session)), Some(Code::Reconnect));
}

// The socket takes bytes that the link has yet to carry.
#[test]
fn a_large_message_is_given_the_time_that_a_slow_link_needs() {
    let mut session = open_with(SessionLimits {
        link_bytes_min: 10_000,
        ..SessionLimits::default()
    });
    let large = |id| Push {
        frame: Bytes::from(vec![0; 60_000]),
        ..push(id)
    };
    session.push(SOURCE, large(1), START);
    session.push(SOURCE, large(2), START);
    drained(&mut session);
    write_all(&mut session, START);
    waited_for_until(&session, 8000);
    session.handle_frame(received(&[1]), after(7900));
    drained(&mut session);
    let both = waited_for_until(&session, 14_000);
    session.handle_timeout(both);
    assert_eq!(closed(&drained(&mut session)), Some(Code::Reconnect));
}

// Earlier answers are ahead of it on the link.
#[test]
fn a_message_behind_a_page_is_given_the_time_of_both() {
    let limits = SessionLimits {
        link_bytes_min: 10_000,
        ..SessionLimits::default()
    };
    let page = || Outgoing::Encoded(Bytes::from(vec![0; 90_000]));
    let mut session = open_with(limits);
    session.handle_answer(1, Ok(page()), START);
    session.push(SOURCE, push(1), START);
    drained(&mut session);
    write_all(&mut session, START);
    waited_for_until(&session, 11_000);
    // An acknowledgement proves the arrival of everything before it.
    session.handle_answer(2, Ok(page()), after(100));
    session.push(SOURCE, push(2), after(100));
    drained(&mut session);
    write_all(&mut session, after(100));
    session.handle_frame(received(&[2]), after(200));
    session.push(SOURCE, push(3), after(200));
    drained(&mut session);
    write_all(&mut session, after(200));
    session.handle_frame(received(&[1]), after(200));
    drained(&mut session);
    waited_for_until(&session, 2200);
}

// proves S3-07: a message that reached the socket but was not acknowledged is not done.
// proves S0-80: … which goes with the connection; what was not acknowledged is in the stores.
#[test]
fn a_connection_that_ends_leaves_its_pushes_undone() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    for action in drained(&mut session) {
        if let Action::Transmit(outgoing) = action {
            session.handle_written(outgoing.weight(), START);
        }
    }
    session.handle_closed(START);
    let expected = [resolved(1, Outcome::NoAck), Action::Leave];
    assert_eq!(drained(&mut session), expected);
    assert!(session.is_settled());
    session.handle_closed(START);
    assert_eq!(drained(&mut session), []);
}

// proves S0-80: what is on its way to somebody online is a bounded queue in memory,
#[test]
fn the_window_counts_messages_and_bytes() {
    let limits = SessionLimits {
        push_window: 2,
        push_window_bytes: 20,
        ..SessionLimits::default()
    };
    let mut session = open_with(limits);
    let large = |id| Push {
        frame: Bytes::from(vec![0; 30]),
        ..push(id)
    };
    session.push(SOURCE, large(1), START);
    session.push(SOURCE, push(2), START);
    let actions = drained(&mut session);
    assert_eq!(pushed(&actions).len(), 1, "a single large one passes");
    assert_eq!(actions[1], resolved(2, Outcome::Full));
    session.handle_frame(received(&[1]), START);
    for id in [3, 4, 5] {
        session.push(SOURCE, push(id), START);
    }
    let actions = drained(&mut session);
    assert_eq!(pushed(&actions), [frame_of(3), frame_of(4)]);
    assert!(actions.contains(&resolved(5, Outcome::Full)));
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
    let first = frame_of(1).len();
    assert_eq!(pushed(&drained(&mut session)).len(), 2);
    session.handle_written(first - 1, START);
    assert_eq!(drained(&mut session), []);
    session.handle_written(1, START);
    assert_eq!(drained(&mut session), [resolved(1, Outcome::Done)]);
    session.handle_closed(START);
    assert_eq!(drained(&mut session)[0], resolved(2, Outcome::NoAck));
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
    assert_eq!(pushed(&drained(&mut session)), [frame_of(1)]);
    session.handle_frame(received(&[1]), START);
    let actions = drained(&mut session);
    assert_eq!(
        actions[..2],
        [resolved(1, Outcome::Done), resolved(77, Outcome::Done)]
    );
    session.push(SOURCE, push(1), START);
    assert_eq!(pushed(&drained(&mut session)), [frame_of(1)]);
}
