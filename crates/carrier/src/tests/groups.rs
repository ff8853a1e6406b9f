//! Groups, as the writer of their conversations makes them.

use std::time::Duration;

use backend::groups::{GroupLoad, LoadProgress, PAGE};
use backend::hook::Fault;
use protocol::change::{ChangeKind, ChangeOf};
use protocol::frame::{HistoryRange, ListEventKind, ServerFrame};
use protocol::group::{Group, GroupCommand, GroupSettings, Role};
use protocol::history::{IdRange, Order};
use protocol::keys::Topic;
use protocol::ledger::LedgerEvent;
use protocol::message::Content;
use protocol::message_row::{MessageRow, Owner};
use protocol::record::MessageTask;
use protocol::{
    Code, ConversationId, GroupId, Message, MessageId, Options, Platform, Recipient, Seq, UserId,
};

use super::crashes::{write_and_die, write_some_and_die};
use super::world::*;
use crate::Config;

const CAROL: i64 = 3;
const DAVE: i64 = 4;

pub(super) const CLOSED: GroupSettings = GroupSettings::CLOSED;

pub(super) fn group() -> GroupId {
    GroupId::new(77).expect("positive")
}

fn conversation() -> ConversationId {
    ConversationId::Group(group())
}

/// Number of each user's session.
fn session_number(user_id: i64) -> i64 {
    user_id * 10
}

pub(super) fn create(members: impl IntoIterator<Item = i64>) -> GroupCommand {
    GroupCommand::Create {
        settings: CLOSED,
        members: members.into_iter().map(user).collect(),
    }
}

impl World {
    async fn live(&self, user_id: i64) {
        self.sign_in(
            user_id,
            Platform::Web,
            session_number(user_id),
            Manner::Acknowledges,
        )
        .await;
    }

    pub(super) fn for_group(
        &self,
        from: i64,
        change: Option<(Option<MessageId>, ChangeKind)>,
    ) -> Message {
        let mut message = self.message(from, from + 1000);
        message.to = Recipient::Group(group());
        if let Some((subject, kind)) = change {
            if !kind.has_text() {
                message.content = Content::text("");
            }
            message.options = Options::NONE;
            message.content.change = Some(Box::new(ChangeOf { subject, kind }));
        }
        message
    }

    pub(super) async fn accept_from_sender(&self, message: Message) -> MessageId {
        let (id, from) = (message.id, message.from.get());
        let task = from_session(message, session_number(from), &self.life);
        self.accept(task).await;
        id
    }

    pub(super) async fn say(&self, from: i64) -> MessageId {
        self.accept_from_sender(self.for_group(from, None)).await
    }

    pub(super) async fn command(&self, by: i64, command: GroupCommand) -> MessageId {
        let change = Some((None, ChangeKind::GroupCommand(command)));
        self.accept_from_sender(self.for_group(by, change)).await
    }

    async fn ask(&self, by: i64, subject: MessageId, kind: ChangeKind) -> MessageId {
        let change = Some((Some(subject), kind));
        self.accept_from_sender(self.for_group(by, change)).await
    }

    async fn group(&self) -> Group {
        let mut progress = LoadProgress::new(group());
        loop {
            match progress.next(&*self.backends.groups, PAGE).await {
                Ok(GroupLoad::Part) => {}
                Ok(GroupLoad::Whole(group)) => return group,
                other => panic!("it is there: {other:?}"),
            }
        }
    }

    /// Messages of the group's history, in order.
    pub(super) async fn group_history(&self) -> Vec<(Seq, MessageId)> {
        let range = HistoryRange::Forward { after: Seq::ZERO };
        let conversation = ConversationId::Group(group());
        let rows = (self.backends.messages).page(Owner::Group(group()), conversation, range, 1000);
        let rows = rows.await.expect("reads");
        rows.iter().map(|row| (row.seq(), row.id())).collect()
    }

