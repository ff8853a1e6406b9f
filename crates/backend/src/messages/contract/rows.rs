//! Rows of messages, and who may replace them.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::future::join_all;
use protocol::history::Direction;

use super::*;
use crate::test_ids::seqs;
use crate::{Kind, Result};

/// Writes any row once and reads it in every way.
// proves S0-01, S0-53: one send is two rows, the sender's out and the receiver's in, under one id; sides
// exchanged, nothing else changed.
pub(crate) async fn a_private_message_is_two_rows(store: &dyn MessageStore, fresh: &TestIds) {
    let talk = Talk::private(fresh);
    let id = fresh.message();
    let rows = talk.rows(id, 1, 1);
    let [out, inbound] = &rows[..] else {
        panic!("two rows: {rows:?}");
    };
    assert_eq!(out.direction(), Some(Direction::Out));
    assert_eq!(inbound.direction(), Some(Direction::In));
    store.save(rows.clone()).await.expect("saves");

    let (sender, receiver) = (talk.writers(), talk.receivers());
    let keys = [(sender, id), (receiver, id), (receiver, fresh.message())];
    let result = store.rows(&keys).await.expect("reads");
    assert_eq!(result, [Some(out.clone()), Some(inbound.clone()), None]);
    for (owner, row) in [(sender, out), (receiver, inbound)] {
        let all = store.find(owner, IdRange::default(), Order::Forward, MAX_ROWS);
        assert_eq!(all.await.expect("reads"), std::slice::from_ref(row));
        let page = store.page(owner, talk.conversation(), forward(0), MAX_ROWS);
        assert_eq!(page.await.expect("reads"), std::slice::from_ref(row));
    }
}

// proves S0-02, S0-61d: one send is one row, and every way to it finds the same.
pub(crate) async fn a_message_of_a_group_is_one_row(store: &dyn MessageStore, fresh: &TestIds) {
    let talk = Talk::group(fresh);
    let kind = Content {
        kind: 1000,
        ..content()
    };
    let rows = with_content(talk.rows(fresh.message(), 1, 1), &kind);
    store.save(rows.clone()).await.expect("saves");
    let [row] = &rows[..] else {
        panic!("one row: {rows:?}");
    };
    let (owner, other_owner) = (talk.writers(), talk.elsewhere().writers());
    let keys = [
        (owner, row.id()),
        (other_owner, row.id()),
        (owner, fresh.message()),
        (owner, row.id()),
    ];
    let result = store.rows(&keys).await.expect("reads");
    let some = Some(row.clone());
    assert_eq!(result, [some.clone(), None, None, some]);
    for order in [Order::Forward, Order::Backward] {
        let all = store.find(owner, IdRange::default(), order, MAX_ROWS).await;
        assert_eq!(all.expect("reads"), std::slice::from_ref(row));
    }
    let all = store.page(owner, talk.conversation(), forward(0), MAX_ROWS);
    assert_eq!(all.await.expect("reads"), std::slice::from_ref(row));
}

/// Polls a call at most `polls` times, then drops it; returns whether it completed.
async fn ends_within(polls: usize, call: impl Future<Output = Result<()>>) -> bool {
    let mut call = pin!(call);
    let mut remaining = polls;
    poll_fn(|context| {
        let Some(rest) = remaining.checked_sub(1) else {
            return Poll::Ready(false);
        };
        remaining = rest;
        (call.as_mut().poll(context)).map(|result| result.map(|()| true).expect("saves"))
    })
    .await
}

// proves S0-53: the sender's row first and then the receiver's. A write that is broken off, at whichever step, leaves no
// message that its receiver has and its sender has not; who writes again has both.
pub(crate) async fn senders_row_is_written_first(store: &dyn MessageStore, fresh: &TestIds) {
    // The sender may have the smaller number or the larger.
    let (up, down) = (Talk::private(fresh), Talk::private(fresh).back());
    let mut polls = 1;
    loop {
        let seq = polls as u64;
        let messages: Vec<_> = (0..6)
            .map(|n| {
                let talk = if n % 2 == 0 { &up } else { &down };
                talk.rows(fresh.message(), 3 * seq + n / 2, seq)
            })
            .collect();
        // Input order would put a receiver's row first.
        let rows: Vec<_> = messages.iter().flatten().rev().cloned().collect();
        let is_done = ends_within(polls, store.save(rows.clone())).await;
        for pair in &messages {
            let keys: Vec<_> = pair.iter().map(|row| (row.owner, row.id())).collect();
            let copies = store.rows(&keys).await.expect("reads");
            assert!(
                copies[1].is_none() || copies[0].is_some(),
                "{polls}: {copies:?}"
            );
            assert!(!is_done || copies[1].is_some(), "{polls}: {copies:?}");
        }
        store.save(rows).await.expect("saves");
        if is_done {
            return;
        }
        polls += 1;
    }
}

