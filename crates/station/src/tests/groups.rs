//! Groups at the doors, and in the answers to their members.

use api::task::Value;
use std::time::Duration;

use api::codec::encode_message;
use backend::hook::{Calls, Fault};
use backend::timeline::TimelineEntry;
use protocol::change::{ChangeKind, ChangeOf, ChangeRequest, ChangeRow, OrderedChange};
use protocol::conversation::Head;
use protocol::frame::{
    HistoryRange, MemberPage, Send, ServerFrame, Summary, SyncAnswer, SyncQuery,
};
use protocol::group::{GroupCommand, GroupInfo, GroupSettings, Member, Role};
use protocol::history::Version;
use protocol::loaded_ranges::LoadedRanges;
use protocol::message::Content;
use protocol::message_row::MessageRow;
use protocol::receipt::ReceiptKind;
use protocol::unread::Tally;
use protocol::{
    Code, ConversationId, GroupId, Message, MessageId, Options, Placed, Platform, Position,
    Recipient, Seq, Timestamp, UserId,
};

use super::receipts::receipt_item;
use super::world::*;
use crate::Config;

pub(super) const CLOSED: GroupSettings = GroupSettings::CLOSED;
const OPEN: GroupSettings = GroupSettings {
    open_history: true,
    open_door: true,
    ..GroupSettings::CLOSED
};
pub(super) const NEWEST: HistoryRange = HistoryRange::Backward { before: None };

pub(super) fn group(number: i64) -> GroupId {
    GroupId::new(number).expect("positive")
}

pub(super) fn of(number: i64) -> ConversationId {
    ConversationId::Group(group(number))
}

pub(super) fn to_group(number: i64, send_id: u8, text: &str) -> Send {
    Send {
        to: Recipient::Group(group(number)),
        ..send(1, send_id, text)
    }
}

fn change_send(number: i64, send_id: u8, subject: Option<MessageId>, kind: ChangeKind) -> Send {
    let mut send = to_group(number, send_id, "");
    send.content.change = Some(Box::new(ChangeOf { subject, kind }));
    send
}

impl World {
    /// Gives a user a role in a group now, as a carrier would have saved it.
    pub(super) async fn set_role(
        &self,
        in_group: i64,
        settings: GroupSettings,
        number: i64,
        role: Option<Role>,
    ) {
        let end = self.end(in_group).await.seq;
        let stamp = self.backends.clock.now().since(BEGIN).as_millis() as u64;
        let version = Version {
            epoch: 1,
            offset: end.0 * 1000 + stamp,
        };
        let key = (group(in_group), user(number));
        let members = self.backends.groups.members_of(&[key]).await;
        // Who leaves has been a member since the join.
        let since = match members.expect("reads")[0] {
            Some((_, member)) if role.is_none() => member.since,
            _ => end,
        };
        let members = vec![(user(number), Member::new(role, since, version))];
        let info = GroupInfo::uncounted(settings, version);
        let save = (self.backends.groups).save(group(in_group), Some(info), members);
        save.await.expect("saves");
        let touch = vec![(user(number), of(in_group))];
        let now = self.backends.clock.now();
        let touch = self.backends.conversations.touch(touch, now).await;
        touch.expect("writes");
    }

    pub(super) async fn create_group(
        &self,
        in_group: i64,
        settings: GroupSettings,
        members: &[i64],
    ) {
        for (index, number) in members.iter().enumerate() {
            let role = if index == 0 {
                Role::Owner
            } else {
                Role::Member
            };
            self.set_role(in_group, settings, *number, Some(role)).await;
        }
    }

    async fn end(&self, in_group: i64) -> Head {
        let heads = self.backends.heads.load(&[of(in_group)]).await;
        heads.expect("loads")[0].unwrap_or_default()
    }

    /// Next message of a group, with everything that a carrier writes.
    pub(super) async fn say(&self, in_group: i64, from: i64, text: &str) -> Placed {
        let entry = self.say_uncached(in_group, from, text).await;
        let timeline_entry = TimelineEntry {
            seq: entry.position.seq,
            id: entry.message.id,
            body: encode_message(&entry),
        };
        let push = self
            .backends
            .timeline
            .push(group(in_group), vec![timeline_entry])
            .await;
        push.expect("pushes");
        entry
    }

