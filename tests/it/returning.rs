//! Clients that come back soon, again and again.

use std::sync::Arc;

use protocol::cache::{CacheKey, Invalidation};
use protocol::change::{ChangeKind, ChangeOf};
use protocol::frame::{
    ClientFrame, HistoryPage, HistoryRange, ListPage, Send, ServerFrame, SyncAnswer, SyncQuery,
    SyncRequest,
};
use protocol::group::GroupCommand;
use protocol::message::Content;
use protocol::{ConversationId, GroupId, MessageId, Options, Platform, Seq, Timestamp};
use tests::faults::reads;
use tests::person::{CLOSED, conversation, done, text, user};
use tests::system::{eventually, list_margin};
use tests::wire::{Port, Wire, send};
use tests::{Cluster, settings};

/// Waits until every accepted message is settled.
async fn wait_settled(cluster: &Cluster) {
    eventually("all is settled", async || {
        let report = cluster.audit().await;
        (report.balanced && report.in_flight == 0).then_some(())
    })
    .await;
}

async fn ask_sync(wire: &mut Wire, request: u32, query: SyncQuery) -> SyncAnswer {
    let sync_request = SyncRequest { request, query };
    wire.send(&ClientFrame::Sync(sync_request)).await;
    wire.find(|frame| match frame {
        ServerFrame::Page(page) if page.request == request => Some(page.answer),
        _ => None,
    })
    .await
}

async fn fetch_list(wire: &mut Wire, list_version: Timestamp) -> ListPage {
    let cursor = None;
    match ask_sync(
        wire,
        1,
        SyncQuery::List {
            since: list_version,
            cursor,
        },
    )
    .await
    {
        SyncAnswer::List(list) => list,
        other => panic!("no list: {other:?}"),
    }
}

/// Signs in, asks for the list, and for the group from behind the messages shown, and leaves.
async fn sign_in_and_sync(
    cluster: &Cluster,
    user_number: i64,
    list_version: Timestamp,
    group: GroupId,
    last_shown: u64,
) -> (ListPage, HistoryPage) {
    let mut wire = Wire::signed_in(cluster, Port::Tcp, user_number).await;
    let list = fetch_list(&mut wire, list_version).await;
    let query = SyncQuery::History {
        conversation: ConversationId::Group(group),
        range: HistoryRange::Forward {
            after: Seq(last_shown),
        },
        limit: 100,
    };
    match ask_sync(&mut wire, 2, query).await {
        SyncAnswer::History(page) => (list, page),
        other => panic!("no page: {other:?}"),
    }
}

fn seqs(page: &HistoryPage) -> Vec<u64> {
    let seqs = page.messages.iter().map(|placed| placed.position.seq.0);
    seqs.collect()
}

/// Send that is no message: it changes `subject`.
fn change_send(to: i64, subject: MessageId, kind: ChangeKind, text: &str) -> Send {
    let subject = Some(subject);
    let change = Some(Box::new(ChangeOf { subject, kind }));
    Send {
        content: Content {
            change,
            ..Content::text(text)
        },
        ..send(to, "")
    }
}

