use super::*;

fn fetch(last_id: Option<i64>) -> Action {
    Action::FetchMail {
        cursor: last_id.map(cursor),
        limit: SessionLimits::default().mail_page,
    }
}

// R2: the mailbox is read only after the welcome says that she is registered.
#[test]
fn waiting_mail_is_fetched_after_the_welcome() {
    let mut session = admitted_session(
        SessionLimits::default(),
        Admission {
            mail_waits: true,
            ..admission()
        },
    );
    let actions = drain_actions(&mut session);
    assert!(matches!(
        server_frames(&actions)[..],
        [ServerFrame::Welcome(_)]
    ));
    assert_eq!(actions[1..], [fetch(None)]);
}

// proves S0-77: what was loaded is removed only after it was acknowledged.
#[test]
fn pages_are_pushed_and_removed_after_their_acknowledgement() {
    let mut session = open();
    session.hint();
    assert_eq!(drain_actions(&mut session), [fetch(None)]);
    session.handle_page(mails(&[1, 2], Some(2)), START);
    let actions = drain_actions(&mut session);
    assert_eq!(
        pushed_frames(&actions),
        [encoded_frame(1), encoded_frame(2)]
    );
    assert_eq!(actions.last(), Some(&fetch(Some(2))));
    session.handle_frame(received(&[1]), START);
    let actions = drain_actions(&mut session);
    assert!(actions.contains(&Action::RemoveMail {
        ids: vec![message(1)]
    }));
    session.handle_page(mails(&[3], None), START);
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(3)]
    );
    session.handle_frame(received(&[2, 3]), START);
    let actions = drain_actions(&mut session);
    assert!(actions.contains(&Action::RemoveMail {
        ids: vec![message(2), message(3)]
    }));
    assert!(session.mail.is_none() && session.pushes.is_none());
}

// proves S3-42: what the server pushes by itself is read from a cursor on; a hint says that there is something to read.
#[test]
fn a_hint_during_a_drain_reads_once_more_without_repeating() {
    let mut session = open();
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1], Some(1)), START);
    drain_actions(&mut session);
    session.hint();
    session.handle_frame(received(&[1]), START);
    drain_actions(&mut session);
    session.handle_page(mails(&[2], None), START);
    let actions = drain_actions(&mut session);
    assert_eq!(pushed_frames(&actions), [encoded_frame(2)]);
    assert_eq!(actions.last(), Some(&fetch(None)), "from the oldest");
    // 1 is acknowledged with its removal under way, 2 is out; 0 caused the hint.
    session.handle_page(mails(&[4, 1, 2], None), START);
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(4)]
    );
}

#[test]
fn pushed_message_that_is_also_mail_is_written_once_and_removed() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1], None), START);
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        Vec::<Bytes>::new()
    );
    session.handle_frame(received(&[1]), START);
    let actions = drain_actions(&mut session);
    assert!(actions.contains(&resolve_action(1, Outcome::Done)));
    assert!(actions.contains(&Action::RemoveMail {
        ids: vec![message(1)]
    }));
}

#[test]
fn pages_wait_for_the_window() {
    let limits = SessionLimits {
        mail_page: 2,
        push_window_bytes: 15,
        ..SessionLimits::default()
    };
    let mut session = open_session(limits);
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1, 2, 3], Some(3)), START);
    let actions = drain_actions(&mut session);
    assert_eq!(
        pushed_frames(&actions),
        [encoded_frame(1), encoded_frame(2)],
        "14 bytes"
    );
    assert!(
        !actions
            .iter()
            .any(|a| matches!(a, Action::FetchMail { .. }))
    );
    session.handle_frame(received(&[1]), START);
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(3)]
    );
}

// No acknowledgement will come to make room.
#[test]
fn pages_go_on_when_what_needs_no_acknowledgement_is_written() {
    let mut session = open_session(SessionLimits {
        push_window: 1,
        ..SessionLimits::default()
    });
    let no_ack_push = Push {
        needs_ack: false,
        ..push(9)
    };
    session.push(SOURCE, no_ack_push, START);
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1], None), START);
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        Vec::<Bytes>::new()
    );
    write_all(&mut session, after(100));
    let actions = drain_actions(&mut session);
    assert_eq!(actions[0], resolve_action(9, Outcome::Done));
    assert_eq!(pushed_frames(&actions), [encoded_frame(1)]);
}

#[test]
fn pages_wait_until_the_client_reads() {
    let mut session = open_session(SessionLimits {
        outgoing_bytes_max: 100,
        ..SessionLimits::default()
    });
    session.notice(Bytes::from(vec![0; 150]), START);
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1], None), START);
    assert_eq!(drain_actions(&mut session), []);
    session.handle_written(50, after(100));
    assert_eq!(drain_actions(&mut session), []);
    session.handle_written(50, after(200));
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(1)]
    );
}

// proves S1-55: a device that does not take it loses nothing; no removal was asked for.
#[test]
fn unacknowledged_mail_ends_the_session_and_stays() {
    let mut session = open();
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1], None), START);
    drain_actions(&mut session);
    write_all(&mut session, START);
    session.handle_timeout(after(60_000));
    let actions = drain_actions(&mut session);
    assert_eq!(close_code(&actions), Some(Code::Reconnect));
    assert!(
        !actions
            .iter()
            .any(|a| matches!(a, Action::RemoveMail { .. }))
    );
    assert!(session.is_settled());
}