    pub(super) async fn say_uncached(&self, in_group: i64, from: i64, text: &str) -> Placed {
        let head = self.end(in_group).await;
        let seq = head.seq.next();
        let id = MessageId::floor_of(BEGIN).get() + in_group * 10_000 + seq.0 as i64;
        let id = MessageId::new(id).expect("positive");
        let version = Version {
            epoch: 1,
            offset: seq.0,
        };
        let message = Message {
            id,
            to: Recipient::Group(group(in_group)),
            from: user(from),
            accepted_at: self.backends.clock.now(),
            content: Content::text(text),
            ..self.placed(from, from + 1, 1, text).message
        };
        let entry = Placed {
            conversation: of(in_group),
            position: Position {
                seq,
                prev: head.last_id,
            },
            message,
        };
        let rows = MessageRow::from_placed(&entry, 0, version);
        let save = self.backends.messages.save(rows).await;
        save.expect("saves");
        let head = Head {
            seq,
            last_id: Some(id),
            max_id: Some(id),
            stamp: self.backends.clock.now(),
            version,
            ..head
        };
        let save = self.backends.heads.save(vec![(of(in_group), head)]).await;
        save.expect("saves");
        entry
    }

    async fn group_recall(&self, entry: &Placed, by: i64) {
        self.group_change(entry, by, 5000, ChangeKind::Recall, "")
            .await;
    }

    /// A change as the carrier leaves it, by a record at this offset or a little behind.
    pub(super) async fn group_change(
        &self,
        entry: &Placed,
        by: i64,
        offset: u64,
        kind: ChangeKind,
        text: &str,
    ) {
        let head = {
            let heads = self.backends.heads.load(&[entry.conversation]).await;
            heads.expect("loads")[0].expect("a head")
        };
        let version = Version {
            epoch: 1,
            offset: offset + head.rev,
        };
        let mut message = entry.message.clone();
        message.id = MessageId::new(entry.message.id.get() + 5000).expect("positive");
        message.from = user(by);
        message.content = Content::text(text);
        message.content.change = Some(Box::new(ChangeOf {
            subject: Some(entry.message.id),
            kind,
        }));
        let change = OrderedChange {
            rev: head.rev + 1,
            seq: entry.position.seq,
            asked: ChangeRequest::of(&message).expect("a change"),
        };
        let row = ChangeRow {
            conversation: entry.conversation,
            version,
            author: entry.message.from,
            changed: change,
        };
        self.backends.changes.save(vec![row]).await.expect("saves");
        let head = head.moved_by_change(version, message.id, head.rev + 1);
        let save = self.backends.heads.save(vec![(entry.conversation, head)]);
        save.await.expect("saves");
    }

    /// (seqs, more)
    async fn group_page(
        &self,
        number: i64,
        in_group: i64,
        range: HistoryRange,
        limit: u32,
    ) -> Result<(Vec<u64>, bool), Code> {
        let page = self.history(number, of(in_group), range, limit).await?;
        let seqs = page.messages.iter().map(|m| m.position.seq.0);
        Ok((seqs.collect(), page.more))
    }

    async fn group_row(&self, number: i64, in_group: i64) -> Option<Summary> {
        let page = self.list(number, Timestamp::ZERO, None).await;
        let mut rows = page.conversations.into_iter();
        rows.find(|row| row.conversation == of(in_group))
    }

    async fn members(&self, number: i64, in_group: i64, limit: u32) -> Result<MemberPage, Code> {
        let query = SyncQuery::Members {
            group: group(in_group),
            after: None,
            limit,
        };
        match self.ask(number, query).await? {
            SyncAnswer::Members(page) => Ok(page),
            other => panic!("no members: {other:?}"),
        }
    }

    async fn readers(&self, number: i64, in_group: i64, seq: u64) -> Result<Vec<UserId>, Code> {
        let query = SyncQuery::Readers {
            group: group(in_group),
            seq: Seq(seq),
        };
        match self.ask(number, query).await? {
            SyncAnswer::Readers(readers) => Ok(readers),
            other => panic!("no readers: {other:?}"),
        }
    }
}

fn conversations(rows: &[Summary]) -> Vec<ConversationId> {
    rows.iter().map(|row| row.conversation).collect()
}

