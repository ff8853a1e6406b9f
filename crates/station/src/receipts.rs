//! Receipts of devices: checked against the user's own rows, recorded, and pushed to the senders.
//!
//! A call costs one read of private messages, one of groups' and one write of each kind of
//! register, however many receipts it holds. The answer (ack:A) follows the writes; the notice to
//! the sender (ack:N) follows the answer and may be lost, since the register can be asked (S3-18).
//!
//! Messages of groups keep no receipts (S0-61b): a member's receipt moves that member's own
//! registers, and only the member's other devices are notified.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::station::ReceiptItem;
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use backend::messages::MessageStore;
use protocol::frame::Acked;
use protocol::history::Direction;
use protocol::message_row::{Owner, StoredPlace};
use protocol::receipt::{ReceiptFacts, ReceiptKind, ReceiptMoves, ReceiptNeeds, ReceiptNotices};
use protocol::{Code, ConversationId, GroupId, MessageId, Refusal, Seq, UserId};
use tokio_util::task::TaskTracker;

use crate::deadline::within;
use crate::last_received::LastReceivedWriter;
use crate::membership::Membership;
use crate::metrics::ReceiptMetrics;
use crate::read::ListCache;
use crate::workers::WorkQueue;

/// Records receipts.
#[derive(Clone)]
pub(crate) struct Receipts {
    pub(crate) messages: Arc<dyn MessageStore>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) conversations: Arc<dyn ConversationStore>,
    pub(crate) cached: ListCache,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) deadline: Duration,
    /// Notices for the senders; `None` if they ask for themselves.
    pub(crate) notices: Option<WorkQueue<ReceiptNotices>>,
    pub(crate) tasks: TaskTracker,
    pub(crate) last_received: Arc<LastReceivedWriter>,
    pub(crate) metrics: ReceiptMetrics,
}

impl Receipts {
    /// Records receipts; returns one answer per item, in order.
    pub(crate) async fn record(&self, items: Vec<ReceiptItem>) -> Vec<Acked> {
        let facts = match self.facts(&items).await {
            Ok(facts) => facts,
            Err(refusal) => return refuse_all(&items, &refusal),
        };
        let now = self.clock.now();
        let mut moves = ReceiptMoves::default();
        let judged = items
            .iter()
            .map(|item| moves.judge(item.user, &item.ack, &facts, now));
        let mut answers: Vec<Acked> = judged.collect();
        let count = |answers: &[Acked], of: fn(&Acked) -> usize| {
            answers.iter().map(of).sum::<usize>() as u64
        };
        let not_right = count(&answers, |answer| answer.refused.len());
        self.metrics.refused.increment(not_right);
        // Not broken off by a caller that hangs up: a status that was set but not pushed would not
        // be new again, and a cache entry that was not renewed would say less than its register.
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
        self.note_last(&items, &answers, &facts);
        answers
    }

    /// Notes the newest private message from another user that each item acknowledges.
    fn note_last(&self, items: &[ReceiptItem], answers: &[Acked], facts: &ReceiptFacts) {
        for (item, answer) in items.iter().zip(answers) {
            let came_in = |id: &&MessageId| {
                let place = facts.places.get(&(item.user, **id));
                place.is_some_and(|place| place.direction == Direction::In)
            };
            if let Some(last) = answer.ids.iter().filter(came_in).max() {
                self.last_received.note(item.user, *last);
            }
        }
    }

    /// Facts about the receipts: a read of private messages and one of groups'; receipts of many
    /// members for one message share it.
    async fn facts(&self, items: &[ReceiptItem]) -> Result<ReceiptFacts, Refusal> {
        let mut needs = ReceiptNeeds::default();
        items
            .iter()
            .for_each(|item| needs.add(item.user, &item.ack));
        let members: Vec<_> = needs.members.into_iter().collect();
        let (places, messages, refused) = tokio::try_join!(
            self.places(needs.places),
            self.messages_at(needs.messages),
            async {
                Ok(match members.is_empty() {
                    true => BTreeMap::new(),
                    false => self.membership.refused(&members).await,
                })
            },
        )?;
        Ok(ReceiptFacts {
            places,
            messages,
            refused,
        })
    }

    async fn places(
        &self,
        keys: Vec<(UserId, MessageId)>,
    ) -> Result<BTreeMap<(UserId, MessageId), StoredPlace>, Refusal> {
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let places = within(self.deadline, self.messages.places(&keys)).await?;
        let known = keys.into_iter().zip(places);
        Ok(known
            .filter_map(|(key, place)| Some((key, place?)))
            .collect())
    }

    /// Messages of groups at these positions.
    async fn messages_at(
        &self,
        seqs: BTreeMap<GroupId, BTreeSet<Seq>>,
    ) -> Result<BTreeMap<(GroupId, Seq), MessageId>, Refusal> {
        let each = seqs.into_iter();
        let each = each.flat_map(|(group, seqs)| seqs.into_iter().map(move |seq| (group, seq)));
        let each: Vec<(GroupId, Seq)> = each.collect();
        if each.is_empty() {
            return Ok(BTreeMap::new());
        }
        let place = |&(group, seq): &(GroupId, Seq)| {
            (Owner::Group(group), ConversationId::Group(group), seq)
        };
        let places: Vec<_> = each.iter().map(place).collect();
        let found = within(self.deadline, self.messages.at(&places)).await?;
        let known = each.into_iter().zip(found);
        Ok(known
            .filter_map(|(place, at)| Some((place, at?.0)))
            .collect())
    }

    /// Returns the users who must repeat their reads.
    async fn write(&self, mut moves: ReceiptMoves) -> Result<BTreeSet<UserId>, Refusal> {
        let statuses = std::mem::take(&mut moves.statuses);
        let received = by_key(std::mem::take(&mut moves.received));
        let read = by_key(std::mem::take(&mut moves.read));
        let (changed, received, read) = tokio::join!(
            within(self.deadline, async {
                match statuses.is_empty() {
                    true => Ok(Vec::new()),
                    false => self.messages.set_status(statuses).await,
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
        let unrecorded = |user| !matches!(&read, Ok(unheard) if !unheard.contains(&user));
        let news = moves.notices(changed.as_deref().ok(), unrecorded);
        if let Some(notices) = &self.notices
            && !news.is_empty()
        {
            notices.offer(news);
        }
        changed?;
        received?;
        read
    }
}

fn broken_off() -> Refusal {
    Refusal::new(Code::Unavailable, "it was broken off: say it again")
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
