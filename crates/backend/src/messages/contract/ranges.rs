//! Rows of one owner by id.

use super::*;
use crate::clock::{Entropy, SeededEntropy};

// proves S0-03, S0-05, S3-27: one range read returns a user's messages with all peers, in order of id.
pub(crate) async fn one_read_returns_all_peers(store: &dyn MessageStore, fresh: &TestIds) {
    let talk = Talk::private(fresh);
    let mut ids = Vec::new();
    for seq in 1..=3 {
        for other in [talk, talk.elsewhere(), talk.elsewhere()] {
            ids.extend(other.say(store, [seq]).await);
        }
    }
    let bounds = (Some(ids[1]), None);
    let ids_after = find(store, talk.writers(), bounds, Order::Forward, MAX_ROWS).await;
    assert_eq!(ids_after, ids[2..]);
}

// proves S0-04: one range read returns what all said in the group, in order of id, and nothing of another group.
pub(crate) async fn one_read_returns_all_senders(store: &dyn MessageStore, fresh: &TestIds) {
    let one = Talk::group(fresh);
    let (other, other_group) = (one.another(), Talk::group(fresh));
    let mut ids = Vec::new();
    for seq in [1, 3, 5] {
        ids.extend(one.say(store, [seq]).await);
        other_group.say(store, [seq]).await;
        ids.extend(other.say(store, [seq + 1]).await);
    }
    let bounds = (Some(ids[1]), None);
    let ids_after = find(store, one.writers(), bounds, Order::Forward, MAX_ROWS).await;
    assert_eq!(ids_after, ids[2..]);
}

// proves S0-58, S0-59, S0 Pitfall B: upward, oldest first, at most a page, both bounds exclusive.
pub(crate) async fn forward_bounds_are_exclusive(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        let ids = talk.say(store, 1..=6).await;
        let owner = talk.receivers();
        let forward = async |after_id, before_id, limit| {
            find(store, owner, (after_id, before_id), Order::Forward, limit).await
        };
        assert_eq!(forward(None, None, MAX_ROWS).await, ids);
        assert_eq!(forward(None, None, 2).await, ids[..2]);
        assert_eq!(forward(Some(ids[1]), None, 3).await, ids[2..5]);
        assert_eq!(
            forward(Some(ids[1]), Some(ids[4]), MAX_ROWS).await,
            ids[2..4]
        );
        assert_eq!(forward(None, Some(ids[2]), MAX_ROWS).await, ids[..2]);
    }
}

// proves S0-60a, S0-60b, S0-60c, S0-60d: downward, newest first, bounds exclusive.
// proves S0-61f, S0-61g: in a group, from the newest, or from the upper bound, down to the lower one; both
// exclusive; the next call goes on from the last id.
pub(crate) async fn backward_bounds_are_exclusive(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        let mut ids = talk.say(store, 1..=6).await;
        ids.reverse();
        let owner = talk.receivers();
        let backward = async |after_id, before_id, limit| {
            find(store, owner, (after_id, before_id), Order::Backward, limit).await
        };
        assert_eq!(backward(None, None, 2).await, ids[..2]);
        assert_eq!(backward(None, Some(ids[2]), MAX_ROWS).await, ids[3..]);
        assert_eq!(backward(Some(ids[3]), None, MAX_ROWS).await, ids[..3]);
        assert_eq!(
            backward(Some(ids[4]), Some(ids[1]), MAX_ROWS).await,
            ids[2..4]
        );
        assert_eq!(backward(Some(ids[4]), Some(ids[1]), 1).await, ids[2..3]);
        assert_eq!(backward(Some(ids[4]), Some(ids[0]), 2).await, ids[1..3]);
        assert_eq!(backward(Some(ids[4]), Some(ids[2]), 2).await, ids[3..4]);
        assert_eq!(backward(Some(ids[4]), Some(ids[3]), 2).await, []);
    }
}

// proves S0-60e: an empty range is an empty list.
pub(crate) async fn an_empty_range_is_an_empty_list(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        let owner = talk.writers();
        let nobody = talk.another().elsewhere().writers();
        let ids = talk.say(store, 1..=2).await;
        let (first, last) = (Some(ids[0]), Some(ids[1]));
        for order in [Order::Forward, Order::Backward] {
            for (owner, bounds) in [
                (nobody, (None, None)),
                (owner, (last, None)),
                (owner, (None, first)),
                (owner, (first, last)),
                (owner, (first, first)),
                (owner, (last, first)),
            ] {
                assert_eq!(find(store, owner, bounds, order, MAX_ROWS).await, []);
            }
            assert_eq!(find(store, owner, (None, None), order, 0).await, []);
        }
    }
}

// proves S0-60e: paging by the last id visits each id once, also while a writer adds.
pub(crate) async fn paging_visits_each_id_once(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        let old_ids = talk.say(store, 1..=23).await;
        let mut new_seqs = 24..70;
        for order in [Order::Forward, Order::Backward] {
            let mut found_ids: Vec<MessageId> = Vec::new();
            let mut additions = new_seqs.by_ref().take(23);
            loop {
                let last = found_ids.last().copied();
                let bounds = match order {
                    Order::Forward => (last, None),
                    Order::Backward => (None, last),
                };
                let page = find(store, talk.writers(), bounds, order, 5).await;
                if page.is_empty() {
                    break;
                }
                found_ids.extend(page);
                if let Some(seq) = additions.next() {
                    talk.say(store, [seq]).await;
                }
            }
            if order == Order::Backward {
                found_ids.reverse();
            }
            assert!(
                found_ids.is_sorted_by(|a, b| a < b),
                "{order:?}: {found_ids:?}"
            );
            assert!(found_ids.starts_with(&old_ids), "{order:?}: {found_ids:?}");
            assert!(found_ids.len() > old_ids.len(), "{order:?} saw nothing new");
        }
    }
}

/// Any range and any limit match a sorted list.
pub(crate) async fn any_range_equals_the_sorted_list(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        let ids = talk.say(store, 1..=20).await;
        let chance = SeededEntropy::new(7);
        let random_bound = || match chance.next() % 24 {
            n @ 0..20 => Some(ids[n as usize]),
            20 => MessageId::new(1).ok(),
            21 => MessageId::new(i64::MAX).ok(),
            _ => None,
        };
        for _ in 0..200 {
            let (after_id, before_id) = (random_bound(), random_bound());
            let limit = (chance.next() % 25) as usize;
            let is_inside = |id: &MessageId| {
                after_id.is_none_or(|after_id| *id > after_id)
                    && before_id.is_none_or(|before_id| *id < before_id)
            };
            let mut expected: Vec<_> = ids.iter().copied().filter(is_inside).collect();
            let order = if chance.next().is_multiple_of(2) {
                Order::Forward
            } else {
                expected.reverse();
                Order::Backward
            };
            expected.truncate(limit);
            let result = find(store, talk.writers(), (after_id, before_id), order, limit).await;
            assert_eq!(
                result, expected,
                "{after_id:?} {before_id:?} {order:?} {limit}"
            );
        }
    }
}