/// To a member who may not read a message it is not there.
#[tokio::test(start_paused = true)]
async fn unreadable_message_cannot_be_hidden() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    world.create_group(8, OPEN, &[1]).await;
    let old_id = world.say(7, 1, "before").await.message.id;
    let open = world.say(8, 1, "for all").await.message.id;
    world.set_role(7, CLOSED, 3, Some(Role::Member)).await;
    world.set_role(8, OPEN, 3, Some(Role::Member)).await;
    let new_id = world.say(7, 1, "after").await.message.id;
    let mut codes = Vec::new();
    for (by, in_group, subject) in [(3, 7, old_id), (3, 7, new_id), (3, 8, open), (1, 7, old_id)] {
        let hide = change_send(in_group, codes.len() as u8, Some(subject), ChangeKind::Hide);
        codes.push(world.submit_one(item(by, hide)).await.err());
    }
    assert_eq!(codes, [Some(Code::NotFound), None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_muted_member_writes_nothing_and_tidies_up() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    world.create_group(8, OPEN, &[1, 2]).await;
    let id = world.say(7, 2, "too much").await.message.id;
    let now = world.backends.clock.now();
    let version = Version {
        epoch: 1,
        offset: 90_000,
    };
    let mut member = Member::new(Some(Role::Member), Seq::ZERO, version);
    member.restrictions.muted_until = now + Duration::from_secs(60);
    let save = (world.backends.groups).save(group(7), None, vec![(user(2), member)]);
    save.await.expect("saves");
    let muted = GroupSettings {
        muted: true,
        ..OPEN
    };
    let info = Some(GroupInfo::uncounted(muted, version));
    let save = world.backends.groups.save(group(8), info, Vec::new());
    save.await.expect("saves");
    let change = |send_id, kind| item(2, change_send(7, send_id, Some(id), kind));
    let edit = Send {
        content: Content {
            change: Some(Box::new(ChangeOf {
                subject: Some(id),
                kind: ChangeKind::Edit,
            })),
            ..Content::text("more")
        },
        ..to_group(7, 2, "")
    };
    let writes = vec![
        item(2, to_group(7, 1, "more")),
        item(2, edit),
        item(2, to_group(8, 3, "more")),
    ];
    let result = world.submit(writes).await;
    let codes: Vec<_> = result.into_iter().map(Result::err).collect();
    assert_eq!(codes, [Some(Code::Muted); 3]);
    // Their receipts pass, and let nothing else pass.
    let answer = world.say(7, 1, "quiet, please").await;
    let receipt = receipt_item(2, ReceiptKind::Received, &[&answer]);
    world.acknowledge(&[receipt]).await;
    let result = world.submit_one(item(2, to_group(7, 9, "more"))).await;
    assert_eq!(result.err(), Some(Code::Muted));
    let others = vec![
        change(4, ChangeKind::Recall),
        change(5, ChangeKind::Hide),
        item(1, to_group(7, 6, "silence")),
        item(1, to_group(8, 7, "by its owner")),
    ];
    assert!(world.submit(others).await.iter().all(Result::is_ok));
    tokio::time::advance(Duration::from_secs(60)).await;
    let result = world.submit_one(item(2, to_group(7, 8, "sorry"))).await;
    assert!(result.is_ok(), "the mute has ended");
}

/// A large group keeps its members when it is dissolved.
#[tokio::test(start_paused = true)]
async fn nobody_sends_to_or_reads_a_dissolved_group() {
    let world = world().await;
    world.create_group(7, OPEN, &[1, 2]).await;
    world.say(7, 2, "the end").await;
    let version = Version {
        epoch: 1,
        offset: 90_000,
    };
    let info = GroupInfo {
        is_large: true,
        is_dissolved: true,
        ..GroupInfo::uncounted(OPEN, version)
    };
    let save = (world.backends.groups).save(group(7), Some(info), Vec::new());
    save.await.expect("saves");
    let result = world.submit_one(item(2, to_group(7, 1, "is it?"))).await;
    assert_eq!(result.err(), Some(Code::NotFound));
    let range = HistoryRange::Backward { before: None };
    let page = world.group_page(2, 7, range, 9).await;
    assert_eq!(page, Err(Code::NotFound));
    assert_eq!(world.members(2, 7, 9).await.err(), Some(Code::NotFound));
    assert_eq!(world.group_row(2, 7).await, None);
}

#[tokio::test(start_paused = true)]
async fn group_members_may_send_to_it() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    world.set_role(7, CLOSED, 3, None).await;
    world.faults.calls("groups", "members_of");
    let results = world
        .submit(vec![
            item(1, to_group(7, 1, "hello")),
            item(3, to_group(7, 2, "I was here")),
            item(4, to_group(7, 3, "let me in")),
            item(1, to_group(8, 4, "nobody")),
            item(2, to_group(7, 5, "hello")),
            item(
                4,
                change_send(7, 6, None, ChangeKind::GroupCommand(GroupCommand::Join)),
            ),
        ])
        .await;
    let codes: Vec<_> = results.iter().map(|results| results.err()).collect();
    let expected = [
        None,
        Some(Code::Forbidden),
        Some(Code::Forbidden),
        Some(Code::NotFound),
        None,
        None,
    ];
    assert_eq!(codes, expected);
    assert_eq!(world.messages().await.len(), 3);
    assert_eq!(
        world.faults.calls("groups", "members_of"),
        1,
        "one question for a batch"
    );

    let more = (10..13).map(|n| item(1, to_group(7, n, "more"))).collect();
    assert!(world.submit(more).await.iter().all(Result::is_ok));
    assert_eq!(
        world.faults.calls("groups", "members_of"),
        0,
        "it is believed for a while"
    );
    // A user's absence from a group is never remembered.
    world.set_role(7, CLOSED, 4, Some(Role::Member)).await;
    assert!(
        world
            .submit_one(item(4, to_group(7, 20, "thanks")))
            .await
            .is_ok()
    );
    tokio::time::advance(Duration::from_secs(5)).await;
    world.set_role(7, CLOSED, 2, None).await;
    let removed_result = world
        .submit_one(item(2, to_group(7, 21, "still here?")))
        .await;
    assert_eq!(removed_result, Err(Code::Forbidden));
    // A user of unknown membership may pass: the writer judges at the message's place.
    world.faults.begin(Calls::to("groups"), Fault::Hang);
    assert!(
        world
            .submit_one(item(2, to_group(7, 22, "now?")))
            .await
            .is_ok()
    );
}

