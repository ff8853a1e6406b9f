use super::*;

#[test]
fn one_call_is_under_way_and_the_rest_goes_with_the_next() {
    let mut session = open();
    session.handle_frame(received(&[1]), START);
    assert!(matches!(
        &drain_actions(&mut session)[..],
        [Action::Receipts(_)]
    ));
    session.handle_frame(received(&[2]), START);
    session.handle_frame(received(&[3]), START);
    session.handle_frame(ack(ReceiptKind::Read, &[2]), START);
    assert_eq!(drain_actions(&mut session), []);
    let empty_ack = |kind| Acked {
        kind,
        ids: vec![],
        refusals: vec![],
    };
    session.handle_receipts(Ok(empty_ack(ReceiptKind::Received)), START);
    let actions = drain_actions(&mut session);
    let Some(Action::Receipts(ack)) = actions.last() else {
        panic!("{actions:?}");
    };
    assert_eq!(ack.items, [ack_item(2), ack_item(3)]);
    session.handle_receipts(Ok(empty_ack(ReceiptKind::Received)), START);
    let actions = drain_actions(&mut session);
    assert!(matches!(actions.last(), Some(Action::Receipts(ack)) if ack.kind == ReceiptKind::Read));
}

// A chat that is open says *read* alone.
#[test]
fn read_receipt_implies_received() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    session.hint();
    drain_actions(&mut session);
    session.handle_page(mails(&[2], None), START);
    drain_actions(&mut session);
    session.handle_frame(ack(ReceiptKind::Read, &[1, 2]), START);
    let actions = drain_actions(&mut session);
    assert_eq!(actions[0], resolve_action(1, Outcome::Done));
    let removal = Action::RemoveMail {
        ids: vec![message(2)],
    };
    assert!(actions.contains(&removal), "{actions:?}");
    assert_eq!(session.ack_deadline(), None);
}

// R15: a failed call fails item by item, so that the client repeats it; nothing is taken back.
#[test]
fn a_failed_call_is_told_for_each_item() {
    let mut session = open();
    session.handle_frame(received(&[1, 2]), START);
    drain_actions(&mut session);
    session.handle_receipts(Err(unavailable()), START);
    let actions = drain_actions(&mut session);
    let [ServerFrame::Acked(acked)] = server_frames(&actions)[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(acked.ids, []);
    assert_eq!(acked.refusals.len(), 2);
    assert!(
        acked
            .refusals
            .iter()
            .all(|(_, refusal)| refusal.code == Code::Unavailable)
    );
}

#[test]
fn acks_of_unsent_messages_are_limited() {
    let limits = SessionLimits {
        refused_acks_per_minute: 2,
        ..SessionLimits::default()
    };
    let mut session = open_session(limits);
    let refusal_answer = |id| {
        Ok(Acked {
            kind: ReceiptKind::Received,
            ids: vec![],
            refusals: vec![(message(id), Refusal::new(Code::NotFound, "never sent"))],
        })
    };
    let mut acknowledge = |id, at| {
        session.handle_frame(received(&[id]), at);
        drain_actions(&mut session);
        session.handle_receipts(refusal_answer(id), at);
        close_code(&drain_actions(&mut session))
    };
    assert_eq!(acknowledge(1, after(0)), None);
    assert_eq!(acknowledge(2, after(1000)), None);
    assert_eq!(acknowledge(3, after(60_000)), None, "a new minute");
    assert_eq!(acknowledge(4, after(60_001)), None);
    assert_eq!(acknowledge(5, after(60_002)), Some(Code::RateLimited));
}

#[test]
fn acknowledgements_outlive_the_connection() {
    let mut session = open();
    session.handle_frame(received(&[1]), START);
    drain_actions(&mut session);
    session.handle_frame(received(&[2]), START);
    session.handle_closed(START);
    assert_eq!(drain_actions(&mut session), [Action::Leave]);
    assert!(!session.is_settled());
    session.handle_receipts(Err(unavailable()), START);
    assert!(
        matches!(&drain_actions(&mut session)[..], [Action::Receipts(ack)] if ack.items == [ack_item(2)])
    );
    session.handle_receipts(Err(unavailable()), START);
    assert_eq!(drain_actions(&mut session), []);
    assert!(session.is_settled());
}