    /// Newest entries of the timeline as they are sent: place and text, newest first.
    async fn newest_entries(&self) -> Vec<(u64, Vec<u8>)> {
        let entries = self.backends.timeline.latest(group(), 0, 100).await;
        let entries = entries.expect("reads").into_iter();
        entries
            .map(|entry| {
                let frame = api::codec::decode_server(entry.body, 1 << 20);
                let ServerFrame::Message(placed) = frame.expect("a frame of ours") else {
                    panic!("a message")
                };
                assert_eq!(
                    (placed.position.seq, placed.message.id),
                    (entry.seq, entry.id)
                );
                (entry.seq.0, placed.message.content.data.to_vec())
            })
            .collect()
    }

    /// Roles that a user's session was notified of.
    fn notified_roles(&self, user_id: i64) -> Vec<Option<Role>> {
        let pushes = self.boat.pushes.lock().clone();
        let frames = pushes.into_iter().zip(self.boat.frames());
        let own_frames = frames.filter(|((session, _), _)| *session == session_number(user_id));
        own_frames
            .filter_map(|(_, frame)| match frame {
                ServerFrame::Listed(event) => match event.kind {
                    ListEventKind::Member(role) => Some(role),
                    _ => None,
                },
                _ => None,
            })
            .collect()
    }

    fn codes(&self, user_id: i64) -> Vec<Code> {
        let notice_frames = self.boat.notice_frames(session_number(user_id)).into_iter();
        notice_frames
            .filter_map(|frame| match frame {
                ServerFrame::Refused { refusal, .. } => Some(refusal.code),
                _ => None,
            })
            .collect()
    }

    fn has(&self, user_id: i64, id: MessageId) -> bool {
        self.boat
            .pushed_to(session_number(user_id))
            .contains(&id.get())
    }

    async fn is_refused(&self, id: MessageId) -> bool {
        let events = self.events(id).await;
        let is_refusal = |event: &LedgerEvent| matches!(event, LedgerEvent::Refused { .. });
        events.contains(&(None, LedgerEvent::Settled)) && events.iter().any(|(_, e)| is_refusal(e))
    }
}

