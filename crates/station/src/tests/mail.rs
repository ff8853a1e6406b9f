//! Waiting mail: paged, read again if bodies are gone, acknowledged away.

use std::time::Duration;

use api::codec::{decode_server, encode_message};
use api::station::{MailAck, MailPageRequest};
use api::v1;
use backend::embedded::{Table, WriteBatch};
use backend::hook::{Calls, Fault};
use bytes::Bytes;
use protocol::change::ChangeKind;
use protocol::frame::ServerFrame;
use protocol::group::{GroupSettings, Role};
use protocol::ledger::LedgerEvent;
use protocol::mailbox::{Mail, MailCursor, RouteRequest};
use protocol::message::Target;
use protocol::presence::DeniedBoats;
use protocol::session::{Page, PageItem};
use protocol::{MessageId, Placed, Platform, Recipient, UserId};
use tokio::time::Instant;
use tonic::Status;

use super::groups::CLOSED;
use super::world::*;
use crate::Config;

const PHONE: Platform = Platform::Ios;

impl World {
    /// Stores a message for its recipient, as a carrier would.
    pub(super) async fn store(&self, entry: &Placed) {
        let Recipient::User(to) = entry.message.to else {
            panic!("{:?} is no user", entry.message.to);
        };
        self.store_for(to, entry).await;
    }

    async fn store_for(&self, to: UserId, entry: &Placed) {
        let request = RouteRequest {
            user: to,
            platforms: vec![PHONE],
            forced_platforms: Vec::new(),
            mail: Some(Mail {
                id: entry.message.id,
                accepted_at: entry.message.accepted_at,
                body: encode_message(entry),
            }),
            denied_boats: DeniedBoats::default(),
            now: self.backends.clock.now(),
        };
        let outcome = self.backends.mailbox.route_or_store(vec![request]).await;
        let outcome = outcome.into_iter().next().expect("one").expect("stored");
        assert_eq!(outcome.stored_platforms, [PHONE]);
    }

    pub(super) async fn mail(&self, cursor: Option<MailCursor>, limit: u32) -> Page {
        self.try_mail(cursor, limit).await.expect("answered")
    }

    async fn try_mail(&self, cursor: Option<MailCursor>, limit: u32) -> Result<Page, Status> {
        let request = MailPageRequest {
            user: user(2),
            platform: PHONE,
            cursor,
            limit,
            session: None,
            ticket: None,
        };
        let request = v1::MailPageRequest::from(request);
        let answer = self.client.clone().mail_page(request).await?;
        Ok(answer.into_inner().try_into().expect("whole"))
    }

    async fn acknowledge_ids(&self, ids: &[MessageId]) {
        assert_eq!(self.acknowledge_mail(&[(2, ids)]).await, [0u32; 0]);
    }

    /// Returns the indices of acknowledgements to be sent again.
    async fn acknowledge_mail(&self, items: &[(i64, &[MessageId])]) -> Vec<u32> {
        let item = |&(number, ids): &(i64, &[MessageId])| MailAck {
            user: user(number),
            platform: PHONE,
            session: session(22),
            ids: ids.to_vec(),
            ticket: None,
        };
        let request = v1::MailAckRequest {
            items: items.iter().map(|one| (&item(one)).into()).collect(),
        };
        let answer = self.client.clone().mail_ack(request).await;
        answer.expect("answered").into_inner().unanswered
    }

    async fn ledger_events(&self, id: MessageId) -> Vec<LedgerEvent> {
        let traces = self.backends.ledger.trace(&[id]).await.expect("readable");
        traces[0].iter().map(|entry| entry.event.clone()).collect()
    }
}

fn ids(page: &Page) -> Vec<MessageId> {
    page.mails.iter().map(|mail| mail.id).collect()
}