// proves S0-07: many write at once, to one user and to many, and each finds its own whole and in order.
pub(crate) async fn many_write_at_once(store: &dyn MessageStore, fresh: &TestIds) {
    let first = Talk::private(fresh);
    let talks: Vec<_> = (0..16).map(|_| first.elsewhere()).collect();
    let sent_ids = join_all(talks.iter().map(|talk| talk.say(store, 1..=6))).await;
    let mut all_ids: Vec<_> = sent_ids.iter().flatten().copied().collect();
    all_ids.sort_unstable();
    assert_eq!(
        find(
            store,
            first.writers(),
            (None, None),
            Order::Forward,
            MAX_ROWS
        )
        .await,
        all_ids
    );
    for (talk, ids) in talks.iter().zip(sent_ids) {
        assert_eq!(
            find(
                store,
                talk.receivers(),
                (None, None),
                Order::Forward,
                MAX_ROWS
            )
            .await,
            ids
        );
        assert_eq!(read(store, talk, forward(0), MAX_ROWS).await, seqs(1..=6));
    }
}

/// A repeated write changes nothing, and an earlier version never replaces a later one.
pub(crate) async fn only_a_later_version_replaces(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        let id = fresh.message();
        let original = talk.rows(id, 1, 10);
        let inbound_row = original.last().cloned();
        let key = [(talk.receivers(), id)];
        for offset in [10, 9, 10] {
            let mut rows = original.clone();
            if offset < 10 {
                let text = "a zombie's, and larger in every byte: \u{fff}";
                rows = with_content(rows, &Content::text(text));
            }
            for row in &mut rows {
                row.version = version(offset);
            }
            store.save(rows).await.expect("saves");
            let result = store.rows(&key).await.expect("reads");
            assert_eq!(result, std::slice::from_ref(&inbound_row));
        }
        let all = find(
            store,
            talk.receivers(),
            (None, None),
            Order::Forward,
            MAX_ROWS,
        );
        assert_eq!(all.await, [id]);

        // A later epoch wins, whatever its offset, also with both in one call, the later first.
        let mut newer = with_content(original.clone(), &Content::text("of the new log"));
        for row in &mut newer {
            row.version = Version {
                epoch: 2,
                offset: 0,
            };
        }
        let batch = newer.iter().chain(&original).cloned().collect();
        store.save(batch).await.expect("saves");
        let result = store.rows(&key).await.expect("reads");
        assert_eq!(result, [newer.last().cloned()]);
    }
}

/// Calls about users and groups at once answer in the order of their keys.
pub(crate) async fn both_kinds_share_a_call(store: &dyn MessageStore, fresh: &TestIds) {
    let [private, group] = Talk::each(fresh);
    let (one, other) = (fresh.message(), fresh.message());
    let (copies, message) = (private.rows(one, 1, 1), group.row(other, 1, 1));
    let mut rows = copies.clone();
    rows.insert(1, message.clone());
    store.save(rows).await.expect("saves");

    let keys = [
        (group.writers(), other),
        (private.receivers(), one),
        (group.writers(), one),
        (private.writers(), one),
        (private.writers(), other),
    ];
    let result = store.rows(&keys).await.expect("reads");
    let expected = [
        Some(message.clone()),
        Some(copies[1].clone()),
        None,
        Some(copies[0].clone()),
        None,
    ];
    assert_eq!(result, expected);

    let (private_conversation, group_conversation) = (private.conversation(), group.conversation());
    let places = [
        (private.writers(), private_conversation, Seq(1)),
        (group.writers(), group_conversation, Seq(1)),
        (group.writers(), private_conversation, Seq(1)),
        (private.writers(), group_conversation, Seq(1)),
        (private.receivers(), private_conversation, Seq(1)),
    ];
    let result = store.at(&places).await.expect("reads");
    let at = |row: &MessageRow| Some((row.id(), row.tally()));
    let expected = [at(&copies[0]), at(&message), None, None, at(&copies[1])];
    assert_eq!(result, expected);

    let sends = [
        group.send(send_id(&message), other),
        private.send(send_id(&message), one),
        private.send(send_id(&copies[0]), one),
    ];
    let result = store.find_sends(&sends).await.expect("reads");
    assert_eq!(result, [Some(message), None, Some(copies[0].clone())]);

    let deletions = [keys[0], keys[1]];
    store.delete(&deletions).await.expect("deletes");
    let flags = store.deleted(&keys).await.expect("reads");
    assert_eq!(flags, [true, true, false, true, false]);
}

/// A call with such a row writes nothing.
pub(crate) async fn a_row_of_another_conversation_is_refused(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    for talk in Talk::each(fresh) {
        let rows = talk.rows(fresh.message(), 1, 1);
        let [private, group] = Talk::each(fresh);
        for owner in [private.writers(), group.writers()] {
            let mut wrong = rows.clone();
            wrong[0].owner = owner;
            let all = rows.iter().chain(&wrong).cloned().collect();
            let error = store.save(all).await.expect_err("refused");
            assert_eq!(error.kind, Kind::Conflict);
        }
        let result = store.rows(&[(talk.receivers(), rows[0].id())]).await;
        assert_eq!(result.expect("reads"), [None]);
    }
}