fn numbered(message_ids: &[MessageId]) -> Vec<(Seq, MessageId)> {
    (1..).map(Seq).zip(message_ids.iter().copied()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_group_is_as_large_as_the_bounds_in_the_command_allow() {
    let mut world = World::new().await;
    world.bounds.group_members = 2;
    world.command(ALICE, create([BOB])).await;
    world
        .command(ALICE, GroupCommand::Add(vec![user(CAROL)]))
        .await;
    world.bounds.group_members = 3;
    world
        .command(ALICE, GroupCommand::Add(vec![user(DAVE)]))
        .await;
    world.wait_until_committed().await;
    let group = world.group().await;
    let memberships = [ALICE, BOB, CAROL, DAVE].map(|user_id| group.role(user(user_id)).is_some());
    assert_eq!(memberships, [true, true, false, true]);
}

/// The station let Dave's message pass although he was out, and his client sends it again once he
/// is in.
#[tokio::test(start_paused = true)]
async fn a_resend_placed_after_a_refusal_survives_replay() {
    let mut world = World::without_carrier(Config::default()).await;
    world.live(DAVE).await;
    world.command(ALICE, create([BOB])).await;
    let message = world.for_group(DAVE, None);
    let id = world.accept_from_sender(message.clone()).await;
    world
        .command(ALICE, GroupCommand::Add(vec![user(DAVE)]))
        .await;
    world.accept_from_sender(message).await;
    write_and_die(&world).await;
    write_and_die(&world).await;
    let next_id = world.say(DAVE).await;
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert_eq!(
        world.group_history().await,
        [(Seq(1), id), (Seq(2), next_id)]
    );
}

// proves S0-02, S3-25, S3-26, S3-28: one row, whatever the size of the group.
// proves S3-23, S3-24: of a small one each member who is away has an entry of their own beside it.
// proves S3-39 in part: written before anybody hears of it, and only who is in and there does.
#[tokio::test(start_paused = true)]
async fn a_message_is_one_row_and_every_member_gets_it() {
    let world = World::new().await;
    for user_id in [ALICE, BOB, 2000] {
        world.live(user_id).await;
    }
    let tablet = (Platform::Pad, 11);
    world
        .sign_in(ALICE, tablet.0, tablet.1, Manner::Acknowledges)
        .await;
    world.register_device(CAROL, Platform::Ios).await;
    world.register_device(CAROL, Platform::Web).await;
    world.register_device(DAVE, Platform::Ios).await;
    world.command(ALICE, create([BOB, CAROL])).await;
    let small = world.say(ALICE).await;
    world.wait_until_committed().await;
    world
        .command(ALICE, GroupCommand::Add(vec![user(DAVE)]))
        .await;
    let wider = world.say(ALICE).await;
    world.wait_until_committed().await;
    for (user_id, waits) in [(CAROL, 2), (DAVE, 1)] {
        assert_eq!(world.waiting(user_id, Platform::Ios).await, waits);
    }
    let grow = async |range: std::ops::Range<i64>| {
        let users = range.map(user).collect();
        world.command(ALICE, GroupCommand::Add(users)).await;
    };
    // Together with the four members, sender included: the largest group with messages stored for
    // each.
    grow(100..350).await;
    grow(350..596).await;
    let largest = world.say(ALICE).await;
    world.wait_until_committed().await;
    assert_eq!(world.waiting(CAROL, Platform::Ios).await, 3);
    grow(596..900).await;
    let large = world.say(ALICE).await;
    world.wait_until_committed().await;
    assert_eq!(
        world.group_history().await,
        numbered(&[small, wider, largest, large])
    );
    let all = IdRange {
        after_id: None,
        before_id: None,
    };
    let rows = world
        .backends
        .messages
        .find(Owner::Group(group()), all, Order::Forward, 100);
    assert_eq!(rows.await.expect("reads").len(), 4);

    assert!(world.has(BOB, small) && world.has(BOB, large));
    assert!(!world.has(2000, small), "not in");
    let sender_pushes = world.boat.pushed_to(11);
    assert!(
        sender_pushes.contains(&small.get()),
        "the sender's other device: {sender_pushes:?}"
    );
    assert!(!world.has(ALICE, small), "not the session that sent it");
    let echoes = world.boat.notice_frames(session_number(ALICE));
    let is_echo =
        |frame: &ServerFrame| matches!(frame, ServerFrame::Placed(echo) if echo.id == small);
    assert!(echoes.iter().any(is_echo));
    for platform in [Platform::Ios, Platform::Web] {
        // The large group has more members than messages are stored for.
        assert_eq!(world.waiting(CAROL, platform).await, 3);
    }
    let newest = world.newest_entries().await;
    assert_eq!(
        newest.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        [4, 3, 2, 1]
    );
    let head = world
        .backends
        .heads
        .load(&[conversation()])
        .await
        .expect("reads");
    let head = head[0].expect("written");
    assert_eq!((head.seq, head.last_id), (Seq(4), Some(large)));
    assert!(head.stamp >= BEGIN, "the list difference finds it");
}

/// Records of one batch take effect in order: a member removed in between may not write any more,
/// and gets nothing.
#[tokio::test(start_paused = true)]
async fn a_command_takes_effect_between_two_messages() {
    let mut world = World::without_carrier(Config::default()).await;
    for user_id in [ALICE, BOB, CAROL] {
        world.live(user_id).await;
    }
    let early_id = world.say(ALICE).await;
    world.command(ALICE, create([BOB, CAROL])).await;
    let first = world.say(CAROL).await;
    world
        .command(ALICE, GroupCommand::Remove(vec![user(CAROL)]))
        .await;
    let refused_id = world.say(CAROL).await;
    let second = world.say(BOB).await;
    let forbidden_id = world
        .command(CAROL, GroupCommand::Add(vec![user(DAVE)]))
        .await;
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert_eq!(world.group_history().await, numbered(&[first, second]));
    assert!(world.is_refused(early_id).await && world.is_refused(refused_id).await);
    assert!(world.is_refused(forbidden_id).await);
    assert_eq!(world.codes(CAROL), [Code::Forbidden; 2]);
    assert_eq!(
        world.codes(ALICE),
        [Code::NotFound],
        "before there was a group"
    );
    assert!(world.has(ALICE, first) && world.has(ALICE, second));
    assert!(!world.has(CAROL, second) && !world.has(BOB, refused_id));
    assert_eq!(world.notified_roles(CAROL), [Some(Role::Member), None]);
    assert_eq!(
        world.notified_roles(ALICE),
        [Some(Role::Owner); 2],
        "the asker, too"
    );
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn handing_a_group_over_notifies_each_member_of_their_role() {
    let world = World::new().await;
    for user_id in [ALICE, BOB, CAROL] {
        world.live(user_id).await;
    }
    world.command(ALICE, create([BOB, CAROL])).await;
    world
        .command(ALICE, GroupCommand::SetRole(user(CAROL), Role::Admin))
        .await;
    world.command(ALICE, GroupCommand::Leave).await;
    world
        .command(ALICE, GroupCommand::HandOver(user(BOB)))
        .await;
    world.command(ALICE, GroupCommand::Leave).await;
    world.command(ALICE, GroupCommand::Leave).await;
    let second_create = world.command(BOB, create([])).await;
    world.wait_until_committed().await;
    assert_eq!(
        world.codes(ALICE),
        [Code::InvalidArgument],
        "hand it over first"
    );
    assert!(
        world.is_refused(second_create).await,
        "there is such a group"
    );
    let (owner, admin) = (Some(Role::Owner), Some(Role::Admin));
    assert_eq!(
        world.notified_roles(ALICE),
        [owner, owner, admin, None, None]
    );
    assert_eq!(world.notified_roles(BOB), [Some(Role::Member), owner]);
    assert_eq!(world.notified_roles(CAROL), [Some(Role::Member), admin]);
    let group = world.group().await;
    let roles: Vec<_> = group.present().collect();
    assert_eq!(
        roles,
        [(user(BOB), Role::Owner), (user(CAROL), Role::Admin)]
    );
}

/// Messages and group commands, allowed and not, with their places by the order in which they were
/// sent.
async fn eventful(world: &World) -> Vec<MessageId> {
    let mut message_ids = vec![world.say(DAVE).await];
    world.command(ALICE, create([BOB, CAROL])).await;
    for round in 0..4 {
        message_ids.push(world.say(ALICE).await);
        message_ids.push(world.say(DAVE).await);
        let recall = world.ask(DAVE, message_ids[1], ChangeKind::Recall).await;
        message_ids.push(recall);
        world
            .command(BOB, GroupCommand::Add(vec![user(DAVE)]))
            .await;
        world
            .command(
                ALICE,
                GroupCommand::Add(vec![user(DAVE), user(100 + round)]),
            )
            .await;
        message_ids.push(world.say(DAVE).await);
        message_ids.push(world.say(CAROL).await);
        world.command(CAROL, GroupCommand::Leave).await;
        message_ids.push(world.say(CAROL).await);
        let command = GroupCommand::SetRole(user(DAVE), Role::Admin);
        world.command(ALICE, command).await;
        world
            .command(DAVE, GroupCommand::Add(vec![user(CAROL)]))
            .await;
        world
            .command(ALICE, GroupCommand::HandOver(user(BOB)))
            .await;
        world
            .command(BOB, GroupCommand::HandOver(user(ALICE)))
            .await;
        message_ids.push(world.say(BOB).await);
        world
            .command(ALICE, GroupCommand::Remove(vec![user(DAVE)]))
            .await;
    }
    message_ids
}

/// Places of these messages; `None` for one without a place.
async fn places(world: &World, message_ids: &[MessageId]) -> Vec<Option<u64>> {
    let history = world.group_history().await;
    let place = |id: &MessageId| {
        let entry = history.iter().find(|(_, history)| history == id);
        entry.map(|(seq, _)| seq.0)
    };
    message_ids.iter().map(place).collect()
}

// T-C1 for groups: a carrier that dies after its effects, again and again, against one that never
// does.
#[tokio::test(start_paused = true)]
async fn a_carrier_that_dies_after_writing_leaves_the_same_group() {
    let calm = World::new().await;
    let message_ids = eventful(&calm).await;
    calm.wait_until_committed().await;
    let expected = places(&calm, &message_ids).await;
    assert_eq!(expected.iter().flatten().count(), 16);

    let mut world = World::without_carrier(Config::default()).await;
    for user_id in [ALICE, BOB] {
        world.live(user_id).await;
    }
    let message_ids = eventful(&world).await;
    // Further each time, with everything before once more.
    for records in (1..message_ids.len() * 2).step_by(3) {
        write_some_and_die(&world, records).await;
    }
    for _ in 0..3 {
        write_and_die(&world).await;
        assert_eq!(places(&world, &message_ids).await, expected);
        assert_eq!(world.group().await, calm.group().await);
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert_eq!(places(&world, &message_ids).await, expected);
    assert_eq!(world.group().await, calm.group().await);
    let changes = world.backends.changes.since(conversation(), 0, 100).await;
    assert_eq!(
        changes.expect("reads"),
        [],
        "who was made an administrator since may not recall"
    );
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
    // A member throughout gets every message that stands, once.
    for (id, place) in message_ids.iter().zip(&expected) {
        let pushed_ids = world.boat.pushed_to(session_number(ALICE));
        let push_count = pushed_ids
            .iter()
            .filter(|pushed_ids| **pushed_ids == id.get())
            .count();
        let is_own = world.group_from(*id).await == Some(user(ALICE));
        assert_eq!(push_count, usize::from(place.is_some() && !is_own), "{id}");
        assert_eq!(
            world.is_refused(*id).await,
            place.is_none() && !world.is_change(*id).await
        );
    }
    let newest: Vec<_> = world
        .newest_entries()
        .await
        .iter()
        .map(|(seq, _)| *seq)
        .collect();
    assert_eq!(newest, (1..=16).rev().collect::<Vec<_>>());
}

impl World {
    async fn group_from(&self, id: MessageId) -> Option<UserId> {
        let key = [(Owner::Group(group()), id)];
        let rows = self.backends.messages.rows(&key).await;
        rows.expect("reads")[0].as_ref().map(MessageRow::author)
    }

    async fn is_change(&self, id: MessageId) -> bool {
        let events = self.events(id).await;
        let is_change = |event: &LedgerEvent| matches!(event, LedgerEvent::Unchanged { .. });
        events.iter().any(|(_, event)| is_change(event))
    }
}

// proves S0-61e, S0-61h, S0-61i: an administrator recalls what another wrote, a mere member does not; its row is deleted.
#[tokio::test(start_paused = true)]
async fn an_administrator_recalls_and_another_member_does_not() {
    let world = World::new().await;
    for user_id in [ALICE, BOB, CAROL, DAVE] {
        world.live(user_id).await;
    }
    world.command(ALICE, create([BOB, CAROL])).await;
    let (first, second) = (world.say(BOB).await, world.say(BOB).await);
    world
        .command(ALICE, GroupCommand::Add(vec![user(DAVE)]))
        .await;
    let forbidden_id = world.ask(CAROL, first, ChangeKind::Recall).await;
    let stranger = world.ask(2000, first, ChangeKind::Recall).await;
    let newcomer = {
        let reaction = "👍".parse().expect("short");
        let react = ChangeKind::React { reaction, on: true };
        world.ask(DAVE, first, react).await
    };
    world
        .command(ALICE, GroupCommand::SetRole(user(CAROL), Role::Admin))
        .await;
    let recall_id = world.ask(CAROL, first, ChangeKind::Recall).await;
    world.ask(BOB, second, ChangeKind::Edit).await;
    world.wait_until_committed().await;

    let changes = world.backends.changes.since(conversation(), 0, 100).await;
    let changes = changes.expect("reads");
    let change_keys: Vec<_> = changes
        .iter()
        .map(|c| (c.rev, c.seq.0, c.asked.by))
        .collect();
    assert_eq!(change_keys, [(1, 1, user(CAROL)), (2, 2, user(BOB))]);
    assert_eq!(world.codes(CAROL), [Code::Forbidden]);
    assert_eq!(world.codes(DAVE), [Code::NotFound], "they may not read it");
    for id in [forbidden_id, stranger, newcomer] {
        assert!(world.is_change(id).await);
    }
    for user_id in [ALICE, BOB, CAROL] {
        assert!(world.has(user_id, recall_id), "{user_id}");
    }
    assert!(!world.has(DAVE, recall_id));
    let keys = [first, second].map(|id| (Owner::Group(group()), id));
    let deletions = world.backends.messages.deleted(&keys).await;
    assert_eq!(deletions.expect("reads"), [true, false]);
    let newest = world.newest_entries().await;
    assert_eq!(newest[1], (1, Vec::new()), "a page shows it as it is now");
    assert!(newest[0].1.starts_with(b"number"), "{newest:?}");
    let original = world.backends.messages.rows(&keys[1..]).await;
    let original = original.expect("reads")[0].clone().expect("stands");
    let original = original.placed.message.content.data.to_vec();
    assert_ne!(newest[0].1, original);
}

/// A redelivered message that was recalled since does not come back to the cache of pages.
#[tokio::test(start_paused = true)]
async fn a_redelivered_message_is_cached_as_it_is_now() {
    let world = World::without_carrier(Config::default()).await;
    world.command(ALICE, create([BOB])).await;
    let id = world.say(ALICE).await;
    world.ask(ALICE, id, ChangeKind::Recall).await;
    for _ in 0..2 {
        write_and_die(&world).await;
        assert_eq!(world.newest_entries().await, [(1, Vec::new())]);
        world
            .backends
            .timeline
            .forget(group())
            .await
            .expect("forgets");
    }
}

/// An administrator appointed behind it in the log may not recall, however often the record comes.
#[tokio::test(start_paused = true)]
async fn a_role_that_came_later_grants_nothing_before_it() {
    let mut world = World::without_carrier(Config::default()).await;
    world.command(ALICE, create([BOB])).await;
    let id = world.say(ALICE).await;
    let recall = world.ask(BOB, id, ChangeKind::Recall).await;
    world
        .command(ALICE, GroupCommand::SetRole(user(BOB), Role::Admin))
        .await;
    for _ in 0..2 {
        write_and_die(&world).await;
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let changes = world.backends.changes.since(conversation(), 0, 100).await;
    assert_eq!(changes.expect("reads"), []);
    assert!(world.is_change(recall).await);
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_send_is_dropped_in_a_group_too() {
    let world = World::new().await;
    world.command(ALICE, create([BOB])).await;
    let first = world.for_group(ALICE, None);
    let mut copy = world.for_group(ALICE, None);
    copy.send_id = first.send_id;
    let unsure = MessageTask {
        unsure: true,
        age: Duration::from_secs(5),
        ..from_session(copy, session_number(ALICE), &world.life)
    };
    world.accept(task(first.clone())).await;
    world.accept(unsure.clone()).await;
    world.wait_until_committed().await;
    world.accept(unsure).await;
    world
        .accept(from_session(
            first.clone(),
            session_number(ALICE),
            &world.life,
        ))
        .await;
    world.wait_until_committed().await;
    assert_eq!(world.group_history().await, numbered(&[first.id]));
    let echoes = world.boat.notice_frames(session_number(ALICE));
    assert_eq!(echoes.len(), 3);
    for echo in echoes {
        assert!(matches!(echo, ServerFrame::Placed(echo) if echo.id == first.id));
    }
}

/// A member takes a group from their list, unless a message came that they had not seen.
#[tokio::test(start_paused = true)]
async fn a_group_goes_from_one_members_list() {
    let world = World::new().await;
    world.live(BOB).await;
    world.command(ALICE, create([BOB])).await;
    let (first, second) = (world.say(ALICE).await, world.say(ALICE).await);
    world.ask(BOB, first, ChangeKind::Clear).await;
    world.ask(2000, second, ChangeKind::Clear).await;
    let clear_id = world.ask(BOB, second, ChangeKind::Clear).await;
    world.wait_until_committed().await;
    assert_eq!(world.codes(BOB), [Code::NotFound]);
    let frames = world.boat.frames();
    let event = frames.iter().find_map(|frame| match frame {
        ServerFrame::Listed(event) if event.id == clear_id => Some(event.kind),
        _ => None,
    });
    assert_eq!(event, Some(ListEventKind::Cleared(Seq(2))));
}

/// A boat that cannot be reached is tried again: with the message's text by then, and the user's
/// role by then.
#[tokio::test(start_paused = true)]
async fn a_retry_carries_the_present_text_and_role() {
    let world = World::new().await;
    world.live(ALICE).await;
    let number = session_number(BOB);
    world
        .sign_in(BOB, Platform::Web, number, Manner::Lost)
        .await;
    world.command(ALICE, create([BOB])).await;
    let id = world.say(ALICE).await;
    world
        .wait_until("retries", async || {
            world.records(Topic::Retry(1)).await.len() > 1
        })
        .await;
    world.boat.pushes.lock().clear();
    world.boat.drop_frames();
    world.ask(ALICE, id, ChangeKind::Recall).await;
    world
        .command(ALICE, GroupCommand::SetRole(user(BOB), Role::Admin))
        .await;
    world.boat.set(number, Manner::Acknowledges);
    world.wait_until_committed().await;
    assert!(
        world
            .notified_roles(BOB)
            .iter()
            .all(|role| *role == Some(Role::Admin))
    );
    assert_eq!(
        world.notified_roles(BOB).len(),
        2,
        "the creation, and the role"
    );
    let frames = world.boat.frames().into_iter();
    let texts = frames.filter_map(|frame| match frame {
        ServerFrame::Message(placed) => Some(placed.message.content.data),
        _ => None,
    });
    let texts: Vec<_> = texts.collect();
    assert_eq!(texts, [&b""[..]], "once, as nothing");
}

/// Groups that cannot be read hold up their conversations, and a cache holds up nobody.
#[tokio::test(start_paused = true)]
async fn stores_that_are_away_lose_nothing() {
    let world = World::new().await;
    world.live(BOB).await;
    world.faults.begin(TIMELINE, Fault::Unavailable);
    world.faults.begin(GROUPS, Fault::Unavailable);
    world.command(ALICE, create([BOB])).await;
    let id = world.say(ALICE).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.uncommitted().await, 2);
    world.faults.end(GROUPS);
    world.wait_until_committed().await;
    assert_eq!(world.group_history().await, numbered(&[id]));
    assert!(world.has(BOB, id));
    assert_eq!(world.newest_entries().await, []);
    // A group command that is held is not forgotten either.
    world.faults.begin(GROUPS, Fault::Unavailable);
    world
        .command(ALICE, GroupCommand::Remove(vec![user(BOB)]))
        .await;
    let later_id = world.say(ALICE).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.faults.end(GROUPS);
    world.wait_until_committed().await;
    assert_eq!(world.group_history().await, numbered(&[id, later_id]));
    assert!(!world.has(BOB, later_id));
}