/// A resend that may be in the log goes to its writer, who knows.
#[tokio::test(start_paused = true)]
async fn a_send_that_may_be_accepted_is_not_refused_at_the_door() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    let first = to_group(7, 1, "hello");
    let id = world.submit_one(item(2, first.clone())).await;
    settle().await;
    world.set_role(7, CLOSED, 2, None).await;
    tokio::time::advance(Duration::from_secs(5)).await;
    let resend = as_resend(first, 1, Duration::from_secs(5));
    assert_eq!(world.submit_one(item(2, resend)).await, id);
}

// proves S0-61h: its sender, the owner and the administrators may delete it; others hear no at the door.
#[tokio::test(start_paused = true)]
async fn changes_in_a_group_are_judged_by_role() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2, 3]).await;
    world.set_role(7, CLOSED, 4, Some(Role::Admin)).await;
    let entry = world.say(7, 2, "hello").await;
    let recall = |n| change_send(7, n, Some(entry.message.id), ChangeKind::Recall);
    let code_for = async |number, n| world.submit_one(item(number, recall(n))).await.err();
    assert_eq!(code_for(3, 1).await, Some(Code::Forbidden));
    assert_eq!(code_for(5, 2).await, Some(Code::Forbidden), "not in it");
    assert_eq!(code_for(2, 3).await, None);
    assert_eq!(code_for(4, 4).await, None);
    assert_eq!(code_for(1, 5).await, None);
    let old = MessageId::floor_of(BEGIN - Duration::from_secs(3600));
    let too_old = change_send(7, 6, Some(old), ChangeKind::Recall);
    assert_eq!(
        world.submit_one(item(1, too_old)).await,
        Err(Code::NotFound)
    );
}

// proves S0-63, S0-66 in part, S0-67, S0-25:
// who comes back says where they are and gets the latest 100 from beside history,
// which is not read, and hears that more lies before.
// proves S0-10: repeated returns read no row of history, with or without copies of the head.
// proves S3-51 in part, S3-52 in part:
// what lies within the cached stretch costs the store nothing, what lies before it is read there.
// proves S0-68 in part: what is to be loaded begins below the smallest that came.
#[tokio::test(start_paused = true)]
async fn returning_member_is_answered_without_history() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    for _ in 0..130 {
        world.say(7, 1, "x").await;
    }
    world.faults.reads("messages");
    let (seqs, more) = world.group_page(2, 7, NEWEST, 0).await.expect("a page");
    assert_eq!((seqs.len(), more), (100, true));
    assert_eq!(seqs, (31..=130).rev().collect::<Vec<_>>());
    let mut ranges = LoadedRanges::default();
    ranges.add(Seq(31)..=Seq(130));
    assert_eq!(ranges.edges(), [Seq(30)]);
    let short = HistoryRange::Forward { after: Seq(120) };
    let (seqs, more) = world.group_page(2, 7, short, 4).await.expect("a page");
    assert_eq!((seqs, more), (vec![121, 122, 123, 124], true));
    let row = world.group_row(2, 7).await.expect("listed");
    assert_eq!((row.seq, row.read_seq), (Seq(130), Seq(0)));
    assert_eq!(message_text(&row.newest.expect("there").message), "x");
    assert_eq!(world.faults.reads("messages"), 1, "unread from so far back");

    let place = (user(2), of(7), Seq(125));
    let now = world.backends.clock.now();
    let read = world
        .backends
        .conversations
        .set_read(vec![place], now)
        .await;
    read.expect("writes");
    world.say(7, 2, "mine").await;
    assert_eq!(world.group_row(2, 7).await.expect("listed").unread, 5);
    assert_eq!(world.faults.reads("messages"), 0);
}

