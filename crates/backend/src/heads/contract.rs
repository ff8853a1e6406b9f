//! Contract of every head store. Each check uses conversations of its own.

use protocol::conversation::{Head, Side};
use protocol::history::Version;

use super::HeadStore;
use crate::test_ids::TestIds;

/// Some stores order writes by a number that holds no larger offset; no log has so many records.
const OFFSET_MAX: u64 = (1 << 42) - 1;

fn version(epoch: u32, offset: u64) -> Version {
    Version { epoch, offset }
}

pub(super) async fn unsaved_head_is_none(store: &dyn HeadStore, fresh: &TestIds) {
    let (conversation, unknown) = (fresh.conversation(), fresh.conversation());
    let head = Head::default().moved_by(version(1, 0), fresh.message(), None);
    store.save(vec![(conversation, head)]).await.expect("saves");
    let result = store
        .load(&[unknown, conversation, unknown, conversation])
        .await;
    assert_eq!(result.expect("loads"), [None, Some(head), None, Some(head)]);
    assert_eq!(store.load(&[]).await.expect("loads"), []);
}

/// Every field of a head comes back, for each kind of conversation.
pub(super) async fn a_head_comes_back_whole(store: &dyn HeadStore, fresh: &TestIds) {
    let (early, late) = (fresh.message(), fresh.message());
    let head = Head {
        stamp: crate::test_ids::at(77),
        rev: u64::MAX,
        ..Head::default()
            .moved_by(version(7, 40), late, Some(Side::Low))
            .moved_by(version(7, OFFSET_MAX), early, Some(Side::High))
    };
    assert_ne!(head.last_id, head.max_id);
    let user = fresh.user();
    let conversations = [
        fresh.conversation(),
        protocol::ConversationId::Group(protocol::GroupId::new(user.get()).expect("positive")),
        protocol::ConversationId::System(user),
    ];
    let heads = conversations.map(|c| (c, head)).to_vec();
    store.save(heads).await.expect("saves");
    let result = store.load(&conversations).await.expect("loads");
    assert_eq!(result, [Some(head); 3]);
}

/// Holds within one call and across calls, in any order.
pub(super) async fn only_a_later_version_replaces(store: &dyn HeadStore, fresh: &TestIds) {
    let conversation = fresh.conversation();
    let first = Head::default().moved_by(version(1, 8), fresh.message(), None);
    let second = first.moved_by(version(1, 9), fresh.message(), None);
    let third = second.moved_by(version(2, 0), fresh.message(), None);
    let load = async || store.load(&[conversation]).await.expect("loads")[0];

    store
        .save(vec![(conversation, second), (conversation, first)])
        .await
        .expect("saves");
    assert_eq!(load().await, Some(second));
    store
        .save(vec![(conversation, first)])
        .await
        .expect("saves");
    assert_eq!(load().await, Some(second));
    store
        .save(vec![(conversation, third)])
        .await
        .expect("saves");
    store
        .save(vec![(conversation, second)])
        .await
        .expect("saves");
    assert_eq!(load().await, Some(third));
    // The same version again, with a change that took no seq.
    let update = Head { rev: 1, ..third };
    store
        .save(vec![(conversation, update)])
        .await
        .expect("saves");
    assert_eq!(load().await, Some(update));
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            unsaved_head_is_none,
            a_head_comes_back_whole,
            only_a_later_version_replaces,
        );
    };
}
pub(crate) use checks;