#[test]
fn a_failed_page_is_asked_for_again() {
    let mut session = open();
    session.hint();
    drain_actions(&mut session);
    session.handle_page(Err(unavailable()), START);
    assert_eq!(drain_actions(&mut session), []);
    assert_eq!(session.poll_timeout(), Some(after(1000)));
    session.handle_timeout(after(1000));
    assert_eq!(drain_actions(&mut session), [fetch(None)]);
}

#[test]
fn a_page_that_does_not_move_on_ends_the_drain() {
    let mut session = open();
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1], Some(1)), START);
    drain_actions(&mut session);
    session.handle_page(mails(&[1], Some(1)), START);
    assert_eq!(drain_actions(&mut session), []);
}

/// Mail that a station could not read stays in the mailbox: it is fetched again, later or with new
/// mail.
#[test]
fn mail_that_was_left_out_is_fetched_again() {
    let incomplete_page = |ids: &[i64]| {
        let page = mails(ids, None).expect("a page");
        Ok(Page {
            next: Some(MailCursor::START),
            ..page
        })
    };
    let mut session = open();
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[1], Some(1)), START);
    drain_actions(&mut session);
    session.handle_page(incomplete_page(&[2]), START);
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(2)]
    );
    session.handle_frame(received(&[1, 2]), START);
    drain_actions(&mut session);
    assert_eq!(session.poll_timeout(), Some(after(1000)));
    session.handle_timeout(after(1000));
    assert_eq!(
        drain_actions(&mut session),
        [fetch(None)],
        "from the oldest"
    );
    session.handle_page(incomplete_page(&[]), after(1000));
    assert_eq!(drain_actions(&mut session), []);
    session.hint();
    assert_eq!(
        drain_actions(&mut session),
        [fetch(None)],
        "new mail waits for none"
    );
    session.handle_page(mails(&[3], None), after(1100));
    assert_eq!(
        pushed_frames(&drain_actions(&mut session)),
        [encoded_frame(3)]
    );
    session.handle_frame(received(&[3]), after(1100));
    drain_actions(&mut session);
    assert!(session.mail.is_none());
}

/// Each pass that brings nothing makes the next pause twice as long, up to a minute; what the client
/// acknowledges ends that.
#[test]
fn mail_that_stays_left_out_is_asked_for_ever_later() {
    let empty_page = || {
        Ok(Page {
            mails: Vec::new(),
            next: Some(MailCursor::START),
        })
    };
    let mut session = open();
    session.hint();
    drain_actions(&mut session);
    let mut now = 0;
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        session.handle_page(empty_page(), after(now));
        assert_eq!(drain_actions(&mut session), []);
        now += seconds * 1000;
        assert_eq!(session.poll_timeout(), Some(after(now)));
        session.handle_frame(ClientFrame::Ping { nonce: 1 }, after(now));
        session.handle_timeout(after(now));
        let actions = drain_actions(&mut session);
        assert_eq!(actions.last(), Some(&fetch(None)), "{seconds}");
        write_all(&mut session, after(now));
    }
    session.handle_page(mails(&[1], None), after(now));
    drain_actions(&mut session);
    session.hint();
    session.handle_frame(received(&[1]), after(now));
    assert_eq!(drain_actions(&mut session).last(), Some(&fetch(None)));
    session.handle_page(empty_page(), after(now));
    assert_eq!(session.poll_timeout(), Some(after(now + 1000)));
}

/// A page of which everything was left out: the others are not read at once, but each in its turn,
/// also where another station answers the last one. New mail does not wait for that.
#[test]
fn a_pass_pauses_at_a_page_that_was_all_left_out() {
    let mut session = open();
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[], Some(2)), START);
    assert_eq!(drain_actions(&mut session), []);
    assert_eq!(session.poll_timeout(), Some(after(1000)));
    session.handle_timeout(after(1000));
    assert_eq!(drain_actions(&mut session), [fetch(Some(2))]);
    session.handle_page(mails(&[], Some(4)), after(1000));
    assert_eq!(drain_actions(&mut session), []);
    session.hint();
    assert_eq!(drain_actions(&mut session), [fetch(Some(4))]);
    session.handle_page(mails(&[5], None), after(1100));
    let actions = drain_actions(&mut session);
    assert_eq!(pushed_frames(&actions), [encoded_frame(5)]);
    assert_eq!(actions.last(), Some(&fetch(None)), "for the hint");
    session.handle_frame(received(&[5]), after(1100));
    drain_actions(&mut session);
    session.handle_page(mails(&[], Some(2)), after(1100));
    session.handle_timeout(after(2100));
    assert_eq!(drain_actions(&mut session), [fetch(Some(2))]);
    session.handle_page(mails(&[], None), after(2100));
    assert_eq!(session.poll_timeout(), Some(after(4100)), "not over");
}

#[test]
fn a_restored_session_is_told_to_sync_and_drains() {
    let mut session = open();
    session.resync(START);
    let actions = drain_actions(&mut session);
    assert_eq!(server_frames(&actions), [&ServerFrame::Resync]);
    assert_eq!(actions[1..], [fetch(None)]);
}
