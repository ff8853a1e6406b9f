//! The conversation list of a user on several devices.

use std::time::Duration;

use protocol::cache::{CacheKey, Invalidation};
use protocol::change::ListArrangement;
use protocol::frame::{
    ClientFrame, ListPage, ServerFrame, Summary, SyncAnswer, SyncQuery, SyncRequest,
};
use protocol::{ConversationId, Platform, Recipient, Seq, Timestamp};
use tests::Cluster;
use tests::person::{CLOSED, conversation, done, text, user};
use tests::system::{eventually, list_margin};
use tests::wire::{Port, Wire};
use tokio::time::sleep;

/// Wait after which earlier writes lie behind the margin of the next list.
fn margin_passed() -> Duration {
    3 * list_margin()
}

fn is_listed(row: &Summary) -> bool {
    row.seq > row.cleared_seq
}

// proves S4-17, S4-23, S4-24, S4-34:
// all goes on one device and is gone on the other; what is said next comes back.
#[tokio::test]
async fn a_list_that_is_cleared_is_cleared_on_all_devices() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).ready().await;
    let mut phone = cluster.device_on(1, Platform::Ios, "phone").await;
    let bea = cluster.device(2).ready().await;
    let cy = cluster.device(3).ready().await;
    bea.say(1, "hello").await;
    cy.say(1, "good evening").await;
    for device in [&mut ada, &mut phone] {
        device.hear().await;
        device.hear().await;
    }
    let [with_bea, with_cy] = [conversation(1, 2), conversation(1, 3)];
    let tickets = ada.client.clear_all(user(1)).await;
    assert_eq!(tickets.len(), 2);
    for ticket in tickets {
        let mut ticket = ticket.expect("in the outbox");
        done(&mut ticket).await.expect("it is cleared");
    }
    for device in [&ada, &phone] {
        for conversation in [with_bea, with_cy] {
            device
                .lists("cleared", conversation, |row| !is_listed(row))
                .await;
        }
    }
    bea.say(1, "are you there?").await;
    phone.lists("back", with_bea, is_listed).await;
    let list = phone.client.conversations();
    assert!(!is_listed(&list.borrow()[&with_cy]));
    cluster.stop().await;
}

async fn list_since(wire: &mut Wire, list_version: Timestamp) -> ListPage {
    let (request, cursor) = (1, None);
    let query = SyncQuery::List {
        since: list_version,
        cursor,
    };
    wire.send(&ClientFrame::Sync(SyncRequest { request, query }))
        .await;
    wire.find(|frame| match frame {
        ServerFrame::Page(page) => match page.answer {
            SyncAnswer::List(list) => Some(list),
            _ => None,
        },
        _ => None,
    })
    .await
}

// proves S4-02, S4-05, S4-07, S4-20, S4-34: a phone that was away asks with the version of its last list, and is given what
// changed since, taken from the list, pinned or hidden in; nothing where nothing did, a group without a message included.
// proves S4-09, S4-25: one version, and of each what stands in the list.
// proves S4 Pitfall B: what another device has long heard is new to this one.
#[tokio::test]
async fn a_phone_that_was_away_learns_what_changed_and_no_more() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device_on(1, Platform::Android, "phone").await;
    let senders = [2, 3, 4, 5].map(|number| cluster.device(number));
    for sender in senders {
        let sender = sender.ready().await;
        sender.say(1, "hello").await;
        ada.hear().await;
        sender.close().await;
    }
    let group = ada.create_group(CLOSED, &[2]).await;
    cluster.assert_settled(5).await;
    let mut iphone = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    sleep(margin_passed()).await;
    // A list from the cache is as old as its entries: these were read during changes, so drop them.
    let invalidations = [CacheKey::User(user(1)), CacheKey::Group(group)].map(Invalidation::of);
    let results = cluster.backends.cache.forget(&invalidations).await;
    assert!(results.iter().all(Result::is_ok));
    let full_list = list_since(&mut iphone, Timestamp::ZERO).await;
    assert_eq!(full_list.conversations.len(), 5);
    sleep(margin_passed()).await;
    let version = list_since(&mut iphone, full_list.version).await.version;
    sleep(margin_passed()).await;
    let list_diff = list_since(&mut iphone, version).await;
    assert_eq!(list_diff.conversations, []);

    let [cleared_peer, pinned_peer, hidden_peer] =
        [2, 3, 4].map(|peer| Recipient::User(user(peer)));
    let newest_id = async |peer| {
        let list = ada.client.conversations();
        let newest = list.borrow()[&conversation(1, peer)].newest.clone();
        newest.expect("it says hello").message.id
    };
    let arrangement = ListArrangement {
        pinned: true,
        muted_until: None,
    };
    for ticket in [
        ada.client.clear(cleared_peer).await,
        ada.client.arrange(pinned_peer, arrangement).await,
        ada.client.hide(hidden_peer, newest_id(4).await).await,
    ] {
        let mut ticket = ticket.expect("in the outbox");
        done(&mut ticket).await.expect("it is done");
    }
    let difference = list_since(&mut iphone, version).await;
    let rows = difference.conversations.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.conversation, is_listed(row), row.arranged.pinned))
        .collect();
    let [cleared_chat, pinned_chat, hidden_chat] = [2, 3, 4].map(|peer| conversation(1, peer));
    let expected = [
        (cleared_chat, false, false),
        (pinned_chat, true, true),
        (hidden_chat, true, false),
    ];
    assert_eq!(rows, expected);
    assert!(difference.conversations[2].hidden > 0);
    for row in &difference.conversations {
        assert!(row.version > version, "{row:?}");
        let newest = row.newest.as_ref().expect("its newest");
        assert_eq!((row.seq, newest.position.seq), (Seq(1), Seq(1)));
    }
    let unread: Vec<u64> = difference.conversations.iter().map(|r| r.unread).collect();
    assert_eq!(unread, [0, 1, 1]);
    let bea = cluster.device(2).ready().await;
    bea.say_in(group, "welcome").await;
    assert_eq!(text(&ada.hear().await), "welcome");
    let newest = eventually("the group's message", async || {
        let list = list_since(&mut iphone, version).await.conversations;
        let group = ConversationId::Group(group);
        let row = list.into_iter().find(|row| row.conversation == group);
        row.and_then(|row| row.newest)
    })
    .await;
    assert_eq!(newest.message.content.data, "welcome");
    cluster.stop().await;
}

#[tokio::test]
async fn a_conversation_is_pinned_and_muted_on_all_devices() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).ready().await;
    let mut phone = cluster.device_on(1, Platform::Ios, "phone").await;
    let bea = cluster.device(2).ready().await;
    bea.say(1, "hello").await;
    ada.hear().await;
    phone.hear().await;
    let version = ada.client.conversations().borrow()[&conversation(1, 2)].version;
    let arrangement = ListArrangement {
        pinned: true,
        muted_until: Some(version + Duration::from_secs(3600)),
    };
    let result = ada
        .client
        .arrange(Recipient::User(user(2)), arrangement)
        .await;
    let mut ticket = result.expect("in the outbox");
    done(&mut ticket).await.expect("it is done");
    for device in [&ada, &phone] {
        let is_arranged = |row: &Summary| row.arranged == arrangement;
        device
            .lists("pinned", conversation(1, 2), is_arranged)
            .await;
    }
    cluster.stop().await;
}