// proves S4-29 in part, S4-32 in part: as many questions for a long list as for a short one, though in each conversation something is
// unread, something was recalled, and the newest message was edited: one each for the rows, their newest messages, the
// places up to which they were read, what was recalled behind these, and what became of the newest.
#[tokio::test]
async fn a_list_costs_the_same_however_long_it_is() {
    let (cluster, faults) = Cluster::with_faults(settings()).await;
    let mut costs = Vec::new();
    let (mut peers, mut sent_count) = (0, 0);
    for count in [1, 5, 20] {
        let mut first_messages = Vec::new();
        while peers < count {
            let number = 2 + peers;
            let mut peer = Wire::signed_in(&cluster, Port::Tcp, number).await;
            // No mail waits for an absent user, so nothing is pushed while the list is read.
            let mut ids = Vec::new();
            for _ in 0..3 {
                let hello = Send {
                    options: Options::NONE,
                    ..send(1, "hello")
                };
                ids.push(peer.ask(hello).await.expect("accepted"));
            }
            let recall = change_send(1, ids[1], ChangeKind::Recall, "");
            peer.ask(recall).await.expect("accepted");
            let edit = change_send(1, ids[2], ChangeKind::Edit, "hello, ada");
            peer.ask(edit).await.expect("accepted");
            first_messages.push((conversation(1, number), ids[0]));
            peers += 1;
            sent_count += 5;
        }
        cluster.assert_settled(sent_count).await;
        let mut wire = Wire::signed_in(&cluster, Port::Tcp, 1).await;
        for (conversation, id) in first_messages {
            wire.read(conversation, id, Seq(1)).await;
        }
        let invalidation = Invalidation::of(CacheKey::User(user(1)));
        let results = cluster.backends.cache.forget(&[invalidation]).await;
        assert!(results.iter().all(Result::is_ok));
        reads(&faults);
        let list = fetch_list(&mut wire, Timestamp::ZERO).await;
        costs.push(reads(&faults));
        let rows = list.conversations.iter();
        let unread: Vec<u64> = rows.clone().map(|row| row.unread).collect();
        assert_eq!(unread, vec![1; count as usize]);
        let newest = rows.filter_map(|row| Some(&row.newest.as_ref()?.message.content.data));
        assert_eq!(
            newest.filter(|text| *text == "hello, ada").count(),
            peers as usize
        );
    }
    // Group membership costs one read more.
    assert!(costs.iter().all(|cost| *cost <= 6), "{costs:?}");
    // Earlier actions of other devices may still cost the first one a read.
    assert!(costs.iter().all(|cost| *cost <= costs[0]), "{costs:?}");

    // One changed conversation, in a list of twenty, costs no more than a list of one.
    let mut peer = Wire::signed_in(&cluster, Port::Tcp, 2).await;
    tokio::time::sleep(2 * list_margin()).await;
    let mut wire = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    let quiet_version = fetch_list(&mut wire, Timestamp::ZERO).await.version;
    tokio::time::sleep(2 * list_margin()).await;
    let hello = Send {
        options: Options::NONE,
        ..send(1, "hello again")
    };
    peer.ask(hello).await.expect("accepted");
    cluster.assert_settled(sent_count + 1).await;
    reads(&faults);
    let list = fetch_list(&mut wire, quiet_version).await;
    assert!(reads(&faults) <= costs[0]);
    let mut conversations = list.conversations.iter().map(|row| row.conversation);
    assert!(conversations.any(|id| id == conversation(1, 2)));
    cluster.stop().await;
}

// proves S0-66: who comes back asks for the group from behind the last message that they have, and gets what follows it.
// proves S0-10: members of a group who go and come again find what was said meanwhile, and no store is read for it.
// proves S2-15 in part: what a return looks at lies beside the stores, of groups and of friends.
// proves S3-51: it was written there with each message, so a pull reads no store.
// proves S3-34 in part: so does what is unread there, which is right after each message.
// proves S3-52: pages that begin where the cache does are its own; those before it `groups.rs` has from history.
#[tokio::test]
async fn prompt_return_costs_the_stores_nothing() {
    let (cluster, faults) = Cluster::with_faults(settings()).await;
    let ada = cluster.device(1).ready().await;
    let group = ada.create_group(CLOSED, &[2, 3]).await;
    let other = ada.create_group(CLOSED, &[2]).await;
    let mut text_count = 0;
    let mut send_texts = async |count: u64| {
        for _ in 0..count {
            text_count += 1;
            ada.say_in(group, &format!("text {text_count}")).await;
        }
        wait_settled(&cluster).await;
    };
    send_texts(3).await;
    ada.say_in(other, "elsewhere").await;

    let (list, page) = sign_in_and_sync(&cluster, 2, Timestamp::ZERO, group, 0).await;
    assert_eq!(list.conversations.len(), 2);
    assert_eq!(seqs(&page), [1, 2, 3]);
    let (mut list_version, mut last_shown) = (list.version, 3);
    for new_count in [0, 5, 40, 0, 1] {
        send_texts(new_count).await;
        // Bea has signed in before, and no other user acts.
        reads(&faults);
        let (list, page) = sign_in_and_sync(&cluster, 2, list_version, group, last_shown).await;
        assert_eq!(reads(&faults), 0, "{new_count} more");
        let row = list.conversations.iter();
        let mut row = row.filter(|row| row.conversation == ConversationId::Group(group));
        let row = row.next().expect("it changed lately");
        assert_eq!(
            (row.seq, row.unread),
            (Seq(last_shown + new_count), last_shown + new_count)
        );
        assert!(row.newest.is_some());
        assert_eq!(
            seqs(&page),
            ((last_shown + 1)..=(last_shown + new_count)).collect::<Vec<_>>()
        );
        (list_version, last_shown) = (list.version, last_shown + new_count);
    }
    cluster.stop().await;
}

