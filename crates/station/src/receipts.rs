//! Receipts: what a device says of messages, checked against its own rows, recorded, and told to the
//! senders.
//!
//! A call costs one read of history (and one for each group) and one write of each kind of register, however many receipts it
//! holds. The answer (ack:A) follows the writes; the notice to the sender (ack:N) follows the answer
//! and may be lost, since the register can be asked (S3-18).
//!
//! Messages of groups keep no receipts (S0-61b): what a member says of one moves that member's own registers, and only
//! the member's other devices hear of it.

mod groups;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::station::ReceiptItem;
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use backend::group_history::GroupHistoryStore;
use backend::history::{HistoryStore, StatusWrite};
use protocol::frame::{AckItem, Acked};
use protocol::history::{Direction, Place};
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{Code, ConversationId, MessageId, Refusal, Seq, Timestamp, UserId};
use tokio_util::task::TaskTracker;

use self::groups::InGroups;
use crate::background::Background;
use crate::cached::Cached;
use crate::deadline::within;
use crate::membership::Membership;
use crate::metrics::ReceiptMetrics;
use crate::receipt_notifier::{Notices, ReceiptNotice};
use crate::received::Received;

/// Records receipts.
#[derive(Clone)]
pub(crate) struct Receipts {
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) group_history: Arc<dyn GroupHistoryStore>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) conversations: Arc<dyn ConversationStore>,
    pub(crate) cached: Cached,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) deadline: Duration,
    /// To the senders; `None` where they ask for themselves.
    pub(crate) notices: Option<Background<Notices>>,
    pub(crate) tasks: TaskTracker,
    pub(crate) last_received: Arc<Received>,
    pub(crate) metrics: ReceiptMetrics,
}

/// Registers to be moved, gathered over a call.
#[derive(Default)]
struct Moves {
    statuses: Vec<StatusWrite>,
    /// For the sender of each status, if the status was news.
    notices: Vec<ReceiptNotice>,
    received: BTreeMap<(UserId, ConversationId), Seq>,
    read: BTreeMap<(UserId, ConversationId), Seq>,
    /// What the reader's own devices hear of each: what is read on one is read on all.
    mirrors: BTreeMap<(UserId, ConversationId), Receipt>,
}

impl Receipts {
    /// One answer an item, in order.
    pub(crate) async fn record(&self, items: Vec<ReceiptItem>) -> Vec<Acked> {
        let read = tokio::try_join!(self.places(&items), self.in_groups(&items));
        let (places, in_groups) = match read {
            Ok(read) => read,
            Err(refusal) => return refuse_all(&items, &refusal),
        };
        let now = self.clock.now();
        let mut moves = Moves::default();
        let judged = items
            .iter()
            .map(|item| moves.judge(item, &places, &in_groups, now));
        let mut answers: Vec<Acked> = judged.collect();
        let count = |answers: &[Acked], of: fn(&Acked) -> usize| {
            answers.iter().map(of).sum::<usize>() as u64
        };
        let not_right = count(&answers, |answer| answer.refused.len());
        self.metrics.refused.increment(not_right);
        // A caller that hangs up does not break it off: a status that stands and was not pushed is no news again, and
        // a copy that was not renewed says less than its register.
        let this = self.clone();
        let written = self.tasks.spawn(async move { this.write(moves).await });
        let unheard = match written.await.unwrap_or_else(|_| Err(broken_off())) {
            Ok(unheard) => unheard,
            Err(refusal) => return refuse_all(&items, &refusal),
        };
        for (item, answer) in items.iter().zip(&mut answers) {
            if item.ack.kind == ReceiptKind::Read && unheard.contains(&item.user) {
                *answer = refused(item, &unheard_of());
            }
        }
        let recorded = count(&answers, |answer| answer.ids.len());
        self.metrics.recorded.increment(recorded);
        self.note_last(&items, &answers, &places);
        answers
    }

    /// The newest private message of somebody else that each item says its user now has.
    fn note_last(&self, items: &[ReceiptItem], answers: &[Acked], places: &Places) {
        for (item, answer) in items.iter().zip(answers) {
            let came_in = |id: &&MessageId| {
                let place = places.get(&(item.user, **id));
                place.is_some_and(|place| place.direction == Direction::In)
            };
            if let Some(last) = answer.ids.iter().filter(came_in).max() {
                self.last_received.note(item.user, *last);
            }
        }
    }

    async fn places(&self, items: &[ReceiptItem]) -> Result<Places, Refusal> {
        let acks = items.iter();
        let acks = acks.flat_map(|item| item.ack.items.iter().map(|ack| (item.user, ack)));
        let private = acks.filter(|(_, ack)| !is_in_group(ack));
        let keys: Vec<(UserId, MessageId)> = private.map(|(user, ack)| (user, ack.id)).collect();
        if keys.is_empty() {
            return Ok(Places::new());
        }
        let places = within(self.deadline, self.history.places(&keys)).await?;
        let known = keys.into_iter().zip(places);
        Ok(known
            .filter_map(|(key, place)| Some((key, place?)))
            .collect())
    }

