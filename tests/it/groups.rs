//! Groups: created, used, left; read only by those allowed.

use std::time::Duration;

use backend::clock::{Clock, SystemClock};
use client::core::SendStatus;
use client::{Client, ClientError, Event};
use protocol::change::{ChangeKind, MessageChange};
use protocol::group::{GroupCommand, GroupSettings, Role};
use protocol::loaded_ranges::OlderRange;
use protocol::{Code, ConversationId, GroupId, Platform, Recipient, Seq, Timestamp, UserId};
use tests::person::{CLOSED, accepted, done, reaches, text, user};
use tests::system::{TEST_TIMEOUT, eventually};
use tests::{Cluster, Device, settings};
use tokio::time::timeout;

async fn send_command(device: &Device, group: GroupId, command: GroupCommand) {
    let mut ticket = device
        .client
        .group_command(group, command)
        .await
        .expect("in the outbox");
    done(&mut ticket).await.expect("it is done");
}

async fn refused_code(device: &Device, group: GroupId, command: GroupCommand) -> Code {
    let mut ticket = device
        .client
        .group_command(group, command)
        .await
        .expect("in the outbox");
    done(&mut ticket).await.expect_err("it is refused").code
}

async fn members(client: &Client, group: GroupId) -> Vec<(UserId, Role)> {
    let page = client.members(group, None).await;
    page.expect("a member asks").members
}

/// Returns all texts that this user may read there.
async fn readable_texts(client: &Client, group: GroupId) -> Result<Vec<String>, ClientError> {
    let page = client
        .load_older(ConversationId::Group(group), None, 0)
        .await?;
    let mut messages = page.messages;
    messages.sort_by_key(|placed| placed.position.seq);
    let data = messages.iter().map(|placed| &placed.message.content.data);
    Ok(data
        .map(|data| String::from_utf8_lossy(data).into_owned())
        .collect())
}