/// The cache has a device's own actions, and those of others towards the user: the next device
/// learns them without a store.
#[tokio::test]
async fn user_actions_are_found_by_their_next_device() {
    let (cluster, faults) = Cluster::with_faults(settings()).await;
    let ada = cluster.device(1).ready().await;
    let group = ada.create_group(CLOSED, &[2, 3]).await;
    ada.say_in(group, "hello").await;
    ada.say_in(group, "again").await;
    let mut bea = cluster.device(2).on(Platform::Ios).ready().await;
    assert_eq!(text(&bea.hear().await), "hello");
    let newest = bea.hear().await.placed;
    let row = async || {
        let mut wire = Wire::signed_in(&cluster, Port::Tcp, 2).await;
        let list = fetch_list(&mut wire, Timestamp::from_millis(1)).await;
        let mut rows = list.conversations.into_iter();
        rows.find(|row| row.conversation == ConversationId::Group(group))
    };
    assert_eq!(row().await.expect("listed").unread, 2);
    let conversation = ConversationId::Group(group);
    let id = newest.message.id;
    bea.client
        .read(conversation, Seq(2), id)
        .await
        .expect("kept");
    eventually("the next device hears of it", async || {
        let row = row().await.expect("listed");
        ((row.unread, row.read_seq) == (0, Seq(2))).then_some(())
    })
    .await;
    reads(&faults);
    assert_eq!(row().await.expect("listed").unread, 0);
    assert_eq!(reads(&faults), 0);

    let mut ticket = ada
        .client
        .group_command(group, GroupCommand::Remove(vec![user(2)]))
        .await
        .expect("kept");
    done(&mut ticket).await.expect("it is done");
    assert_eq!(row().await.expect("told of").role, None);
    cluster.stop().await;
}

/// Redis may lose cache entries at any time: a missing one is read from the store, and cached
/// again.
#[tokio::test]
async fn lost_cache_entry_is_read_once() {
    let (cluster, faults) = Cluster::with_faults(settings()).await;
    let ada = cluster.device(1).ready().await;
    let group = ada.create_group(CLOSED, &[2]).await;
    ada.say_in(group, "hello").await;
    wait_settled(&cluster).await;
    sign_in_and_sync(&cluster, 2, Timestamp::ZERO, group, 0).await;
    let cache = Arc::clone(&cluster.backends.cache);
    for owner in [CacheKey::User(user(2)), CacheKey::Group(group)] {
        let results = cache.forget(&[Invalidation::of(owner)]).await;
        assert!(results.iter().all(Result::is_ok));
        reads(&faults);
        let (list, page) = sign_in_and_sync(&cluster, 2, Timestamp::ZERO, group, 0).await;
        assert!(reads(&faults) > 0);
        assert_eq!((list.conversations.len(), seqs(&page)), (1, vec![1]));
        let (list, page) = sign_in_and_sync(&cluster, 2, Timestamp::ZERO, group, 0).await;
        assert_eq!(reads(&faults), 0);
        assert_eq!((list.conversations.len(), seqs(&page)), (1, vec![1]));
        let newest = list.conversations[0].newest.as_ref().expect("there");
        assert_eq!(newest.message.content.data, "hello");
    }
    cluster.stop().await;
}