// proves S3-07: what waits stays until the device says that it has it.
#[tokio::test(start_paused = true)]
async fn mail_waits_until_it_is_acknowledged() {
    let world = world().await;
    let mut all = Vec::new();
    for seq in 1..=5 {
        let entry = world.place(1, 2, seq, "x").await;
        world.store(&entry).await;
        all.push(entry.message.id);
    }
    assert!(world.sign_in(2, PHONE, 22).await.mail_waits);
    let first = world.mail(None, 3).await;
    assert_eq!(ids(&first), all[..3]);
    let second = world.mail(first.next, 3).await;
    assert_eq!((ids(&second), second.next), (all[3..].to_vec(), None));
    assert_eq!(
        ids(&world.mail(None, 0).await),
        all,
        "paging removes nothing"
    );

    let unknown_id = MessageId::new(9).expect("positive");
    world.acknowledge_ids(&[all[0], all[4], unknown_id]).await;
    assert_eq!(ids(&world.mail(None, 0).await), all[1..4]);
    let event = LedgerEvent::Fetched {
        session: session(22),
    };
    let expected = std::slice::from_ref(&event);
    assert_eq!(world.ledger_events(all[0]).await, expected);
    assert_eq!(world.ledger_events(unknown_id).await, [], "it did not wait");
    world.acknowledge_ids(&[all[0]]).await;
    assert_eq!(world.ledger_events(all[0]).await, expected, "once");
}

/// One server of the mailbox is away: mail that the others removed is in the ledger, and is not
/// sent again.
#[tokio::test(start_paused = true)]
async fn unanswered_acknowledgement_leaves_the_others_answered() {
    let world = world().await;
    let entry = world.place(1, 2, 1, "x").await;
    world.store(&entry).await;
    assert!(world.sign_in(2, PHONE, 22).await.mail_waits);
    let id = entry.message.id;
    world.lose_mailboxes(&[3]);
    let items: [(i64, &[MessageId]); 3] = [(3, &[id]), (2, &[id]), (3, &[id])];
    assert_eq!(world.acknowledge_mail(&items).await, [0, 2]);
    assert_eq!(world.ledger_events(id).await.len(), 1);
    world.restore_mailboxes();
    assert_eq!(world.acknowledge_mail(&items[2..]).await, [0u32; 0]);
}

