//! Messages by their send_id.

use super::*;

/// The send_id finds the sender's own row, from the first try on, and nobody else's.
pub(crate) async fn a_private_send_is_found_by_its_send_id(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    let talk = Talk::private(fresh);
    let other_talk = talk.elsewhere();
    let filler = other_talk.say(store, 1..=300).await;
    let rows = talk.rows(fresh.message(), 1, 1);
    let out = rows[0].clone();
    store.save(rows).await.expect("saves");
    let first = async |talk: &Talk<'_>, lower_bound| {
        let key = talk.send(send_id(&out), lower_bound);
        store.find_sends(&[key]).await.expect("reads")
    };
    let lower_bound = filler[0];
    assert_eq!(first(&talk, lower_bound).await, [Some(out.clone())]);
    assert_eq!(first(&talk, out.id()).await, [Some(out.clone())]);
    assert_eq!(first(&talk, fresh.message()).await, [None]);
    assert_eq!(first(&talk.back(), lower_bound).await, [None]);
    assert_eq!(first(&other_talk, lower_bound).await, [None]);
    // A sender without a part in the conversation.
    let stranger = SendKey {
        from: fresh.user(),
        ..talk.send(send_id(&out), lower_bound)
    };
    let result = store.find_sends(&[stranger]).await.expect("reads");
    assert_eq!(result, [None]);
}

/// A send_id finds the sender's own row, from the first try on, in this group, and no other
/// sender's.
pub(crate) async fn a_send_to_a_group_is_found_by_its_send_id(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    let talk = Talk::group(fresh);
    let filler = talk.say(store, 1..=30).await;
    let row = talk.row(fresh.message(), 31, 31);
    let id = send_id(&row);
    let repeat_rows = with_send_id(talk.rows(fresh.message(), 32, 32), id);
    let repeat = repeat_rows[0].clone();
    let other_talk = talk.elsewhere();
    let other_rows = with_send_id(other_talk.rows(repeat.id(), 32, 32), id);
    let other_row = other_rows[0].clone();
    let all = [repeat_rows, other_rows, vec![row.clone()]].concat();
    store.save(all).await.expect("saves");
    let first = async |talk: &Talk<'_>, lower_bound| {
        let result = store.find_sends(&[talk.send(id, lower_bound)]).await;
        result.expect("reads").swap_remove(0)
    };
    // A repeat that became a message of its own lies beside the first, and the first wins.
    assert_eq!(first(&talk, filler[0]).await, Some(row.clone()));
    assert_eq!(first(&talk, row.id()).await, Some(row.clone()));
    assert_eq!(first(&talk, repeat.id()).await, Some(repeat));
    assert_eq!(first(&talk, fresh.message()).await, None);
    assert_eq!(first(&other_talk, filler[0]).await, Some(other_row));
    assert_eq!(first(&talk.another(), filler[0]).await, None);
    assert_eq!(first(&talk.elsewhere(), filler[0]).await, None);
}

/// Some kinds of UUID differ in their first bytes only, others in their last.
pub(crate) async fn sends_that_differ_in_any_byte_are_told_apart(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    for talk in Talk::each(fresh) {
        // Users of the tests are unique.
        let like = (talk.from.get() as u128).to_be_bytes();
        let send_id = |n: usize| {
            let mut bytes = like;
            if let Some(byte) = bytes.get_mut(n) {
                *byte ^= 0x55;
            }
            SendId::from_bytes(bytes)
        };
        let mut expected_rows = Vec::new();
        for n in 0..17 {
            let rows = talk.rows(fresh.message(), n as u64 + 1, n as u64 + 1);
            let rows = with_send_id(rows, send_id(n));
            expected_rows.push(rows[0].clone());
            store.save(rows).await.expect("saves");
        }
        let keys: Vec<_> = (0..17)
            .map(|n| talk.send(send_id(n), expected_rows[0].id()))
            .collect();
        let result = store.find_sends(&keys).await.expect("reads");
        for (n, (row, result)) in expected_rows.iter().zip(result).enumerate() {
            assert_eq!(result.as_ref(), Some(row), "byte {n}");
        }
    }
}

/// Several users may choose the same send_id; the query returns all, from users and groups.
pub(crate) async fn a_send_id_finds_its_messages(store: &dyn MessageStore, fresh: &TestIds) {
    let id = fresh.send_id();
    let talks = [Talk::each(fresh), Talk::each(fresh)].concat();
    let (mut rows, mut expected) = (Vec::new(), Vec::new());
    for talk in &talks {
        let message_rows = with_send_id(talk.rows(fresh.message(), 1, 1), id);
        expected.push((talk.from, message_rows[0].id()));
        rows.extend(message_rows);
    }
    store.save(rows).await.expect("saves");
    let mut result = store.sent_as(id).await.expect("reads");
    result.sort_unstable();
    expected.sort_unstable();
    assert_eq!(result, expected);
    let unknown = store.sent_as(fresh.send_id()).await;
    assert_eq!(unknown.expect("reads"), []);
}