/// Pages outside a group's cache come from history.
// proves S3-52: a cursor before what is cached goes to history, one inside it to the cache.
// proves S0-12: everybody gets all that was said meanwhile, more than the cache of the group holds, by many pages; also a
// device that shows the newest first and loads the rest backward.
// proves S0-70, S0-71: what it left out begins at an edge, which a look meets and the user loads from; it moves down with
// what is loaded, and goes when that meets what was there.
// proves S2-04: by pages in which each message names the one before it.
// proves S0-18, S0-24, S0-25, S0-68: which begins below the smallest that was shown and ends where its own begins.
#[tokio::test]
async fn a_member_gets_all_that_the_cache_does_not_hold() {
    const CACHED_COUNT: usize = 40;
    const MESSAGE_COUNT: u64 = 330;
    const RECENT_COUNT: u32 = 10;
    let dir = tempfile::tempdir().expect("a directory");
    let [forward, backward] = ["cy", "dan"].map(|name| dir.path().join(name));
    let mut settings = settings();
    settings.embedded.timeline.keep = CACHED_COUNT;
    settings.timeline.keep = CACHED_COUNT;
    // Makes the group too large to keep mail for single members.
    settings.carrier.group_push_max = 1;
    let cluster = Cluster::with(settings, |backends| backends).await;
    let ada = cluster.device(1).ready().await;
    let group = ada.create_group(CLOSED, &[3, 4]).await;
    let mut cy = cluster.device(3).keeping(forward.clone()).ready().await;
    let mut dan = cluster.device(4).keeping(backward.clone()).ready().await;
    ada.say_in(group, "text 1").await;
    for device in [&mut cy, &mut dan] {
        assert_eq!(text(&device.hear().await), "text 1");
    }
    cy.close().await;
    dan.close().await;
    let mut tickets = Vec::new();
    for n in 2..=MESSAGE_COUNT {
        let to = Recipient::Group(group);
        tickets.push(ada.send(to, &format!("text {n}")).await);
    }
    for ticket in &mut tickets {
        accepted(ticket).await;
    }
    cluster.assert_settled(1 + MESSAGE_COUNT).await;
    let cached_count = cluster.backends.timeline.count(group, usize::MAX).await;
    assert_eq!(cached_count.expect("it answers"), CACHED_COUNT);

    let mut cy = cluster.device(3).keeping(forward).connect().await;
    let texts: Vec<String> = (2..=MESSAGE_COUNT).map(|n| format!("text {n}")).collect();
    assert_eq!(cy.hear_texts(texts.len()).await, texts);
    cy.hears_nothing().await;

    let dan = cluster.device(4).keeping(backward).after_long(RECENT_COUNT);
    let mut dan = dan.connect().await;
    let (shown_seqs, gap) = dan.newest_and_gap(RECENT_COUNT as usize).await;
    let first = MESSAGE_COUNT + 1 - u64::from(RECENT_COUNT);
    assert_eq!(
        shown_seqs,
        (first..=MESSAGE_COUNT).map(Seq).collect::<Vec<_>>()
    );
    assert_eq!(gap, (Seq(2), Seq(first - 1)));
    let conversation = ConversationId::Group(group);
    eventually("the edge is kept", async || {
        let edges = dan.client.edges(conversation).await.expect("it answers");
        (edges == [Seq(first - 1)]).then_some(())
    })
    .await;
    let older_range = async |seq| {
        dan.client
            .older(conversation, Seq(seq))
            .await
            .expect("it answers")
    };
    assert_eq!(older_range(first + 1).await, OlderRange::Here);
    assert_eq!(older_range(first).await, OlderRange::ToBeLoaded(Seq(first)));
    // A page that does not reach the messages already here moves the edge down.
    let page = dan
        .client
        .load_older(conversation, Some(Seq(first)), 50)
        .await;
    let mut messages = page.expect("a page").messages;
    messages.sort_by_key(|placed| placed.position.seq);
    assert_eq!(messages.len(), 50);
    for pair in messages.windows(2) {
        assert_eq!(pair[1].position.prev, Some(pair[0].message.id));
    }
    let edges_after = dan.client.edges(conversation).await.expect("it answers");
    assert_eq!(edges_after, [Seq(first - 51)]);
    let loaded_seqs = dan.load_gap(conversation, gap).await;
    assert_eq!(loaded_seqs, (2..first).map(Seq).collect::<Vec<_>>());
    assert_eq!(
        dan.client.edges(conversation).await.expect("it answers"),
        []
    );
    assert_eq!(older_range(1).await, OlderRange::Nothing);
    cluster.stop().await;
}

// proves S0-12 in part: everybody in it hears everything once, in one order, also who was away.
#[tokio::test]
async fn everybody_in_a_group_hears_everything_in_one_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("cy.sqlite");
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    let cy = cluster.device(3).keeping(state.clone()).ready().await;
    let mut dan = cluster.device(4).ready().await;
    let group = ada.create_group(CLOSED, &[2, 3]).await;
    cy.close().await;
    for n in 0..4 {
        let writer = if n % 2 == 0 { &ada } else { &bea };
        writer.say_in(group, &format!("text {n}")).await;
    }
    assert_eq!(ada.hear_texts(2).await, ["text 1", "text 3"]);
    assert_eq!(bea.hear_texts(2).await, ["text 0", "text 2"]);
    let mut cy = cluster.device(3).keeping(state).connect().await;
    assert_eq!(
        cy.hear_texts(4).await,
        ["text 0", "text 1", "text 2", "text 3"]
    );
    dan.hears_nothing().await;
    cluster.stop().await;
}

