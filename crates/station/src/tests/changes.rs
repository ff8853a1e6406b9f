//! Changes at the door, and in the answers to devices; unread counts.

use api::task::Value;
use std::time::Duration;

use protocol::change::{
    ChangeKind, ChangeOf, ChangeRequest, ChangeRow, MessageChange, OrderedChange,
};
use protocol::frame::{
    ChangePage, HiddenPage, HistoryPage, HistoryRange, Send, Summary, SyncAnswer, SyncQuery,
};
use protocol::history::Version;
use protocol::message::Content;
use protocol::receipt::ReceiptKind;
use protocol::unread::Tally;
use protocol::{Code, Message, MessageId, Options, Placed, Seq, Timestamp};

use super::receipts::receipt_item;
use super::world::*;

fn change_send(to: i64, number: u8, subject: MessageId, kind: ChangeKind, text: &str) -> Send {
    let mut send = send(to, number, text);
    send.content.change = Some(Box::new(ChangeOf {
        subject: Some(subject),
        kind,
    }));
    send
}

fn thumb() -> ChangeKind {
    ChangeKind::React {
        reaction: "👍".parse().expect("short"),
        on: true,
    }
}

impl World {
    /// A change as the carrier leaves it.
    async fn save_change(&self, entry: &Placed, by: i64, rev: u64, kind: ChangeKind, text: &str) {
        let conversation = entry.conversation;
        let content = Content {
            change: Some(Box::new(ChangeOf {
                subject: Some(entry.message.id),
                kind,
            })),
            ..Content::text(text)
        };
        let message = Message {
            id: MessageId::new(entry.message.id.get() + 500).expect("positive"),
            from: user(by),
            content,
            ..entry.message.clone()
        };
        let version = Version {
            epoch: 1,
            offset: 100 + rev,
        };
        let change = OrderedChange {
            rev,
            seq: entry.position.seq,
            asked: ChangeRequest::of(&message).expect("a change"),
        };
        let row = ChangeRow {
            conversation,
            version,
            author: entry.message.from,
            changed: change,
        };
        self.backends.changes.save(vec![row]).await.expect("saves");
        let heads = self.backends.heads.load(&[conversation]).await;
        let head = heads.expect("loads")[0].expect("a head");
        let head = head.moved_by_change(version, message.id, head.rev + 1);
        assert_eq!(head.rev, rev);
        let save = self.backends.heads.save(vec![(conversation, head)]).await;
        save.expect("saves");
        let now = self.backends.clock.now();
        let protocol::ConversationId::Private { low, high } = conversation else {
            panic!("private");
        };
        let rows = [low, high].map(|owner| {
            protocol::conversation::ConversationRow::of(owner, conversation, &head, now)
        });
        let rows = rows.into_iter().flatten().collect();
        self.backends.conversations.save(rows).await.expect("saves");
    }

    async fn row(&self, number: i64, peer: i64) -> Summary {
        let page = self.list(number, Timestamp::ZERO, None).await;
        let mut rows = page.conversations.into_iter();
        rows.find(|row| row.conversation == between(number, peer))
            .expect("listed")
    }

    async fn changes(&self, number: i64, peer: i64, cursor: u64) -> Result<ChangePage, Code> {
        let query = SyncQuery::Changes {
            conversation: between(1, peer.max(number)),
            after: cursor,
            limit: 2,
        };
        match self.ask(number, query).await? {
            SyncAnswer::Changes(page) => Ok(page),
            other => panic!("no changes: {other:?}"),
        }
    }

    async fn page(&self, number: i64) -> HistoryPage {
        let range = HistoryRange::Forward { after: Seq::ZERO };
        let page = self.history(number, between(1, 2), range, 100).await;
        page.expect("a page")
    }
}

