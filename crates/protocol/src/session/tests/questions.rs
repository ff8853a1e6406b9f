use super::*;

#[test]
fn questions_are_limited_and_their_answers_passed_on() {
    let mut session = open_session(SessionLimits {
        questions_max: 1,
        ..SessionLimits::default()
    });
    session.handle_frame(ClientFrame::Sync(question(1)), START);
    session.handle_frame(ClientFrame::Sync(question(2)), START);
    let actions = drain_actions(&mut session);
    assert_eq!(actions.last(), Some(&Action::Sync(question(1))));
    assert_eq!(counted_bounds(&actions), [Bound::Questions]);
    let [
        ServerFrame::Error {
            request: Some(2),
            refusal,
        },
    ] = server_frames(&actions)[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(refusal.code, Code::RateLimited);
    let page = Outgoing::Encoded(Bytes::from_static(b"page"));
    session.handle_answer(1, Ok(page), START);
    session.handle_frame(ClientFrame::Sync(question(3)), START);
    let actions = drain_actions(&mut session);
    assert_eq!(pushed_frames(&actions), [Bytes::from_static(b"page")]);
    assert_eq!(actions.last(), Some(&Action::Sync(question(3))));
}

/// Questions that the session asks of the station.
fn sync_requests(actions: &[Action]) -> Vec<u32> {
    (actions.iter())
        .filter_map(|action| match action {
            Action::Sync(question) => Some(question.request),
            _ => None,
        })
        .collect()
}

fn page(bytes: usize) -> Result<Outgoing, Refusal> {
    Ok(Outgoing::Encoded(Bytes::from(vec![0; bytes])))
}

// A client that reads is not slow, whatever the server chose to send.
#[test]
fn all_questions_are_answered_whatever_the_answers_weigh() {
    const BOUND: u32 = 2000;
    let mut session = open_session(SessionLimits {
        outgoing_bytes_max: BOUND,
        ..SessionLimits::default()
    });
    for request in 1..=8 {
        session.handle_frame(ClientFrame::Sync(question(request)), START);
    }
    let mut actions = drain_actions(&mut session);
    let mut pending: Vec<u32> = sync_requests(&actions);
    assert_eq!(pending, [1, 2, 3, 4]);
    let (mut answer_count, mut unwritten) = (0, 0);
    for turn in 0..1000 {
        let now = after(turn * 100);
        for request in std::mem::take(&mut pending) {
            session.handle_answer(request, page(5000), now);
        }
        session.handle_frame(ClientFrame::Ping { nonce: turn }, now);
        session.push(SOURCE, push(turn as i64 + 1), now);
        session.handle_frame(received(&[turn as i64 + 1]), now);
        actions = drain_actions(&mut session);
        assert_eq!(close_code(&actions), None, "turn {turn}");
        pending = sync_requests(&actions);
        answer_count += pushed_frames(&actions)
            .iter()
            .filter(|frame| frame.len() == 5000)
            .count();
        assert!(
            session.outgoing() <= 2 * BOUND as usize + 5000 + 100,
            "{}",
            session.outgoing()
        );
        unwritten += 300;
        let written = unwritten.min(session.outgoing());
        session.handle_written(written, now);
        unwritten -= written;
    }
    assert_eq!(answer_count, 8);
}

#[test]
fn waiting_question_is_refused_when_the_session_drains() {
    let mut session = open();
    for request in 1..=5 {
        session.handle_frame(ClientFrame::Sync(question(request)), START);
    }
    session.handle_frame(send_to(2, 1), START);
    assert_eq!(sync_requests(&drain_actions(&mut session)), [1, 2, 3, 4]);
    session.drain(Refusal::new(Code::Draining, "leaving"), None, START);
    session.handle_answer(1, page(10), START);
    let actions = drain_actions(&mut session);
    assert!(matches!(
        server_frames(&actions)[..],
        [ServerFrame::Error {
            request: Some(5),
            ..
        }]
    ));
    assert_eq!(pushed_frames(&actions).len(), 1);
}
