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

use super::receipts::receipt_of;
use super::world::*;

fn asking(to: i64, number: u8, subject: MessageId, kind: ChangeKind, text: &str) -> Send {
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
    async fn made(&self, placed: &Placed, by: i64, rev: u64, kind: ChangeKind, text: &str) {
        let conversation = placed.conversation;
        let content = Content {
            change: Some(Box::new(ChangeOf {
                subject: Some(placed.message.id),
                kind,
            })),
            ..Content::text(text)
        };
        let message = Message {
            id: MessageId::new(placed.message.id.get() + 500).expect("positive"),
            from: user(by),
            content,
            ..placed.message.clone()
        };
        let version = Version {
            epoch: 1,
            offset: 100 + rev,
        };
        let changed = OrderedChange {
            rev,
            seq: placed.position.seq,
            asked: ChangeRequest::of(&message).expect("a change"),
        };
        let row = ChangeRow {
            conversation,
            version,
            author: placed.message.from,
            changed,
        };
        self.backends.changes.save(vec![row]).await.expect("saves");
        let heads = self.backends.heads.load(&[conversation]).await;
        let head = heads.expect("loads")[0].expect("a head");
        let head = head.moved_by_change(version, message.id, head.rev + 1);
        assert_eq!(head.rev, rev);
        let saved = self.backends.heads.save(vec![(conversation, head)]).await;
        saved.expect("saves");
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

    async fn row(&self, who: i64, with: i64) -> Summary {
        let page = self.list(who, Timestamp::ZERO, None).await;
        let mut rows = page.conversations.into_iter();
        rows.find(|row| row.conversation == between(who, with))
            .expect("listed")
    }

    async fn changes(&self, who: i64, with: i64, after: u64) -> Result<ChangePage, Code> {
        let query = SyncQuery::Changes {
            conversation: between(1, with.max(who)),
            after,
            limit: 2,
        };
        match self.ask(who, query).await? {
            SyncAnswer::Changes(page) => Ok(page),
            other => panic!("no changes: {other:?}"),
        }
    }

    async fn page(&self, who: i64) -> HistoryPage {
        let range = HistoryRange::Forward { after: Seq::ZERO };
        let page = self.history(who, between(1, 2), range, 100).await;
        page.expect("a page")
    }
}

/// A sender who may not change hears so at once; a message that is not placed yet is the writer's
/// to judge.
#[tokio::test(start_paused = true)]
async fn the_door_says_what_the_writer_would() {
    let world = world().await;
    let placed = world.place(1, 2, 1, "hello").await;
    let subject = placed.message.id;
    let refused = |send| world.submit_one(item(2, send));
    let recall = asking(1, 1, subject, ChangeKind::Recall, "");
    assert_eq!(refused(recall).await, Err(Code::Forbidden));
    let edit = asking(1, 2, subject, ChangeKind::Edit, "mine");
    assert_eq!(refused(edit).await, Err(Code::Forbidden));
    let words = asking(1, 3, subject, ChangeKind::Recall, "words");
    assert_eq!(refused(words).await, Err(Code::InvalidArgument));
    let empty = asking(2, 4, subject, ChangeKind::Edit, "");
    let empty = world.submit_one(item(1, empty)).await;
    assert_eq!(empty, Err(Code::InvalidArgument));
    let elsewhere = asking(3, 5, subject, ChangeKind::Recall, "");
    let old = MessageId::floor_of(world.backends.clock.now() - Duration::from_secs(3600));
    let never = asking(1, 6, old, thumb(), "");
    assert_eq!(refused(never).await, Err(Code::NotFound));
    let in_another = world.submit_one(item(1, elsewhere)).await;
    assert!(in_another.is_ok() || in_another == Err(Code::NotFound));

    assert!(
        world
            .submit_one(item(2, asking(1, 7, subject, thumb(), "")))
            .await
            .is_ok()
    );
    let own = asking(2, 8, subject, ChangeKind::Recall, "");
    assert!(world.submit_one(item(1, own)).await.is_ok());
    let new = MessageId::new(MessageId::floor_of(world.backends.clock.now()).get() + 5);
    let early = asking(2, 9, new.expect("positive"), ChangeKind::Recall, "");
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
    let placed = world.place(1, 2, 1, "hello").await;
    let edit = asking(2, 1, placed.message.id, ChangeKind::Edit, "better");
    let first = world.submit_one(item(1, edit.clone())).await;
    settle().await;
    world.made(&placed, 1, 1, ChangeKind::Recall, "").await;
    let resent = world.submit_one(item(1, again(edit, 1, Duration::from_secs(1))));
    assert_eq!(resent.await, first);
    let late = asking(2, 2, placed.message.id, ChangeKind::Edit, "later");
    assert_eq!(world.submit_one(item(1, late)).await, Err(Code::NotFound));
}

/// Later readers see the same as the others saw.
#[tokio::test(start_paused = true)]
async fn pages_and_lists_show_messages_as_they_are_now() {
    let world = world().await;
    let first = world.place(1, 2, 1, "secret").await;
    let second = world.place(1, 2, 2, "helo").await;
    world.made(&first, 1, 1, ChangeKind::Recall, "").await;
    world.made(&second, 1, 2, ChangeKind::Edit, "hello").await;
    world.made(&second, 2, 3, thumb(), "").await;
    let page = world.page(2).await;
    let texts: Vec<_> = page
        .messages
        .iter()
        .map(|placed| text_of(&placed.message))
        .collect();
    assert_eq!(texts, ["", "hello"]);
    assert_eq!(page.rev, 3);
    assert!(page.marks[&Seq(1)].recalled.is_some());
    let marks = &page.marks[&Seq(2)];
    assert!(marks.edited.is_some());
    assert_eq!(marks.reactions[0].1, [user(2)]);
    let row = world.row(2, 1).await;
    assert_eq!(row.rev, 3);
    assert_eq!(text_of(&row.newest.expect("there").message), "hello");
    assert_eq!(row.marks.as_ref(), Some(marks));

    let page = world.changes(2, 1, 0).await.expect("a page");
    let revs: Vec<_> = page.changes.iter().map(|changed| changed.rev).collect();
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
        .made(&first, 1, 1, ChangeKind::Edit, "secret two")
        .await;
    world.made(&second, 1, 2, ChangeKind::Edit, "hello").await;
    let texts = async |who, with| {
        let page = world.changes(who, with, 0).await.expect("a page");
        let text = |changed: &OrderedChange| match &changed.asked.change {
            MessageChange::Edit(content) => content.data.clone(),
            other => panic!("{other:?}"),
        };
        page.changes.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(texts(2, 1).await, ["secret two", "hello"]);
    world.made(&first, 1, 3, ChangeKind::Recall, "").await;
    assert_eq!(texts(2, 1).await, ["", "hello"]);
    assert_eq!(texts(1, 2).await, ["", "hello"]);
}

// proves S4-09 in part, S4-35: unread counts what others wrote behind what was read or cleared, less what was recalled.
#[tokio::test(start_paused = true)]
async fn unread_is_counted_by_places() {
    let world = world().await;
    let mut placed = Vec::new();
    for seq in 1..=10 {
        let (from, to) = if seq % 3 == 0 { (2, 1) } else { (1, 2) };
        placed.push(world.place(from, to, seq, "text").await);
    }
    assert_eq!(world.row(2, 1).await.unread, 7);
    assert_eq!(world.row(1, 2).await.unread, 3);

    let fourth = &placed[3];
    world
        .acknowledge(&[receipt_of(2, ReceiptKind::Read, &[fourth])])
        .await;
    let row = world.row(2, 1).await;
    assert_eq!((row.read_seq, row.unread), (Seq(4), 4));
    // A message that was read, one of the user's own, and one that counted.
    world.made(&placed[0], 1, 1, ChangeKind::Recall, "").await;
    world.made(&placed[5], 2, 2, ChangeKind::Recall, "").await;
    world.made(&placed[6], 1, 3, ChangeKind::Recall, "").await;
    assert_eq!(world.row(2, 1).await.unread, 3);
    assert_eq!(world.row(1, 2).await.unread, 2);

    let place = Tally {
        seq: Seq(8),
        incoming: 6,
    };
    let cleared = vec![(user(2), between(1, 2), place)];
    let now = world.backends.clock.now();
    let saved = world.backends.conversations.set_cleared(cleared, now).await;
    saved.expect("saves");
    let row = world.row(2, 1).await;
    assert_eq!((row.cleared_seq, row.unread), (Seq(8), 1));
}

/// In the order in which they were hidden, page by page, for the user who hid them; the list says
/// how far they go.
#[tokio::test(start_paused = true)]
async fn what_was_hidden_is_told_to_who_hid_it() {
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
    let hidden = [(20, 4), (21, 1), (25, 3)];
    let hidden = hidden.map(|(offset, seq)| (user(1), between(1, 2), version(offset), Seq(seq)));
    let saved = (world.backends.conversations).hide(hidden.to_vec(), world.backends.clock.now());
    saved.await.expect("saves");
    let row = world.row(1, 2).await;
    assert_eq!((row.hidden, row.unread), (version(25).mark(), 5));
    assert_eq!(world.row(2, 1).await.hidden, 0);
    let ask = async |who, after, limit| {
        let query = SyncQuery::Hidden {
            conversation: between(1, 2),
            after,
            limit,
        };
        match world.ask(who, query).await? {
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
async fn what_was_cleared_is_told_to_who_has_it() {
    let world = world_with(crate::Config {
        page_max: 2,
        ..crate::Config::default()
    })
    .await;
    for peer in 2..=6 {
        world.place(peer, 1, 1, "hi").await;
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    let known = world.list(1, Timestamp::ZERO, None).await.version;
    let place = Tally {
        seq: Seq(1),
        incoming: 1,
    };
    let cleared = [2, 3, 4, 6].map(|peer| (user(1), between(1, peer), place));
    let now = world.backends.clock.now();
    let saved = world
        .backends
        .conversations
        .set_cleared(cleared.to_vec(), now)
        .await;
    saved.expect("saves");
    let full = world.list(1, Timestamp::ZERO, None).await;
    let rows: Vec<_> = full
        .conversations
        .iter()
        .map(|row| row.conversation)
        .collect();
    assert_eq!((rows, full.more), (vec![between(1, 5)], false));
    tokio::time::advance(Duration::from_secs(5)).await;
    let difference = world.list(1, known, None).await;
    let rows = difference.conversations.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.conversation, row.cleared_seq, row.unread))
        .collect();
    assert_eq!(rows, [2, 3].map(|peer| (between(1, peer), Seq(1), 0)));
    assert!(difference.more);
    // By name either of the two gets the row.
    let row = async |who, one, other| {
        let conversation = between(one, other);
        match world.ask(who, SyncQuery::Row { conversation }).await? {
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
    let again = full
        .conversations
        .iter()
        .find(|row| row.conversation == between(1, 2));
    assert_eq!(again.map(|row| row.unread), Some(1));
}