// proves S3-29: who asks for the newest, or for what is behind a cursor, costs a long history no more questions than a short one.
#[tokio::test(start_paused = true)]
async fn a_page_of_a_long_history_costs_as_much_as_of_a_short_one() {
    let world = world().await;
    let mut costs = Vec::new();
    for (in_group, length) in [(7, 40), (8, 1500)] {
        world.create_group(in_group, CLOSED, &[1, 2]).await;
        for _ in 0..length {
            world.say_uncached(in_group, 1, "x").await;
        }
        let forward = HistoryRange::Forward {
            after: Seq(length / 2),
        };
        for range in [forward, NEWEST] {
            world.faults.reads("messages");
            let page = world.group_page(2, in_group, range, 10).await;
            assert_eq!(page.expect("a page").0.len(), 10);
            costs.push(world.faults.reads("messages"));
        }
    }
    assert!(costs[0] > 0 && costs[1] > 0, "{costs:?}");
    assert_eq!(costs[..2], costs[2..]);
}

// proves S2-20: three tiers. A page that is in memory asks nobody; one that is not asks beside history, and history only
// where that has nothing.
#[tokio::test(start_paused = true)]
async fn each_tier_is_asked_for_what_the_one_before_it_lacks() {
    for (keep_for, warm_reads) in [(Duration::from_secs(60), (0, 0)), (Duration::ZERO, (1, 0))] {
        let mut config = Config::default();
        config.pages.group_keep_for = keep_for;
        let world = world_with(config).await;
        world.create_group(7, CLOSED, &[1, 2]).await;
        for _ in 0..20 {
            world.say_uncached(7, 1, "x").await;
        }
        let read_counts = |world: &World| {
            let timeline_reads = world.faults.reads("timeline");
            (timeline_reads, world.faults.reads("messages"))
        };
        read_counts(&world);
        for expected in [(1, 1), warm_reads] {
            let page = world.group_page(2, 7, NEWEST, 10).await.expect("a page");
            assert_eq!(page.0.len(), 10);
            assert_eq!(read_counts(&world), expected, "memory for {keep_for:?}");
        }
    }
}

// proves S2-13, S2-23: what is gone from beside history is read from it, and written back.
#[tokio::test(start_paused = true)]
async fn cache_miss_is_read_from_history_and_cached() {
    // No memory of a station may stand for what was put back.
    let mut config = Config::default();
    config.pages.group_keep_for = Duration::ZERO;
    let world = world_with(config).await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    for _ in 0..20 {
        world.say_uncached(7, 1, "x").await;
    }
    let expected: Vec<u64> = (11..=20).rev().collect();
    for reads in [1, 0] {
        let page = world.group_page(2, 7, NEWEST, 10).await.expect("a page");
        assert_eq!(page, (expected.clone(), true));
        assert_eq!(world.faults.reads("messages"), reads);
    }
    let older = HistoryRange::Backward {
        before: Some(Seq(11)),
    };
    let page = world.group_page(2, 7, older, 100).await.expect("a page");
    assert_eq!(page, ((1..=10).rev().collect(), false));
    // A list caches only the newest: a reader who asks for more gets more.
    world.create_group(8, CLOSED, &[1, 2]).await;
    for _ in 0..5 {
        world.say_uncached(8, 1, "x").await;
    }
    assert!(world.group_row(2, 8).await.is_some());
    let page = world.group_page(2, 8, NEWEST, 4).await.expect("a page");
    assert_eq!(page, (vec![5, 4, 3, 2], true));
    // A gap at the end of the cache is never taken for the end.
    world.say_uncached(7, 1, "new").await;
    let (seqs, _) = world.group_page(2, 7, NEWEST, 3).await.expect("a page");
    assert_eq!(seqs, [21, 20, 19]);
    // Somebody put another message there.
    let mut other = world.say(7, 1, "true").await;
    other.message.id = MessageId::new(other.message.id.get() + 7).expect("positive");
    other.message.content = Content::text("false");
    let entry = TimelineEntry {
        seq: other.position.seq,
        id: other.message.id,
        body: encode_message(&other),
    };
    let push = world.backends.timeline.push(group(7), vec![entry]).await;
    push.expect("pushes");
    let page = world.history(2, of(7), NEWEST, 1).await.expect("a page");
    assert_eq!(message_text(&page.messages[0].message), "true");
}