/// A sender who may not change hears so at once; a message that is not placed yet is the writer's
/// to judge.
#[tokio::test(start_paused = true)]
async fn the_door_says_what_the_writer_would() {
    let world = world().await;
    let entry = world.place(1, 2, 1, "hello").await;
    let subject = entry.message.id;
    let submit = |send| world.submit_one(item(2, send));
    let recall = change_send(1, 1, subject, ChangeKind::Recall, "");
    assert_eq!(submit(recall).await, Err(Code::Forbidden));
    let edit = change_send(1, 2, subject, ChangeKind::Edit, "mine");
    assert_eq!(submit(edit).await, Err(Code::Forbidden));
    let words = change_send(1, 3, subject, ChangeKind::Recall, "words");
    assert_eq!(submit(words).await, Err(Code::InvalidArgument));
    let empty = change_send(2, 4, subject, ChangeKind::Edit, "");
    let empty = world.submit_one(item(1, empty)).await;
    assert_eq!(empty, Err(Code::InvalidArgument));
    let other_conversation = change_send(3, 5, subject, ChangeKind::Recall, "");
    let old = MessageId::floor_of(world.backends.clock.now() - Duration::from_secs(3600));
    let too_old = change_send(1, 6, old, thumb(), "");
    assert_eq!(submit(too_old).await, Err(Code::NotFound));
    let in_another = world.submit_one(item(1, other_conversation)).await;
    assert!(in_another.is_ok() || in_another == Err(Code::NotFound));

    assert!(
        world
            .submit_one(item(2, change_send(1, 7, subject, thumb(), "")))
            .await
            .is_ok()
    );
    let own = change_send(2, 8, subject, ChangeKind::Recall, "");
    assert!(world.submit_one(item(1, own)).await.is_ok());
    let new = MessageId::new(MessageId::floor_of(world.backends.clock.now()).get() + 5);
    let early = change_send(2, 9, new.expect("positive"), ChangeKind::Recall, "");
    assert!(world.submit_one(item(1, early)).await.is_ok());
    let records = world.log().await;
    for record in &records {
        let task = protocol::record::Task::decode(record.value.clone()).expect("ours");
        let protocol::record::Work::Message(task) = task.work else {
            panic!("a message");
        };
        assert_eq!(task.message.options, Options::NONE, "told, never stored");
    }
}

/// A resend of an accepted change is answered as accepted, whatever the message is by now.
#[tokio::test(start_paused = true)]
async fn a_change_is_not_judged_twice() {
    let world = world().await;
    let entry = world.place(1, 2, 1, "hello").await;
    let edit = change_send(2, 1, entry.message.id, ChangeKind::Edit, "better");
    let first = world.submit_one(item(1, edit.clone())).await;
    settle().await;
    world
        .save_change(&entry, 1, 1, ChangeKind::Recall, "")
        .await;
    let resend = world.submit_one(item(1, as_resend(edit, 1, Duration::from_secs(1))));
    assert_eq!(resend.await, first);
    let late = change_send(2, 2, entry.message.id, ChangeKind::Edit, "later");
    assert_eq!(world.submit_one(item(1, late)).await, Err(Code::NotFound));
}

/// Later readers see the same as the others saw.
#[tokio::test(start_paused = true)]
async fn pages_and_lists_show_messages_as_they_are_now() {
    let world = world().await;
    let first = world.place(1, 2, 1, "secret").await;
    let second = world.place(1, 2, 2, "helo").await;
    world
        .save_change(&first, 1, 1, ChangeKind::Recall, "")
        .await;
    world
        .save_change(&second, 1, 2, ChangeKind::Edit, "hello")
        .await;
    world.save_change(&second, 2, 3, thumb(), "").await;
    let page = world.page(2).await;
    let texts: Vec<_> = page
        .messages
        .iter()
        .map(|entry| message_text(&entry.message))
        .collect();
    assert_eq!(texts, ["", "hello"]);
    assert_eq!(page.rev, 3);
    assert!(page.marks[&Seq(1)].recalled.is_some());
    let marks = &page.marks[&Seq(2)];
    assert!(marks.edited.is_some());
    assert_eq!(marks.reactions[0].1, [user(2)]);
    let row = world.row(2, 1).await;
    assert_eq!(row.rev, 3);
    assert_eq!(message_text(&row.newest.expect("there").message), "hello");
    assert_eq!(row.marks.as_ref(), Some(marks));

    let page = world.changes(2, 1, 0).await.expect("a page");
    let revs: Vec<_> = page.changes.iter().map(|change| change.rev).collect();
    assert_eq!((revs, page.last_rev, page.more), (vec![1, 2], 3, true));
    let rest = world.changes(2, 1, 2).await.expect("a page");
    assert_eq!((rest.changes.len(), rest.more), (1, false));
    assert_eq!(world.changes(2, 1, 4).await, Err(Code::Reset));
    let query = SyncQuery::Changes {
        conversation: between(1, 2),
        after: 0,
        limit: 9,
    };
    assert_eq!(world.ask(3, query).await, Err(Code::Forbidden));
}