// proves S0-15
#[tokio::test]
async fn late_member_reads_from_the_join_unless_history_is_open() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut cy = cluster.device(3).ready().await;
    let group = ada.create_group(CLOSED, &[2]).await;
    ada.say_in(group, "before").await;
    assert!(readable_texts(&cy.client, group).await.is_err());
    send_command(&ada, group, GroupCommand::Add(vec![user(3)])).await;
    ada.say_in(group, "after").await;
    // Earlier messages are not theirs to read: they get a gap.
    let next_text = async {
        loop {
            if let Some(Event::Message(message)) = cy.events.next().await {
                return text(&message);
            }
        }
    };
    assert_eq!(
        timeout(TEST_TIMEOUT, next_text).await.expect("in time"),
        "after"
    );
    cy.events.taken();
    assert_eq!(
        readable_texts(&cy.client, group).await.expect("a member"),
        ["after"]
    );
    let open_settings = GroupSettings {
        open_history: true,
        ..CLOSED
    };
    send_command(&ada, group, GroupCommand::Set(open_settings)).await;
    assert_eq!(
        readable_texts(&cy.client, group).await.expect("a member"),
        ["before", "after"]
    );
    cluster.stop().await;
}

#[tokio::test]
async fn removed_member_neither_sends_nor_receives() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    let cy = cluster.device(3).ready().await;
    let dan = cluster.device(4).ready().await;
    let group = ada.create_group(CLOSED, &[2, 3]).await;
    assert_eq!(
        refused_code(&bea, group, GroupCommand::Remove(vec![user(3)])).await,
        Code::Forbidden
    );
    assert_eq!(
        refused_code(&dan, group, GroupCommand::Join).await,
        Code::Forbidden
    );
    ada.say_in(group, "welcome").await;
    assert_eq!(text(&bea.hear().await), "welcome");
    send_command(&ada, group, GroupCommand::Remove(vec![user(2)])).await;
    let mut ticket = bea.send(Recipient::Group(group), "but").await;
    reaches(&mut ticket, |status| {
        matches!(status, SendStatus::Failed(_))
    })
    .await;
    cy.say_in(group, "so it goes").await;
    assert_eq!(text(&ada.hear().await), "so it goes");
    bea.hears_nothing().await;
    assert_eq!(
        members(&ada.client, group).await,
        [(user(1), Role::Owner), (user(3), Role::Member)]
    );
    cluster.stop().await;
}

// An administrator recalls any member's message.
#[tokio::test]
async fn an_admin_recalls_for_everybody() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let bea = cluster.device(2).ready().await;
    let mut cy = cluster.device(3).ready().await;
    let group = ada.create_group(CLOSED, &[2, 3]).await;
    let id = bea.say_in(group, "unheard of").await;
    cy.hear().await;
    let to = Recipient::Group(group);
    ada.change(to, id, ChangeKind::Recall, "").await;
    let change = cy.next_change().await;
    assert_eq!((change.asked.subject, change.seq), (id, Seq(1)));
    assert_eq!(change.asked.change, MessageChange::Recall);
    assert_eq!(
        readable_texts(&cy.client, group).await.expect("a member"),
        [""]
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_group_knows_who_has_read() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    let mut phone = cluster.device_on(2, Platform::Ios, "phone").await;
    let group = ada.create_group(CLOSED, &[2, 3]).await;
    let conversation = ConversationId::Group(group);
    ada.say_in(group, "who has read this?").await;
    let message = bea.hear().await.placed;
    phone.hear().await;
    let read = bea
        .client
        .read(conversation, message.position.seq, message.message.id);
    read.await.expect("it is told");
    eventually("the reader", async || {
        let readers = ada.client.readers(group, Seq(1)).await.expect("a member");
        readers.contains(&user(2)).then_some(())
    })
    .await;
    let readers = ada.client.readers(group, Seq(1)).await.expect("a member");
    assert!(!readers.contains(&user(3)), "{readers:?}");
    cluster.stop().await;
}

/// User 2 is in a group of user 1, and away while user 1 sends these commands: the list of the device
/// that comes back says that they are no member.
async fn learns_from_the_list(
    cluster: &Cluster,
    settings: GroupSettings,
    members: &[i64],
    commands: Vec<GroupCommand>,
) -> GroupId {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("bea.sqlite");
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).keeping(state.clone()).ready().await;
    let group = ada.create_group(settings, members).await;
    let conversation = ConversationId::Group(group);
    ada.say_in(group, "welcome").await;
    bea.hear().await;
    let role = |device: &Device| {
        let list = device.client.conversations();
        let row = list.borrow().get(&conversation).map(|row| row.role);
        row.flatten()
    };
    eventually("a member", async || {
        (role(&bea) == Some(Role::Member)).then_some(())
    })
    .await;
    bea.close().await;
    for command in commands {
        send_command(&ada, group, command).await;
    }
    let bea = cluster.device(2).keeping(state).connect().await;
    eventually("no member", async || role(&bea).is_none().then_some(())).await;
    group
}