// proves S0-15, S0-24 in part:
// who comes later reads backward from the newest, up to where they came or to the beginning, as
// the group says.
#[tokio::test(start_paused = true)]
async fn late_member_sees_what_the_group_allows() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1]).await;
    world.create_group(8, OPEN, &[1]).await;
    for _ in 0..3 {
        world.say(7, 1, "before").await;
        world.say(8, 1, "before").await;
    }
    world.set_role(7, CLOSED, 2, Some(Role::Member)).await;
    world.set_role(8, OPEN, 2, Some(Role::Member)).await;
    let page = async |range| world.group_page(2, 7, range, 10).await;
    let all = HistoryRange::Forward { after: Seq(0) };
    assert_eq!(page(NEWEST).await, Ok((vec![], false)));
    assert_eq!(page(all).await, Ok((vec![], false)));
    let row = world.group_row(2, 7).await.expect("listed");
    assert_eq!((row.newest, row.unread, row.read_seq), (None, 0, Seq(3)));
    let open = world.group_row(2, 8).await.expect("listed");
    assert_eq!((open.newest.is_some(), open.unread), (true, 0));
    let entry = world.say(7, 1, "after").await;
    world.say(7, 1, "after").await;
    assert_eq!(page(NEWEST).await, Ok((vec![5, 4], false)));
    assert_eq!(page(all).await, Ok((vec![4, 5], false)));
    let older = HistoryRange::Backward {
        before: Some(Seq(4)),
    };
    assert_eq!(page(older).await, Ok((vec![], false)));
    assert_eq!(world.group_row(2, 7).await.expect("listed").unread, 2);
    let page = world.group_page(2, 8, NEWEST, 10).await;
    assert_eq!(page, Ok((vec![3, 2, 1], false)));
    world.group_recall(&entry, 1).await;
    assert_eq!(world.group_row(2, 7).await.expect("listed").unread, 1);
    world.set_role(7, CLOSED, 2, None).await;
    let former_member = world.group_page(2, 7, NEWEST, 10).await;
    assert_eq!(former_member, Err(Code::Forbidden));
    let changes = SyncQuery::Changes {
        conversation: of(7),
        after: 0,
        limit: 9,
    };
    assert_eq!(world.ask(2, changes).await, Err(Code::Forbidden));
    let no_group = world.group_page(2, 9, NEWEST, 10).await;
    assert_eq!(no_group, Err(Code::NotFound));
}

