use super::*;

#[test]
fn one_call_is_under_way_and_the_rest_goes_with_the_next() {
    let mut session = open();
    session.handle_frame(received(&[1]), START);
    assert!(matches!(&drained(&mut session)[..], [Action::Receipts(_)]));
    session.handle_frame(received(&[2]), START);
    session.handle_frame(received(&[3]), START);
    session.handle_frame(ack(ReceiptKind::Read, &[2]), START);
    assert_eq!(drained(&mut session), []);
    let none = |kind| Acked {
        kind,
        ids: vec![],
        refused: vec![],
    };
    session.handle_receipts(Ok(none(ReceiptKind::Received)), START);
    let actions = drained(&mut session);
    let Some(Action::Receipts(ack)) = actions.last() else {
        panic!("{actions:?}");
    };
    assert_eq!(ack.items, [ack_item(2), ack_item(3)]);
    session.handle_receipts(Ok(none(ReceiptKind::Received)), START);
    let actions = drained(&mut session);
    assert!(matches!(actions.last(), Some(Action::Receipts(ack)) if ack.kind == ReceiptKind::Read));
}

// A chat that is open says *read* alone.
#[test]
fn who_has_read_a_message_has_received_it() {
    let mut session = open();
    session.push(SOURCE, push(1), START);
    session.hint();
    drained(&mut session);
    session.handle_page(mails(&[2], None), START);
    drained(&mut session);
    session.handle_frame(ack(ReceiptKind::Read, &[1, 2]), START);
    let actions = drained(&mut session);
    assert_eq!(actions[0], resolved(1, Outcome::Done));
    let removed = Action::RemoveMail {
        ids: vec![message(2)],
    };
    assert!(actions.contains(&removed), "{actions:?}");
    assert_eq!(session.ack_deadline(), None);
}

// R15: a failed call fails item by item, so that the client repeats it; nothing is taken back.
#[test]
fn a_failed_call_is_told_for_each_item() {
    let mut session = open();
    session.handle_frame(received(&[1, 2]), START);
    drained(&mut session);
    session.handle_receipts(Err(unavailable()), START);
    let actions = drained(&mut session);
    let [ServerFrame::Acked(acked)] = told(&actions)[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(acked.ids, []);
    assert_eq!(acked.refused.len(), 2);
    assert!(
        acked
            .refused
            .iter()
            .all(|(_, refusal)| refusal.code == Code::Unavailable)
    );
}

#[test]
fn who_acknowledges_what_was_never_sent_is_limited() {
    let limits = SessionLimits {
        refused_acks_per_minute: 2,
        ..SessionLimits::default()
    };
    let mut session = open_with(limits);
    let refused = |id| {
        Ok(Acked {
            kind: ReceiptKind::Received,
            ids: vec![],
            refused: vec![(message(id), Refusal::new(Code::NotFound, "never sent"))],
        })
    };
    let mut acknowledge = |id, at| {
        session.handle_frame(received(&[id]), at);
        drained(&mut session);
        session.handle_receipts(refused(id), at);
        closed(&drained(&mut session))
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
    drained(&mut session);
    session.handle_frame(received(&[2]), START);
    session.handle_closed(START);
    assert_eq!(drained(&mut session), [Action::Leave]);
    assert!(!session.is_settled());
    session.handle_receipts(Err(unavailable()), START);
    assert!(
        matches!(&drained(&mut session)[..], [Action::Receipts(ack)] if ack.items == [ack_item(2)])
    );
    session.handle_receipts(Err(unavailable()), START);
    assert_eq!(drained(&mut session), []);
    assert!(session.is_settled());
}