// A member removed while away learns it from the list.
#[tokio::test]
async fn absent_device_learns_that_it_was_removed() {
    let cluster = Cluster::start().await;
    let commands = vec![
        GroupCommand::SetRole(user(3), Role::Admin),
        GroupCommand::Remove(vec![user(2)]),
    ];
    learns_from_the_list(&cluster, CLOSED, &[2, 3], commands).await;
    cluster.stop().await;
}

// Mute, ban and dissolve over a running system, each with what a member without the right gets.
#[tokio::test]
async fn restrictions_hold_until_they_are_lifted() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    let cy = cluster.device(3).ready().await;
    let open_door = GroupSettings {
        open_door: true,
        ..CLOSED
    };
    let group = ada.create_group(open_door, &[2, 3]).await;
    let to = Recipient::Group(group);
    let refused_text = async |device: &Device, text: &str| {
        let mut ticket = device.send(to, text).await;
        done(&mut ticket).await.expect_err("it is refused").code
    };
    let in_an_hour = SystemClock.now() + Duration::from_secs(3600);
    let mute = |until| GroupCommand::Mute(user(2), until);
    assert_eq!(
        refused_code(&cy, group, mute(in_an_hour)).await,
        Code::Forbidden
    );
    send_command(&ada, group, mute(in_an_hour)).await;
    assert_eq!(refused_text(&bea, "let me speak").await, Code::Muted);
    ada.say_in(group, "silence").await;
    assert_eq!(text(&bea.hear().await), "silence");
    send_command(&ada, group, mute(Timestamp::ZERO)).await;
    bea.say_in(group, "thanks").await;
    assert_eq!(text(&ada.hear().await), "thanks");

    let ban = || GroupCommand::Ban(vec![user(2), user(9)]);
    assert_eq!(refused_code(&cy, group, ban()).await, Code::Forbidden);
    send_command(&ada, group, ban()).await;
    for outsider in [&bea, &cluster.device(9).ready().await] {
        let code = refused_code(outsider, group, GroupCommand::Join).await;
        assert_eq!(code, Code::Forbidden);
    }
    let add = || GroupCommand::Add(vec![user(2)]);
    assert_eq!(refused_code(&cy, group, add()).await, Code::Forbidden);
    send_command(&ada, group, add()).await;
    bea.say_in(group, "back again").await;

    let dissolve = || GroupCommand::Dissolve;
    assert_eq!(refused_code(&cy, group, dissolve()).await, Code::Forbidden);
    send_command(&ada, group, dissolve()).await;
    assert_eq!(
        refused_code(&bea, group, GroupCommand::Join).await,
        Code::NotFound
    );
    assert!(readable_texts(&cy.client, group).await.is_err());
    cluster.stop().await;
}

// A quiet group is large: its members stay, and their lists leave it out all the same.
#[tokio::test]
async fn lists_leave_out_a_large_group_that_was_dissolved() {
    let cluster = Cluster::start().await;
    let quiet = GroupSettings {
        quiet: true,
        ..CLOSED
    };
    let commands = vec![GroupCommand::Dissolve];
    let group = learns_from_the_list(&cluster, quiet, &[2], commands).await;
    let new_device = cluster.device_on(2, Platform::Ios, "phone").await;
    eventually("a list without it", async || {
        let list = new_device.client.conversations();
        let conversation = ConversationId::Group(group);
        (!list.borrow().contains_key(&conversation)).then_some(())
    })
    .await;
    let infos = cluster.backends.groups.infos(&[group]).await;
    let info = infos.expect("reads")[0].expect("it is there");
    assert_eq!((info.is_dissolved, info.present), (true, Some(2)));
    cluster.stop().await;
}
