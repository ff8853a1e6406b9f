//! Questions over all conversations: missed messages, unread counts.

use std::time::Duration;

use api::v1::station_service_client::StationServiceClient;
use backend::hook::Fault;
use protocol::access;
use protocol::frame::{MissedPage, SyncAnswer, SyncQuery, UnreadPage};
use protocol::receipt::ReceiptKind;
use protocol::{Code, ConversationId, MessageId, Placed};
use tokio::time::sleep;

use super::receipts::receipt_item;
use super::world::*;
use crate::{Config, start};

impl World {
    pub(super) async fn missed(
        &self,
        number: i64,
        cursor: Option<MessageId>,
    ) -> Result<MissedPage, Code> {
        match self
            .ask(
                number,
                SyncQuery::Missed {
                    after: cursor,
                    limit: 0,
                },
            )
            .await?
        {
            SyncAnswer::Missed(page) => Ok(page),
            other => panic!("not what was missed: {other:?}"),
        }
    }

    async fn unread(&self, number: i64, cursor: Option<ConversationId>) -> UnreadPage {
        match self.ask(number, SyncQuery::Unread { after: cursor }).await {
            Ok(SyncAnswer::Unread(page)) => page,
            other => panic!("not what is unread: {other:?}"),
        }
    }

    async fn last_received(&self, number: i64) -> Option<MessageId> {
        let answer = self.backends.mailbox.received(user(number)).await;
        answer.expect("answers")
    }
}

fn ids(page: &MissedPage) -> Vec<MessageId> {
    page.messages.iter().map(|entry| entry.message.id).collect()
}

/// Messages from several peers in turn, in the order of their ids.
async fn talks(world: &World) -> Vec<Placed> {
    let mut entries = Vec::new();
    for seq in 1..=3 {
        for peer in 2..=4 {
            tokio::time::advance(Duration::from_secs(20)).await;
            let mut entry = world.placed(peer, 1, seq, &format!("{peer}: {seq}"));
            entry.message.accepted_at = world.backends.clock.now();
            entry.message.id = MessageId::floor_of(entry.message.accepted_at);
            world.save_message(&entry).await;
            entries.push(entry);
        }
    }
    entries.sort_by_key(|entry| entry.message.id);
    entries
}

// proves S0-05, S0-83, S0-85: one question for all peers, from the last that was received, or from the device's own.
#[tokio::test(start_paused = true)]
async fn missed_messages_of_all_peers_continue_from_a_cursor() {
    let world = world_with(Config {
        page_max: 4,
        ..Config::default()
    })
    .await;
    let entries = talks(&world).await;
    let all: Vec<MessageId> = entries.iter().map(|entry| entry.message.id).collect();

    // Nothing is known of the user: everything, page after page.
    let (mut missed_ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = world.missed(1, cursor).await.expect("a page");
        assert!(page.messages.len() <= 4);
        missed_ids.extend(ids(&page));
        cursor = missed_ids.last().copied();
        if !page.more {
            break;
        }
    }
    assert_eq!(missed_ids, all);

    let first_six: Vec<&Placed> = entries.iter().take(6).collect();
    world
        .acknowledge(&[receipt_item(1, ReceiptKind::Received, &first_six)])
        .await;
    tokio::time::advance(Duration::from_secs(40)).await;
    settle().await;
    assert_eq!(world.last_received(1).await, Some(all[5]));
    // From a little before it.
    let page = world.missed(1, None).await.expect("a page");
    assert_eq!((ids(&page), page.more), (all[5..].to_vec(), false));
    let page = world.missed(1, Some(all[7])).await.expect("a page");
    assert_eq!(ids(&page), [all[8]]);
    // The others' rows are theirs.
    assert_eq!(ids(&world.missed(9, None).await.expect("a page")), []);

    // The device's own cursor is enough if no last received message is known.
    world.faults.begin(MAILBOX, Fault::Hang);
    assert_eq!(world.missed(1, None).await, Err(Code::DeadlineExceeded));
    let page = world.missed(1, Some(all[7])).await.expect("a page");
    assert_eq!(ids(&page), [all[8]]);
}

