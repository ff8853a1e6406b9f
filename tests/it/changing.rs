//! Recall, edit and reactions on all devices; unread on all devices.

use std::time::Duration;

use client::Event;
use protocol::change::{ChangeKind, MessageChange};
use protocol::message::Content;
use protocol::{MessageId, Platform, Recipient, Seq};
use tests::person::{conversation, text, user};
use tests::system::TEST_TIMEOUT;
use tests::{Cluster, Device};
use tokio::time::timeout;

async fn change(device: &Device, to: i64, subject: MessageId, kind: ChangeKind, text: &str) {
    let to = Recipient::User(user(to));
    device.change(to, subject, kind, text).await;
}

fn thumb() -> ChangeKind {
    ChangeKind::React {
        reaction: "👍".parse().expect("short"),
        on: true,
    }
}

#[tokio::test]
async fn everybody_sees_what_became_of_a_message() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut phone = cluster.device_on(1, Platform::Ios, "phone").await;
    let mut bea = cluster.device(2).ready().await;
    let id = ada.say(2, "helo").await;
    bea.hear().await;
    phone.hear().await;
    change(&ada, 2, id, ChangeKind::Edit, "hello").await;
    change(&bea, 1, id, thumb(), "").await;
    change(&ada, 2, id, ChangeKind::Recall, "").await;
    for device in [&mut bea, &mut phone] {
        let edit = device.next_change().await;
        assert_eq!(
            edit.asked.change,
            MessageChange::Edit(Content::text("hello"))
        );
        assert_eq!((edit.rev, edit.seq, edit.asked.subject), (1, Seq(1), id));
        assert!(matches!(
            device.next_change().await.asked.change,
            MessageChange::React { .. }
        ));
        assert_eq!(
            device.next_change().await.asked.change,
            MessageChange::Recall
        );
    }
    // A later device learns nothing of the original.
    let mut tablet = cluster.device_on(2, Platform::Pad, "tablet").await;
    let message = tablet.hear().await;
    assert_eq!(text(&message), "");
    assert!(message.marks.expect("marks").recalled.is_some());
    cluster.stop().await;
}

/// A device that was away has the message, and learns its changes.
#[tokio::test]
async fn a_device_that_was_away_learns_every_change() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("bea.sqlite");
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).keeping(state.clone()).ready().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(ada.say(2, &format!("text {n}")).await);
        bea.hear().await;
    }
    bea.close().await;
    for n in 0..150 {
        change(&ada, 2, ids[n % 3], ChangeKind::Edit, &format!("edit {n}")).await;
    }
    let last = ada.say(2, "and this").await;
    change(&ada, 2, last, ChangeKind::Edit, "and that").await;
    let mut bea = cluster.device(2).keeping(state).connect().await;
    let (mut revs, mut texts) = (Vec::new(), Vec::new());
    while revs.len() < 151 || texts.is_empty() {
        match timeout(TEST_TIMEOUT, bea.events.next())
            .await
            .expect("in time")
        {
            Some(Event::Changed { change, .. }) => revs.push(change.rev),
            Some(Event::Message(message)) => texts.push(text(&message)),
            Some(_) => {}
            None => panic!("the client has ended"),
        }
    }
    assert_eq!(revs, (1..=151).collect::<Vec<_>>());
    assert_eq!(texts.len(), 1);
    cluster.stop().await;
}

// proves S4-35: read on one device, read on all; a recall is not unread.
#[tokio::test]
async fn unread_is_the_same_on_every_device() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut phone = cluster.device_on(2, Platform::Ios, "phone").await;
    let mut web = cluster.device_on(2, Platform::Web, "web").await;
    let conversation = conversation(1, 2);
    let mut messages = Vec::new();
    for n in 0..5 {
        ada.say(2, &format!("text {n}")).await;
        messages.push(phone.hear().await.placed);
        web.hear().await;
    }
    for device in [&phone, &web] {
        device
            .lists("5 unread", conversation, |row| row.unread == 5)
            .await;
    }
    let second = &messages[1];
    let read = phone
        .client
        .read(conversation, second.position.seq, second.message.id);
    read.await.expect("it is told");
    for device in [&phone, &web] {
        device
            .lists("3 unread", conversation, |row| row.unread == 3)
            .await;
    }
    change(&ada, 2, messages[3].message.id, ChangeKind::Recall, "").await;
    phone.next_change().await;
    web.next_change().await;
    for device in [&phone, &web] {
        device
            .lists("2 unread", conversation, |row| row.unread == 2)
            .await;
    }
    let desktop = cluster.device_on(2, Platform::Desktop, "late").await;
    desktop
        .lists("2 unread", conversation, |row| row.unread == 2)
        .await;
    let last = &messages[4];
    let read = desktop
        .client
        .read(conversation, last.position.seq, last.message.id);
    read.await.expect("it is told");
    for device in [&phone, &web, &desktop] {
        device
            .lists("nothing unread", conversation, |row| row.unread == 0)
            .await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    ada.lists("the sender", conversation, |row| {
        row.unread == 0 && row.seq == Seq(5)
    })
    .await;
    cluster.stop().await;
}
