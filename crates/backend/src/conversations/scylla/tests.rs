use protocol::history::Version;

use super::*;
use crate::conversations::contract;
use crate::scylla::fixture::{cql, fresh, on_cql};
use crate::test_ids::at;

contract::checks!(on_cql!("conversations", ScyllaConversations::new));

/// A redelivery stamped by a slow clock keeps the row visible to the cursors of clients.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn the_same_source_never_lowers_the_version() {
    let (store, fresh) = (ScyllaConversations::new(cql().await), fresh());
    let (owner, peer) = (fresh.user(), fresh.user());
    let conversation = ConversationId::private(owner, peer).expect("two users");
    let row = |stamp| ConversationRow {
        owner,
        conversation,
        end: Tally {
            seq: Seq(1),
            incoming: 0,
        },
        rev: 0,
        last_id: MessageId::floor_of(at(1)),
        version: at(stamp),
        source: Version {
            epoch: 1,
            offset: 4,
        },
    };
    for stamp in [50, 20] {
        store.save(vec![row(stamp)]).await.expect("saves");
    }
    let entries = store.changed(owner, at(50), None, 9).await.expect("reads");
    assert_eq!(entries.len(), 1);
}