/// Whoever asks for the changes gets no text of a message that was recalled, whichever page the recall is on.
#[tokio::test(start_paused = true)]
async fn edits_of_a_recalled_message_have_no_content() {
    let world = world().await;
    let first = world.place(1, 2, 1, "secret").await;
    let second = world.place(1, 2, 2, "helo").await;
    world
        .save_change(&first, 1, 1, ChangeKind::Edit, "secret two")
        .await;
    world
        .save_change(&second, 1, 2, ChangeKind::Edit, "hello")
        .await;
    let texts = async |number, peer| {
        let page = world.changes(number, peer, 0).await.expect("a page");
        let text = |change: &OrderedChange| match &change.asked.change {
            MessageChange::Edit(content) => content.data.clone(),
            other => panic!("{other:?}"),
        };
        page.changes.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(texts(2, 1).await, ["secret two", "hello"]);
    world
        .save_change(&first, 1, 3, ChangeKind::Recall, "")
        .await;
    assert_eq!(texts(2, 1).await, ["", "hello"]);
    assert_eq!(texts(1, 2).await, ["", "hello"]);
}

// proves S4-09 in part, S4-35: unread counts what others wrote behind what was read or cleared, less what was recalled.
#[tokio::test(start_paused = true)]
async fn unread_is_counted_by_places() {
    let world = world().await;
    let mut entries = Vec::new();
    for seq in 1..=10 {
        let (from, to) = if seq % 3 == 0 { (2, 1) } else { (1, 2) };
        entries.push(world.place(from, to, seq, "text").await);
    }
    assert_eq!(world.row(2, 1).await.unread, 7);
    assert_eq!(world.row(1, 2).await.unread, 3);

    let fourth = &entries[3];
    world
        .acknowledge(&[receipt_item(2, ReceiptKind::Read, &[fourth])])
        .await;
    let row = world.row(2, 1).await;
    assert_eq!((row.read_seq, row.unread), (Seq(4), 4));
    // A message that was read, one of the user's own, and one that counted.
    world
        .save_change(&entries[0], 1, 1, ChangeKind::Recall, "")
        .await;
    world
        .save_change(&entries[5], 2, 2, ChangeKind::Recall, "")
        .await;
    world
        .save_change(&entries[6], 1, 3, ChangeKind::Recall, "")
        .await;
    assert_eq!(world.row(2, 1).await.unread, 3);
    assert_eq!(world.row(1, 2).await.unread, 2);

    let place = Tally {
        seq: Seq(8),
        incoming: 6,
    };
    let clears = vec![(user(2), between(1, 2), place)];
    let now = world.backends.clock.now();
    let outcome = world.backends.conversations.set_cleared(clears, now).await;
    outcome.expect("saves");
    let row = world.row(2, 1).await;
    assert_eq!((row.cleared_seq, row.unread), (Seq(8), 1));
}

/// In the order in which they were hidden, page by page, for the user who hid them; the list says
/// how far they go.
#[tokio::test(start_paused = true)]
async fn hidden_messages_are_listed_only_for_their_user() {
    let world = world_with(crate::Config {
        page_max: 2,
        ..crate::Config::default()
    })
    .await;
    for seq in 1..=5 {
        world.place(2, 1, seq, "text").await;
    }
    assert_eq!(world.row(1, 2).await.hidden, 0);
    let version = |offset| Version { epoch: 1, offset };
    let hides = [(20, 4), (21, 1), (25, 3)];
    let hides = hides.map(|(offset, seq)| (user(1), between(1, 2), version(offset), Seq(seq)));
    let save = (world.backends.conversations).hide(hides.to_vec(), world.backends.clock.now());
    save.await.expect("saves");
    let row = world.row(1, 2).await;
    assert_eq!((row.hidden, row.unread), (version(25).mark(), 5));
    assert_eq!(world.row(2, 1).await.hidden, 0);
    let ask = async |number, cursor, limit| {
        let query = SyncQuery::Hidden {
            conversation: between(1, 2),
            after: cursor,
            limit,
        };
        match world.ask(number, query).await? {
            SyncAnswer::Hidden(page) => Ok(page),
            other => panic!("{other:?}"),
        }
    };
    let page = |seqs: &[u64], offset, more| {
        Ok::<_, Code>(HiddenPage {
            seqs: seqs.iter().copied().map(Seq).collect(),
            last: version(offset).mark(),
            more,
        })
    };
    assert_eq!(ask(1, 0, 9).await, page(&[4, 1], 21, true));
    assert_eq!(ask(1, version(21).mark(), 9).await, page(&[3], 25, false));
    assert_eq!(ask(1, version(25).mark(), 9).await, page(&[], 25, false));
    let nothing = ask(2, 0, 9).await.map(|page| page.seqs);
    assert_eq!(nothing, Ok(vec![]));
    assert_eq!(ask(3, 0, 9).await, Err(Code::Forbidden));
}

// proves S4-29 in part, S4-30:
// a device that has nothing is not told of what was taken from the list; one that has it, is.
#[tokio::test(start_paused = true)]
async fn cleared_conversation_is_told_only_to_devices_with_it() {
    let world = world_with(crate::Config {
        page_max: 2,
        ..crate::Config::default()
    })
    .await;
    for peer in 2..=6 {
        world.place(peer, 1, 1, "hi").await;
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    let version = world.list(1, Timestamp::ZERO, None).await.version;
    let place = Tally {
        seq: Seq(1),
        incoming: 1,
    };
    let clears = [2, 3, 4, 6].map(|peer| (user(1), between(1, peer), place));
    let now = world.backends.clock.now();
    let outcome = world
        .backends
        .conversations
        .set_cleared(clears.to_vec(), now)
        .await;
    outcome.expect("saves");
    let full = world.list(1, Timestamp::ZERO, None).await;
    let rows: Vec<_> = full
        .conversations
        .iter()
        .map(|row| row.conversation)
        .collect();
    assert_eq!((rows, full.more), (vec![between(1, 5)], false));
    tokio::time::advance(Duration::from_secs(5)).await;
    let difference = world.list(1, version, None).await;
    let rows = difference.conversations.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.conversation, row.cleared_seq, row.unread))
        .collect();
    assert_eq!(rows, [2, 3].map(|peer| (between(1, peer), Seq(1), 0)));
    assert!(difference.more);
    // By name either of the two gets the row.
    let row = async |number, one, other| {
        let conversation = between(one, other);
        match world.ask(number, SyncQuery::Row { conversation }).await? {
            SyncAnswer::Row(row) => Ok(row.map(|row| (row.seq, row.cleared_seq, row.unread))),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(row(1, 1, 2).await, Ok(Some((Seq(1), Seq(1), 0))));
    assert_eq!(row(2, 1, 2).await, Ok(Some((Seq(1), Seq::ZERO, 0))));
    assert_eq!(row(1, 1, 9).await, Ok(None));
    assert_eq!(row(3, 1, 2).await, Err(Code::Forbidden));
    world.place(2, 1, 2, "here again").await;
    let full = world.list(1, Timestamp::ZERO, None).await;
    let listed_row = full
        .conversations
        .iter()
        .find(|row| row.conversation == between(1, 2));
    assert_eq!(listed_row.map(|row| row.unread), Some(1));
}