// proves S4-07, S4-33, S3-40: groups are in the same list, with their newest message and what is unread, though no
// message writes a row for each member; what did not change is not told.
#[tokio::test(start_paused = true)]
async fn groups_are_in_the_list_where_something_changed() {
    let world = world().await;
    world.place(2, 1, 1, "hi").await;
    for number in [7, 8, 9] {
        world.create_group(number, CLOSED, &[1, 2]).await;
    }
    world.say(7, 2, "one").await;
    world.say(8, 2, "two").await;
    let full = world.list(1, Timestamp::ZERO, None).await;
    let all = [between(1, 2), of(7), of(8), of(9)];
    assert_eq!(conversations(&full.conversations), all);
    let roles: Vec<_> = full.conversations.iter().map(|row| row.role).collect();
    assert_eq!(roles[1..], [Some(Role::Owner); 3]);
    let unread: Vec<_> = full.conversations.iter().map(|row| row.unread).collect();
    assert_eq!(unread, [1, 1, 1, 0]);

    tokio::time::advance(Duration::from_secs(60)).await;
    let version = world.list(1, Timestamp::ZERO, None).await.version;
    tokio::time::advance(Duration::from_secs(60)).await;
    let quiet = world.list(1, version, None).await;
    assert_eq!(conversations(&quiet.conversations), []);
    world.say(8, 2, "three").await;
    let place = vec![(user(1), of(7), Seq(1))];
    let now = world.backends.clock.now();
    let read = world.backends.conversations.set_read(place, now).await;
    read.expect("writes");
    let difference = world.list(1, version, None).await;
    let rows = difference.conversations.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.conversation, row.seq.0, row.read_seq.0, row.unread))
        .collect();
    assert_eq!(rows, [(of(7), 1, 1, 0), (of(8), 2, 0, 2)]);
    let other_list = world.list(2, version, None).await;
    assert_eq!(conversations(&other_list.conversations), [of(8)]);

    // A former member hears so once, and a device that has nothing does not.
    world.set_role(7, CLOSED, 1, None).await;
    let difference = world.list(1, version, None).await;
    let former_row = &difference.conversations[0];
    let columns = (
        former_row.conversation,
        former_row.role,
        former_row.newest.clone(),
    );
    assert_eq!(columns, (of(7), None, None));
    assert_eq!(world.group_row(1, 7).await, None);
    // S4-30 holds for groups as well.
    let place = Tally {
        seq: Seq(2),
        incoming: 0,
    };
    let clears = vec![(user(1), of(8), place)];
    let clears = world.backends.conversations.set_cleared(clears, now).await;
    clears.expect("writes");
    assert_eq!(world.group_row(1, 8).await, None);
    // By name both get the row, and a user who never was a member gets none.
    let row = async |number, group| {
        let conversation = of(group);
        match world.ask(number, SyncQuery::Row { conversation }).await {
            Ok(SyncAnswer::Row(row)) => row.map(|row| (row.role, row.seq, row.cleared_seq)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(row(1, 7).await, Some((None, Seq::ZERO, Seq::ZERO)));
    let expected = (Some(Role::Owner), Seq(2), Seq(2));
    assert_eq!(row(1, 8).await, Some(expected));
    assert_eq!(row(3, 8).await, None);
}

#[tokio::test(start_paused = true)]
async fn pages_of_the_list_go_on_from_people_to_groups() {
    let config = Config {
        page_max: 3,
        ..Config::default()
    };
    let world = world_with(config).await;
    for peer in 2..=5 {
        world.place(1, peer, 1, "hi").await;
    }
    let all = [2, 3, 4, 5].map(|peer| between(1, peer));
    let mut all = all.to_vec();
    for number in 11..=15 {
        world.create_group(number, CLOSED, &[1]).await;
        world.say(number, 1, "hi").await;
        all.push(of(number));
    }
    let (mut cursor, mut ids, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = world.list(1, Timestamp::ZERO, cursor).await;
        pages += 1;
        assert!(page.conversations.len() <= 3);
        ids.extend(conversations(&page.conversations));
        cursor = ids.last().copied();
        if !page.more {
            break;
        }
    }
    assert_eq!((ids, pages), (all, 3));
}

// proves S0-61b: each member reads for themselves; the sender of a group's message hears of nobody.
#[tokio::test(start_paused = true)]
async fn member_receipts_reach_only_their_own_devices() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2, 3]).await;
    world.sign_in(1, Platform::Ios, 11).await;
    world.sign_in(2, Platform::Ios, 21).await;
    world.sign_in(2, Platform::Web, 22).await;
    let first = world.say(7, 1, "one").await;
    let second = world.say(7, 1, "two").await;
    let mut wrong = second.clone();
    wrong.message.id = first.message.id;
    world.faults.reads("messages");
    let answers = world
        .acknowledge(&[
            receipt_item(2, ReceiptKind::Received, &[&first, &second, &wrong]),
            receipt_item(2, ReceiptKind::Read, &[&first]),
            receipt_item(4, ReceiptKind::Read, &[&second]),
        ])
        .await;
    assert_eq!(world.faults.reads("messages"), 1, "one read for a call");
    assert_eq!(answers[0].ids, [first.message.id, second.message.id]);
    assert_eq!(answers[0].refusals[0].1.code, Code::NotFound);
    assert_eq!(answers[1].ids, [first.message.id]);
    assert_eq!(answers[2].refusals[0].1.code, Code::Forbidden);
    let key = [(user(2), of(7))];
    let registers = world.backends.conversations.registers(&key).await;
    let registers = registers.expect("reads")[0];
    assert_eq!(
        (registers.read_seq, registers.received_seq),
        (Seq(1), Seq(2))
    );
    let frames = world.boat.frames();
    let mut sessions: Vec<i64> = frames.iter().map(|(session, _)| *session).collect();
    sessions.sort_unstable();
    assert_eq!(sessions, [21, 22]);
    assert!(matches!(&frames[0].1, ServerFrame::Receipts(receipts) if receipts.len() == 1));
    let statuses = world.ask_status(1, &[first.message.id]).await;
    assert_eq!(statuses, []);
}

// proves S2-16: a group leaves the unread ones when it was read, here by what was sent along with an answer.
#[tokio::test(start_paused = true)]
async fn a_send_may_say_what_was_read_in_its_group() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    for _ in 0..3 {
        world.say(7, 1, "x").await;
    }
    let mut answer = to_group(7, 1, "yes");
    for (seen_seq, unread) in [(2, 1), (99, 0)] {
        answer.seen_seq = Some(Seq(seen_seq));
        answer.send_id = send_id(seen_seq as u8);
        let result = world.submit_one(item(2, answer.clone())).await;
        assert!(result.is_ok());
        settle().await;
        let row = world.group_row(2, 7).await.expect("listed");
        assert_eq!((row.read_seq.0, row.unread), (seen_seq.min(3), unread));
    }
}