#[tokio::test(start_paused = true)]
async fn page_of_mail_ends_before_the_byte_limit() {
    let world = world_with(Config {
        page_bytes_max: 300,
        ..Config::default()
    })
    .await;
    let mut all = Vec::new();
    for seq in 1..=5 {
        let entry = world.place(1, 2, seq, &"x".repeat(100)).await;
        world.store(&entry).await;
        all.push(entry.message.id);
    }
    let (mut paged_ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = world.mail(cursor, 0).await;
        assert!((1..=2).contains(&page.mails.len()), "{}", page.mails.len());
        paged_ids.extend(ids(&page));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(paged_ids, all);
}

// design 5: a page that meets a missing body reads it from history, and gives the same bytes.
#[tokio::test(start_paused = true)]
async fn mail_without_a_body_is_read_from_history() {
    let world = world().await;
    let first = world.place(1, 2, 1, "first").await;
    let second = world.place(1, 2, 2, "second").await;
    world.store(&first).await;
    world.store(&second).await;
    let whole = world.mail(None, 0).await;
    let removal = world.engine.remove_range(Table::MailBody, .., 1000);
    assert!(removal.expect("removed") > 0);
    let third = world.place(1, 2, 3, "third").await;
    world.store(&third).await;
    let reread = world.mail(None, 0).await;
    assert_eq!(reread.mails[..2], whole.mails);
    assert_eq!(ids(&reread)[2], third.message.id);
    assert_eq!(world.mail(None, 0).await, reread, "paging removed nothing");
}

#[tokio::test(start_paused = true)]
async fn mail_that_history_does_not_have_either_is_removed() {
    let world = world().await;
    let lost_entry = world.placed(1, 2, 1, "lost");
    world.store(&lost_entry).await;
    let kept_entry = world.place(1, 2, 2, "kept").await;
    world.store(&kept_entry).await;
    let removal = world.engine.remove_range(Table::MailBody, .., 1000);
    assert!(removal.expect("removed") > 0);
    assert_eq!(ids(&world.mail(None, 0).await), [kept_entry.message.id]);
    let target = Target {
        user: user(2),
        platform: PHONE,
    };
    let count = world.backends.mailbox.waiting(target).await;
    assert_eq!(count.expect("readable"), 1);
}

/// A mailbox that cannot reach a body now answers no page (`backend`: a slot of Redis moves).
/// Private history has no mail of groups: such mail would be removed if its body counted as
/// missing.
#[tokio::test(start_paused = true)]
async fn a_page_whose_body_is_unavailable_removes_nothing() {
    let world = world().await;
    let entry = world.placed(1, 2, 1, "waits");
    world.store(&entry).await;
    world.lose_mailboxes(&[2]);
    for _ in 0..3 {
        assert!(world.try_mail(None, 0).await.is_err());
    }
    world.restore_mailboxes();
    assert_eq!(ids(&world.mail(None, 0).await), [entry.message.id]);
}

/// Of a page of one entry each: two are gone, and the third comes at once.
#[tokio::test(start_paused = true)]
async fn pages_of_mail_that_is_gone_are_passed_over() {
    let world = world().await;
    for seq in 1..=2 {
        world.store(&world.placed(1, 2, seq, "lost")).await;
    }
    let kept_entry = world.place(1, 2, 3, "kept").await;
    world.store(&kept_entry).await;
    let removal = world.engine.remove_range(Table::MailBody, .., 1000);
    assert!(removal.expect("removed") > 0);
    assert_eq!(ids(&world.mail(None, 1).await), [kept_entry.message.id]);
}

fn texts(page: &Page) -> Vec<String> {
    let text = |item: &PageItem| match decode_server(item.frame.clone(), usize::MAX) {
        Ok(ServerFrame::Message(entry)) => message_text(&entry.message),
        other => panic!("{other:?}"),
    };
    page.mails.iter().map(text).collect()
}

/// Mail of a group says what the user may read: a present member all that is so by now, a former one what was so until
/// then, and a user who came back into a closed group nothing of what was written meanwhile. Nobody what was recalled.
#[tokio::test(start_paused = true)]
async fn mail_of_a_former_member_has_no_later_edit() {
    let world = world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    let mut entries = Vec::new();
    for text in ["one", "two", "three"] {
        let entry = world.say(7, 1, text).await;
        world.store_for(user(2), &entry).await;
        entries.push(entry);
    }
    let edit = async |index: usize, offset: u64, text: &str| {
        let entry = &entries[index];
        world
            .group_change(entry, 1, offset, ChangeKind::Edit, text)
            .await;
    };
    let mail = async || texts(&world.mail(None, 0).await);
    let change_role = async |settings, role| {
        tokio::time::sleep(Duration::from_millis(10)).await;
        world.set_role(7, settings, 2, role).await;
    };
    edit(0, 10, "then").await;
    edit(1, 10, "now").await;
    assert_eq!(mail().await, ["then", "now", "three"]);
    change_role(CLOSED, None).await;
    assert_eq!(mail().await, ["then", "now", "three"]);
    edit(1, 5000, "afterwards").await;
    edit(2, 5000, "afterwards").await;
    assert_eq!(mail().await, ["then", "two", "three"]);
    change_role(CLOSED, Some(Role::Member)).await;
    assert_eq!(mail().await, ["one", "two", "three"]);
    let open = GroupSettings {
        open_history: true,
        ..CLOSED
    };
    change_role(open, Some(Role::Member)).await;
    assert_eq!(mail().await, ["then", "afterwards", "afterwards"]);
    change_role(CLOSED, None).await;
    for entry in &entries {
        let recall = ChangeKind::Recall;
        world.group_change(entry, 1, 9000, recall, "").await;
    }
    assert_eq!(mail().await, ["", "", ""]);
}

// proves S1-57: who has read all that waited, and got nothing new, keeps nothing that expired.
#[tokio::test(start_paused = true)]
async fn expired_mail_is_removed_after_a_full_read() {
    let world = world().await;
    let target = Target {
        user: user(2),
        platform: PHONE,
    };
    world.store(&world.place(1, 2, 1, "old").await).await;
    let expiry = world.backends.mailbox.policy(PHONE).expire;
    tokio::time::advance(expiry + Duration::from_secs(1)).await;
    let waiting_count = async || world.backends.mailbox.waiting(target).await.expect("reads");
    assert_eq!(
        waiting_count().await,
        1,
        "nothing came that would have made room"
    );
    assert_eq!(ids(&world.mail(None, 10).await), []);
    // The answer does not wait for it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(waiting_count().await, 0);
}

impl World {
    /// Mail of two conversations.
    async fn two_mails(&self) -> [MessageId; 2] {
        let entries = [
            self.place(1, 2, 1, "first").await,
            self.place(3, 2, 1, "second").await,
        ];
        for entry in &entries {
            self.store(entry).await;
        }
        entries.map(|entry| entry.message.id)
    }

    /// Makes a stored value unreadable; returns what it was.
    fn damage(&self, table: Table, key: &[u8]) -> Bytes {
        let old_value = self.engine.get(table, key).expect("readable");
        self.put(table, key, Bytes::from_static(b"\xffdamaged"));
        old_value.expect("stored")
    }

    fn put(&self, table: Table, key: &[u8], value: Bytes) {
        let mut batch = WriteBatch::new();
        batch.put(table, key.to_vec(), value);
        self.engine.write(batch).expect("written");
    }

    /// Checks that one of two mails is left out, from a page of both and from pages of one, and
    /// stays in the mailbox.
    async fn expect_left_out(&self, [first, second]: [MessageId; 2]) {
        let started_at = Instant::now();
        let whole_page = self.mail(None, 0).await;
        assert!(started_at.elapsed() < Duration::from_secs(4));
        assert_eq!(
            (ids(&whole_page), whole_page.next),
            (vec![second], Some(MailCursor::START))
        );
        let one = self.mail(None, 1).await;
        assert_eq!(ids(&one), []);
        assert_eq!(one.next.map(|next| next.id), Some(first));
        let other = self.mail(one.next, 1).await;
        assert_eq!(
            (ids(&other), other.next),
            (vec![second], Some(MailCursor::START))
        );
        let target = Target {
            user: user(2),
            platform: PHONE,
        };
        let count = self.backends.mailbox.waiting(target).await;
        assert_eq!(count.expect("reads"), 2);
    }

    async fn expect_all(&self, all: [MessageId; 2]) {
        let page = self.mail(None, 0).await;
        assert_eq!((ids(&page), page.next), (all.to_vec(), None));
        let one = self.mail(None, 1).await;
        let other = self.mail(one.next, 1).await;
        assert_eq!(other.next, None, "nothing is left out any more");
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_conversation_is_left_out_of_mail() {
    for fault in [Fault::Unavailable, Fault::Hang] {
        let world = world().await;
        let all = world.two_mails().await;
        let head = Calls::to("heads").named("load").about(1);
        world.faults.begin(head, fault);
        world.expect_left_out(all).await;
        world.faults.end(head);
        world.expect_all(all).await;
    }
    let world = world().await;
    let all = world.two_mails().await;
    let key = between(1, 2).to_key();
    let old_value = world.damage(Table::Head, &key);
    world.expect_left_out(all).await;
    world.put(Table::Head, &key, old_value);
    world.expect_all(all).await;
}

/// A row that cannot be read is not missing: its mail must not be removed.
#[tokio::test(start_paused = true)]
async fn unreadable_mail_row_is_left_out_and_kept() {
    for fault in [Some(Fault::Unavailable), Some(Fault::Hang), None] {
        let world = world().await;
        let all = world.two_mails().await;
        let removal = world.engine.remove_range(Table::MailBody, .., 1000);
        assert!(removal.expect("removed") > 0);
        let row = Calls::to("messages").named("rows").about(all[0].get());
        let key = [2i64.to_be_bytes(), all[0].get().to_be_bytes()].concat();
        let old_value = match fault {
            Some(fault) => {
                world.faults.begin(row, fault);
                None
            }
            None => Some(world.damage(Table::Private, &key)),
        };
        world.expect_left_out(all).await;
        match old_value {
            None => world.faults.end(row),
            Some(old_value) => world.put(Table::Private, &key, old_value),
        }
        world.expect_all(all).await;
    }
}