// proves S0-84: however much is acknowledged, the user is written once in 30 s; and when the station ends.
#[tokio::test(start_paused = true)]
async fn the_last_received_is_written_once_in_a_while() {
    let world = world().await;
    let entries = talks(&world).await;
    let mut last_ids = Vec::new();
    for entry in entries.iter().take(8) {
        world
            .acknowledge(&[receipt_item(1, ReceiptKind::Received, &[entry])])
            .await;
        tokio::time::advance(Duration::from_secs(5)).await;
        settle().await;
        last_ids.push(world.last_received(1).await);
    }
    // Looked at every 3 s: the first at once, the next 30 to 33 s after.
    let ids: Vec<_> = entries.iter().map(|entry| Some(entry.message.id)).collect();
    assert_eq!(last_ids[..5], [ids[0]; 5], "for 25 s");
    assert_ne!(last_ids[6], ids[0], "after 35 s");
    let last = &entries[8];
    world
        .acknowledge(&[receipt_item(1, ReceiptKind::Received, &[last])])
        .await;
    world.shutdown.cancel();
    world.station.drained().await;
    assert_eq!(world.last_received(1).await, Some(last.message.id));
}

// proves S0-84: a user with a device at each of two stations is written once in 30 s by each, and never back to an older
// message.
#[tokio::test(start_paused = true)]
async fn two_stations_each_write_a_user_once_in_a_while() {
    const STEP: Duration = Duration::from_secs(5);
    let mut world = world().await;
    let mut entries = Vec::new();
    for seq in 1..=24 {
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut entry = world.placed(2, 1, seq, "hello");
        entry.message.accepted_at = world.backends.clock.now();
        entry.message.id = MessageId::floor_of(entry.message.accepted_at);
        world.save_message(&entry).await;
        entries.push(entry);
    }
    let config = Config {
        name: "station-2".into(),
        ..Config::default()
    };
    let (backends, connector) = (world.backends.clone(), world.connector.clone());
    let other = start(config, backends, connector, world.shutdown.clone()).await;
    let other = other.expect("a second station");
    let address = &other.instance().address;
    let channel = world.connector.channel(access::Role::Station, address);
    let clients = [world.client.clone(), StationServiceClient::new(channel)];

    let count_writes = |world: &World| world.faults.items("mailbox", "set_received");
    count_writes(&world);
    let (mut writes, mut last_ids) = (Vec::new(), Vec::new());
    // The first device acknowledges a message and the other one the next, each at its station.
    for (step, entry) in entries.iter().enumerate() {
        world.client = clients[step % 2].clone();
        let mut receipt = receipt_item(1, ReceiptKind::Received, &[entry]);
        receipt.session = session(11 + step as i64 % 2);
        world.acknowledge(&[receipt]).await;
        sleep(STEP).await;
        writes.push(count_writes(&world));
        last_ids.push(world.last_received(1).await);
    }
    for window in writes.windows(6) {
        let all: usize = window.iter().sum();
        assert!(all <= 2, "in 30 s: {writes:?}");
    }
    // Looked at every 3 s: each station wrote at least every 33 s of the 120.
    let all: usize = writes.iter().sum();
    assert!((6..=8).contains(&all), "{writes:?}");
    assert!(last_ids.is_sorted(), "{last_ids:?}");
    world.shutdown.cancel();
    world.station.drained().await;
    other.drained().await;
    let last = entries.last().map(|entry| entry.message.id);
    assert_eq!(world.last_received(1).await, last);
}

// proves S2-14 in part, S2-16, S3-34 in part, S3-40, S3-41 in part (positions that are kept for good, no counter that could be lost):
// only what has something unread, until it was read.
#[tokio::test(start_paused = true)]
async fn only_what_holds_something_unread_is_told() {
    let world = world_with(Config {
        page_max: 2,
        ..Config::default()
    })
    .await;
    let entries = talks(&world).await;
    let third_peer: Vec<&Placed> = entries
        .iter()
        .filter(|entry| entry.conversation == between(1, 3))
        .collect();
    let all = async || {
        let (mut counts, mut cursor) = (Vec::new(), None);
        loop {
            let page = world.unread(1, cursor).await;
            counts.extend(page.counts);
            cursor = page.next;
            if cursor.is_none() {
                return counts;
            }
        }
    };
    let three = [(between(1, 2), 3), (between(1, 3), 3), (between(1, 4), 3)];
    assert_eq!(all().await, three);
    world
        .acknowledge(&[receipt_item(1, ReceiptKind::Read, &third_peer)])
        .await;
    assert_eq!(all().await, [three[0], three[2]]);
    let forbidden = world.ask(
        9,
        SyncQuery::Unread {
            after: Some(between(1, 2)),
        },
    );
    assert_eq!(forbidden.await, Err(Code::Forbidden));
}