#[tokio::test(start_paused = true)]
async fn members_and_readers_are_told_to_those_who_are_in() {
    let world = world().await;
    world.create_group(7, OPEN, &[1, 2, 3, 4]).await;
    world.set_role(7, OPEN, 3, None).await;
    let page = world.members(2, 7, 2).await.expect("a page");
    assert_eq!(page.settings, OPEN);
    let two = vec![(user(1), Role::Owner), (user(2), Role::Member)];
    assert_eq!((page.members, page.more), (two, true));
    let page = world.members(2, 7, 0).await.expect("a page");
    assert_eq!((page.members.len(), page.more), (3, false));
    assert_eq!(world.members(3, 7, 0).await, Err(Code::Forbidden));
    assert_eq!(world.members(1, 8, 0).await, Err(Code::NotFound));

    let entry = world.say(7, 1, "hello").await;
    world
        .acknowledge(&[receipt_item(4, ReceiptKind::Read, &[&entry])])
        .await;
    assert_eq!(world.readers(1, 7, 1).await, Ok(vec![user(4)]));
    assert_eq!(world.readers(1, 7, 2).await, Ok(vec![]));
    assert_eq!(world.readers(3, 7, 1).await, Err(Code::Forbidden));
    // The largest group whose readers are named, and one larger by one.
    let many: Vec<i64> = (1..=500).collect();
    world.create_group(9, OPEN, &many).await;
    assert_eq!(world.readers(1, 9, 1).await, Ok(vec![]));
    world.set_role(9, OPEN, 501, Some(Role::Member)).await;
    assert_eq!(world.readers(1, 9, 1).await, Err(Code::Unsupported));
}

#[tokio::test(start_paused = true)]
async fn a_command_is_stored_for_nobody() {
    let world = world().await;
    let command = GroupCommand::Create {
        settings: CLOSED,
        members: vec![user(2)],
    };
    let submission = world.submit_one(item(
        1,
        change_send(7, 1, None, ChangeKind::GroupCommand(command)),
    ));
    assert!(submission.await.is_ok());
    let record = world.log().await.remove(0);
    let task = protocol::record::Task::decode(record.value).expect("ours");
    let protocol::record::Work::Message(task) = task.work else {
        panic!("a message");
    };
    assert_eq!(task.message.options, Options::NONE);
    assert_eq!(task.message.conversation(), Some(of(7)));
}

// proves S2-09 in part, S2-10 in part, S2-15 in part, S3-37 in part:
// of each member what it did not read, and how many came after a time.
#[tokio::test(start_paused = true)]
async fn a_group_is_counted_for_each_member_and_from_any_time() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    let mut entries = Vec::new();
    for n in 0..5 {
        tokio::time::advance(Duration::from_secs(1)).await;
        entries.push(world.say(7, 1 + n % 2, "text").await);
    }
    let unread = async |number| match world.ask(number, SyncQuery::Unread { after: None }).await {
        Ok(SyncAnswer::Unread(page)) => page.counts,
        other => panic!("not what is unread: {other:?}"),
    };
    assert_eq!(unread(1).await, [(of(7), 2)]);
    assert_eq!(unread(2).await, [(of(7), 3)]);
    world
        .acknowledge(&[receipt_item(2, ReceiptKind::Read, &[&entries[4]])])
        .await;
    assert_eq!(unread(2).await, []);
    assert_eq!(unread(1).await, [(of(7), 2)]);

    let count = async |number, start| {
        let group = group(7);
        match world
            .ask(
                number,
                SyncQuery::CountSince {
                    group,
                    since: start,
                },
            )
            .await?
        {
            SyncAnswer::CountSince(page) => Ok((page.count, page.more)),
            other => panic!("no count: {other:?}"),
        }
    };
    let at = |n: usize| entries[n].message.id.timestamp();
    assert_eq!(count(1, Timestamp::ZERO).await, Ok((5, false)));
    assert_eq!(count(1, at(4)).await, Ok((0, false)));
    assert_eq!(count(3, Timestamp::ZERO).await, Err(Code::Forbidden));
    let far = Timestamp::from_millis(i64::MAX);
    assert_eq!(count(1, far).await, Ok((0, false)));
    // At most a thousand are looked at.
    for _ in 5..1000 {
        world.say(7, 1, "text").await;
    }
    assert_eq!(count(1, Timestamp::ZERO).await, Ok((1000, false)));
    world.say(7, 1, "one more").await;
    assert_eq!(count(1, Timestamp::ZERO).await, Ok((1000, true)));
}