    /// Answers whose reads must be said again.
    async fn write(&self, moves: Moves) -> Result<BTreeSet<UserId>, Refusal> {
        let (statuses, received) = (moves.statuses, by_key(moves.received));
        let read = by_key(moves.read);
        let (changed, received, read) = tokio::join!(
            within(self.deadline, async {
                match statuses.is_empty() {
                    true => Ok(Vec::new()),
                    false => self.history.set_status(statuses).await,
                }
            }),
            within(self.deadline, async {
                match received.is_empty() {
                    true => Ok(()),
                    false => self.conversations.set_received(received).await,
                }
            }),
            async {
                match read.is_empty() {
                    true => Ok(BTreeSet::new()),
                    false => self.cached.set_read(read).await,
                }
            },
        );
        // A status is news once: whoever says it again, because something else failed, does not make it so.
        let mut news = Notices::default();
        match &changed {
            Ok(changed) => {
                let notices = moves.notices.into_iter().zip(changed);
                let notices = notices.filter_map(|(notice, changed)| changed.then_some(notice));
                news.recorded.extend(notices);
            }
            Err(_) => news.doubtful = moves.notices,
        }
        if let Ok(unheard) = &read {
            let mirrors = moves.mirrors.into_iter();
            let mirrors = mirrors.filter(|((to, _), _)| !unheard.contains(to));
            let mirrors = mirrors.map(|((to, _), receipt)| ReceiptNotice { to, receipt });
            news.recorded.extend(mirrors);
        }
        if let Some(notices) = &self.notices
            && news.len() > 0
        {
            notices.offer(news);
        }
        changed?;
        received?;
        read
    }
}

impl Moves {
    /// Checks each receipt of one item against the row it speaks of.
    fn judge(
        &mut self,
        item: &ReceiptItem,
        places: &Places,
        in_groups: &InGroups,
        at: Timestamp,
    ) -> Acked {
        let (kind, user) = (item.ack.kind, item.user);
        let mut answer = Acked {
            kind,
            ids: Vec::with_capacity(item.ack.items.len()),
            refused: Vec::new(),
        };
        for ack in &item.ack.items {
            let judged = match ack.conversation {
                ConversationId::Group(group) => in_groups.judge(user, group, ack).map(|()| None),
                ConversationId::Private { .. } | ConversationId::System(_) => {
                    let place = places.get(&(user, ack.id));
                    let place = place.filter(|place| speaks_of(user, ack, place));
                    place.map(Some).ok_or_else(unknown)
                }
            };
            let place = match judged {
                Ok(place) => place,
                Err(refusal) => {
                    answer.refused.push((ack.id, refusal));
                    continue;
                }
            };
            answer.ids.push(ack.id);
            let registers = match kind {
                ReceiptKind::Received => &mut self.received,
                ReceiptKind::Read => &mut self.read,
            };
            let register = registers
                .entry((user, ack.conversation))
                .or_insert(Seq::ZERO);
            *register = ack.seq.max(*register);
            let receipt = Receipt {
                kind,
                conversation: ack.conversation,
                id: ack.id,
                seq: ack.seq,
                by: user,
                at,
            };
            if kind == ReceiptKind::Read {
                let mirror = self
                    .mirrors
                    .entry((user, ack.conversation))
                    .or_insert(receipt);
                if mirror.seq < receipt.seq {
                    *mirror = receipt;
                }
            }
            // One's own message, on another device of one's own: nobody is told.
            if let Some(place) = place.filter(|place| place.direction == Direction::In) {
                self.statuses.push(StatusWrite {
                    owner: place.peer,
                    id: ack.id,
                    kind,
                    at,
                });
                self.notices.push(ReceiptNotice {
                    to: place.peer,
                    receipt,
                });
            }
        }
        answer
    }
}

fn broken_off() -> Refusal {
    Refusal::new(Code::Unavailable, "it was broken off: say it again")
}

/// Where the messages stand that receipts speak of, in their owners' rows.
type Places = BTreeMap<(UserId, MessageId), Place>;

fn is_in_group(ack: &AckItem) -> bool {
    matches!(ack.conversation, ConversationId::Group(_))
}

/// A receipt counts only for what the acknowledger's own row says: this conversation, this place.
fn speaks_of(user: UserId, ack: &AckItem, place: &Place) -> bool {
    place.seq == ack.seq && ConversationId::private(user, place.peer) == Some(ack.conversation)
}

fn unknown() -> Refusal {
    Refusal::new(
        Code::NotFound,
        "no such message at this place for this user",
    )
}

fn refuse_all(items: &[ReceiptItem], refusal: &Refusal) -> Vec<Acked> {
    items.iter().map(|item| refused(item, refusal)).collect()
}

fn refused(item: &ReceiptItem, refusal: &Refusal) -> Acked {
    let acks = item.ack.items.iter();
    Acked {
        kind: item.ack.kind,
        ids: Vec::new(),
        refused: acks.map(|ack| (ack.id, refusal.clone())).collect(),
    }
}

fn unheard_of() -> Refusal {
    Refusal::new(
        Code::Unavailable,
        "your other devices may not hear of it yet: say it again",
    )
}

fn by_key(
    registers: BTreeMap<(UserId, ConversationId), Seq>,
) -> Vec<(UserId, ConversationId, Seq)> {
    registers
        .into_iter()
        .map(|((user, conversation), seq)| (user, conversation, seq))
        .collect()
}
