//! Step 3 of a message's way: decide, name, and put into the log; answer when the log has it.
//!
//! Nothing slower than the rate limits, the dedupe key, who is in a group where that is not known, and one publish
//! call is on this path (S1-18).
//! A crash between any two steps is harmless: before the publish nothing was promised; after it the
//! key still says *pending*, and the client's resend is published again under the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::station::SendItem;
use api::task::{MessageTask, Origin};
use api::trace::{self, Spans};
use backend::clock::Clock;
use backend::mailbox::MailboxStore;
use backend::queue::NewRecord;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use protocol::admission::{Doubt, SendLimits, Verdict, admit, judge, needs_membership, options_of};
use protocol::bounds::Bounds;
use protocol::frame::{Accepted, Send};
use protocol::mailbox::{DedupeAnswer, DedupeKey, FirstSend};
use protocol::presence::BoatLife;
use protocol::trace::{Span, Step};
use protocol::{
    Code, ConversationId, Message, MessageId, Refusal, SessionId, TraceContext, UserId,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::background::Background;
use crate::changing::ChangeDoor;
use crate::ids::MessageIds;
use crate::limits::Limits;
use crate::membership::Membership;
use crate::metrics::AcceptMetrics;
use crate::publisher::{Published, Publisher};
use crate::records::Records;
use crate::seen::SeenUpTo;

/// What becomes of one send.
pub(crate) type Outcome = Result<Accepted, Refusal>;

/// Sends that the log took, to be told to the mailbox.
pub(crate) type Resolved = Vec<(DedupeKey, FirstSend)>;

/// Accepts messages.
pub(crate) struct Accept {
    pub(crate) limits: SendLimits,
    pub(crate) dedupe_deadline: Duration,
    pub(crate) rates: Arc<Limits>,
    pub(crate) ids: MessageIds,
    /// As many sends may be on their way into the log.
    pub(crate) room: Semaphore,
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    pub(crate) log: Publisher,
    pub(crate) records: Records,
    pub(crate) bounds: Bounds,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) resolved: Background<Resolved>,
    pub(crate) seen: Background<SeenUpTo>,
    pub(crate) changes: ChangeDoor,
    /// For all changes of a batch.
    pub(crate) change_deadline: Duration,
    pub(crate) membership: Arc<Membership>,
    pub(crate) metrics: AcceptMetrics,
    pub(crate) spans: Spans,
}

/// A send that may be published.
struct Admitted {
    /// Its place in the batch.
    index: usize,
    conversation: ConversationId,
}

/// One record to be published, and whose answers depend on it.
struct Pending {
    id: MessageId,
    doubt: Doubt,
    /// Places in the batch; more than one where a send_id came twice in it.
    indices: Vec<usize>,
    conversation: ConversationId,
}

/// How long clients should wait where the station has too much to do.
const SHED_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Changes of a batch that are judged at the same time.
const CHANGES_AT_ONCE: usize = 32;

impl Accept {
    /// Accepts a batch; one outcome a send, in order. Each session's sends enter the log in their order. Sends of users
    /// of different mailbox servers do not wait for each other, and none waits for the stores that judge the changes of
    /// others.
    pub(crate) async fn accept(&self, life: &BoatLife, batch: Vec<SendItem>) -> Vec<Outcome> {
        let changing: BTreeSet<UserId> = batch
            .iter()
            .filter(|item| is_change(&item.send))
            .map(|item| item.user)
            .collect();
        // Asked once a user: servers may change places in between, and a session's sends stay together.
        let mut waits_for = BTreeMap::new();
        for SendItem { user, .. } in &batch {
            let server = || (self.mailbox.server(*user), changing.contains(user));
            waits_for.entry(*user).or_insert_with(server);
        }
        let mut batch: Vec<(usize, SendItem)> = batch.into_iter().enumerate().collect();
        batch.sort_by_key(|(place, item)| (waits_for[&item.user], *place));
        let (places, batch): (Vec<usize>, Vec<SendItem>) = batch.into_iter().unzip();
        let parts = batch.chunk_by(|one, next| waits_for[&one.user] == waits_for[&next.user]);
        let outcomes = join_all(parts.map(|part| self.accept_part(life, part))).await;
        let mut outcomes: Vec<(usize, Outcome)> = places
            .into_iter()
            .zip(outcomes.into_iter().flatten())
            .collect();
        outcomes.sort_unstable_by_key(|(place, _)| *place);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    async fn accept_part(&self, life: &BoatLife, batch: &[SendItem]) -> Vec<Outcome> {
        let began = Instant::now();
        let outcomes = self.decide_and_publish(life, batch).await;
        self.metrics.record(&outcomes, began.elapsed());
        self.record_spans(batch, &outcomes, began.elapsed());
        outcomes
    }

    fn record_spans(&self, batch: &[SendItem], outcomes: &[Outcome], took: Duration) {
        for (item, outcome) in batch.iter().zip(outcomes) {
            let Some(parent) = self.spans.sampled(item.send.trace) else {
                continue;
            };
            let name = match outcome {
                Ok(_) => "accepted",
                Err(refusal) => refusal.code.name(),
            };
            let context = accepting(parent);
            self.spans.record(Span {
                failed: outcome.is_err(),
                message: outcome.as_ref().ok().map(|accepted| accepted.id),
                conversation: Some(item.send.to.kind()),
                platform: Some(item.platform),
                attempt: Some(item.send.attempt),
                ..Span::new(Step::Accept, context, Some(parent.span), took, name)
            });
        }
    }

    async fn decide_and_publish(&self, life: &BoatLife, batch: &[SendItem]) -> Vec<Outcome> {
        let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let Ok(_room) = self.room.try_acquire_many(count) else {
            let busy = Refusal::new(Code::Unavailable, "too many sends are on their way")
                .retry_after(SHED_RETRY_AFTER);
            return vec![Err(busy); batch.len()];
        };
        let mut outcomes = Outcomes::of(batch);
        let admitted = self.admit_all(batch, &mut outcomes);
        if admitted.is_empty() {
            return outcomes.into_vec();
        }
        let offered: Vec<FirstSend> = match self.ids.draw(admitted.len()) {
            Ok(ids) => offer(&admitted, ids),
            Err(refusal) => {
                for send in &admitted {
                    outcomes.refuse(send.index, send.conversation, refusal.clone());
                }
                return outcomes.into_vec();
            }
        };
        let known = self.ask_dedupe(batch, &admitted, &offered).await;
        let pending = judge_all(batch, &admitted, &offered, &known, &mut outcomes);
        let pending = self.judge_members(batch, pending, &mut outcomes).await;
        let pending = self.judge_changes(batch, pending, &mut outcomes).await;
        let pending = self.pace(batch, pending, &mut outcomes).await;
        self.publish_all(life, batch, &pending, &mut outcomes).await;
        outcomes.into_vec()
    }

    /// The decisions that need nothing but the send itself and its sender's rate.
    fn admit_all(&self, batch: &[SendItem], outcomes: &mut Outcomes<'_>) -> Vec<Admitted> {
        let mut admitted = Vec::with_capacity(batch.len());
        for (index, item) in batch.iter().enumerate() {
            let conversation = match admit(item.user, &item.send, &self.limits) {
                Ok(conversation) => conversation,
                Err(refusal) => {
                    outcomes.set(index, Err(refusal));
                    continue;
                }
            };
            if outcomes.is_blocked(index, conversation) {
                outcomes.refuse(index, conversation, earlier_failed());
            } else if let Err(refusal) = self.rates.send(item.user, item.platform) {
                outcomes.refuse(index, conversation, refusal);
            } else {
                admitted.push(Admitted {
                    index,
                    conversation,
                });
            }
        }
        admitted
    }

    /// What the dedupe keys say; `None` where the mailbox does not answer in time, for accepting goes on
    /// without it.
    async fn ask_dedupe(
        &self,
        batch: &[SendItem],
        admitted: &[Admitted],
        offered: &[FirstSend],
    ) -> Vec<Option<DedupeAnswer>> {
        let sends = admitted
            .iter()
            .zip(offered)
            .map(|(send, &offered)| (key_of(&batch[send.index]), offered))
            .collect();
        let asked = self.mailbox.dedupe_begin(sends, self.clock.now());
        let answers = timeout(self.dedupe_deadline, asked)
            .await
            .unwrap_or_default();
        let mut known: Vec<_> = answers.into_iter().map(Result::ok).collect();
        known.resize(admitted.len(), None);
        let unanswered = known.iter().filter(|answer| answer.is_none()).count();
        self.metrics.dedupe_skipped.increment(unanswered as u64);
        known
    }

    /// Lets go on what is for no group, may have been published before, or is of who is in it.
    async fn judge_members(
        &self,
        batch: &[SendItem],
        pending: Vec<Pending>,
        outcomes: &mut Outcomes<'_>,
    ) -> Vec<Pending> {
        let key = |send: &Pending| {
            let item = &batch[send.indices[0]];
            let group = needs_membership(&item.send).filter(|_| send.doubt.is_first())?;
            Some((group, item.user))
        };
        let asked: Vec<_> = pending.iter().filter_map(key).collect();
        if asked.is_empty() {
            return pending;
        }
        let refused = self.membership.refused(&asked).await;
        let is_let_in = |send: &Pending| {
            let Some(refusal) = key(send).and_then(|key| refused.get(&key)) else {
                return true;
            };
            outcomes.refuse_all(send, refusal);
            false
        };
        pending.into_iter().filter(is_let_in).collect()
    }

    /// Lets go on what is no change, may have been published before, or is one that may be; what is not known in time is
    /// the writer's to judge.
    async fn judge_changes(
        &self,
        batch: &[SendItem],
        pending: Vec<Pending>,
        outcomes: &mut Outcomes<'_>,
    ) -> Vec<Pending> {
        let until = Instant::now() + self.change_deadline;
        let judged: Vec<_> = (pending.iter())
            .map(|send| self.judge_change(batch, send, until))
            .collect();
        let judged: Vec<Option<Refusal>> = stream::iter(judged)
            .buffered(CHANGES_AT_ONCE)
            .collect()
            .await;
        let mut passed = Vec::with_capacity(pending.len());
        for (send, refusal) in pending.into_iter().zip(judged) {
            match refusal {
                Some(refusal) => {
                    outcomes.refuse_all(&send, &refusal);
                }
                None => passed.push(send),
            }
        }
        passed
    }

    async fn judge_change(
        &self,
        batch: &[SendItem],
        send: &Pending,
        until: Instant,
    ) -> Option<Refusal> {
        let item = &batch[send.indices[0]];
        if !send.doubt.is_first() || !is_change(&item.send) {
            return None;
        }
        let message = message_of(item, send.id);
        let refused = self.changes.refused(&message, send.conversation);
        timeout_at(until, refused).await.ok().flatten()
    }

    /// Lets go on what its conversation has a token for. Strangers, whose resends come so far unjudged, must not take
    /// them from those who are in; neither must wishes, which anybody may have.
    async fn pace(
        &self,
        batch: &[SendItem],
        pending: Vec<Pending>,
        outcomes: &mut Outcomes<'_>,
    ) -> Vec<Pending> {
        let key = |send: &Pending| {
            let item = &batch[send.indices[0]];
            Some((needs_membership(&item.send)?, item.user))
        };
        let resent = pending.iter().filter(|send| !send.doubt.is_first());
        let resent: Vec<_> = resent.filter_map(key).collect();
        let strangers = self.membership.refused(&resent).await;
        // Earlier ones of the same session; what was refused before this step may have come later.
        let mut held = BTreeSet::new();
        let mut passed = Vec::with_capacity(pending.len());
        for send in pending {
            let pays = match send.conversation {
                ConversationId::Group(_) => {
                    key(&send).is_some_and(|key| !strangers.contains_key(&key))
                }
                ConversationId::Private { .. } | ConversationId::System(_) => true,
            };
            let order = (batch[send.indices[0]].session, send.conversation);
            let refusal = match held.contains(&order) {
                true => Some(earlier_failed()),
                false if pays => self.rates.send_to(send.conversation).err(),
                false => None,
            };
            match refusal {
                Some(refusal) => {
                    held.insert(order);
                    outcomes.refuse_all(&send, &refusal);
                }
                None => passed.push(send),
            }
        }
        passed
    }

    async fn publish_all(
        &self,
        life: &BoatLife,
        batch: &[SendItem],
        pending: &[Pending],
        outcomes: &mut Outcomes<'_>,
    ) {
        if pending.is_empty() {
            return;
        }
        let records = pending
            .iter()
            .map(|send| self.record_of(life, &batch[send.indices[0]], send))
            .collect();
        let published = self.log.publish(records).await;
        let traces = pending.iter().map(|send| batch[send.indices[0]].send.trace);
        let acknowledged = published
            .into_iter()
            .zip(traces)
            .map(|(answer, trace)| taken_or_refused(answer, trace));
        let mut resolved = Resolved::new();
        for (send, answer) in pending.iter().zip(acknowledged) {
            for &index in &send.indices {
                match &answer {
                    Ok(()) => {
                        outcomes.set(index, Ok(accepted(&batch[index], send.id)));
                        self.note_seen(&batch[index], send.conversation);
                    }
                    Err(_) if outcomes.is_blocked(index, send.conversation) => {
                        outcomes.refuse(index, send.conversation, earlier_failed());
                    }
                    Err(refusal) => outcomes.refuse(index, send.conversation, refusal.clone()),
                }
            }
            if answer.is_ok() {
                let sent = FirstSend {
                    id: send.id,
                    conversation: send.conversation,
                };
                resolved.push((key_of(&batch[send.indices[0]]), sent));
            }
        }
        if !resolved.is_empty() {
            self.resolved.offer(resolved);
        }
    }

    fn note_seen(&self, item: &SendItem, conversation: ConversationId) {
        if let Some(seq) = item.send.seen_seq {
            self.seen.offer(SeenUpTo {
                user: item.user,
                conversation,
                seq,
            });
        }
    }

    fn record_of(&self, life: &BoatLife, item: &SendItem, pending: &Pending) -> NewRecord {
        let message = message_of(item, pending.id);
        let age = pending.doubt.age();
        let task = MessageTask {
            message,
            origin: Some(Origin {
                session: item.session,
                life: life.clone(),
            }),
            maybe_repeat: pending.doubt == Doubt::MaybeRepeat,
            unsure: age.is_some(),
            age: age.unwrap_or_default(),
            letter: None,
            bounds: self.bounds,
        };
        let trace = item.send.trace.map(accepting);
        self.records
            .message(pending.conversation, task, trace, self.clock.now())
    }
}

/// A change of a message, which stores judge; a wish is the writer's.
fn is_change(send: &Send) -> bool {
    let change = send.content.change.as_ref();
    change.is_some_and(|change| change.subject.is_some())
}

/// The message that a send becomes.
fn message_of(item: &SendItem, id: MessageId) -> Message {
    let send = &item.send;
    Message {
        id,
        from: item.user,
        to: send.to,
        // The id's own time: a repeat under the same id bears the same.
        accepted_at: id.timestamp(),
        device: item.device.clone(),
        send_id: send.send_id,
        options: options_of(send),
        content: send.content.clone(),
    }
}

/// What each send is if it is new.
fn offer(admitted: &[Admitted], ids: Vec<MessageId>) -> Vec<FirstSend> {
    let offer = |(send, id): (&Admitted, MessageId)| FirstSend {
        id,
        conversation: send.conversation,
    };
    admitted.iter().zip(ids).map(offer).collect()
}

/// Judges each admitted send by its key; those that the log has already, and those that bear the name of
/// another message, are answered here.
fn judge_all(
    batch: &[SendItem],
    admitted: &[Admitted],
    offered: &[FirstSend],
    known: &[Option<DedupeAnswer>],
    outcomes: &mut Outcomes<'_>,
) -> Vec<Pending> {
    let mut pending: Vec<Pending> = Vec::with_capacity(admitted.len());
    let mut by_id: BTreeMap<MessageId, usize> = BTreeMap::new();
    for ((send, &offered), &known) in admitted.iter().zip(offered).zip(known) {
        let item = &batch[send.index];
        let (id, doubt) = match judge(&item.send, offered, known) {
            Ok(Verdict::Publish { id, doubt }) => (id, doubt),
            Ok(Verdict::Known(id)) => {
                outcomes.set(send.index, Ok(accepted(item, id)));
                continue;
            }
            Err(refusal) => {
                outcomes.refuse(send.index, send.conversation, refusal);
                continue;
            }
        };
        match by_id.get(&id).map(|&at| &mut pending[at]) {
            None => {
                by_id.insert(id, pending.len());
                pending.push(Pending {
                    id,
                    doubt,
                    indices: vec![send.index],
                    conversation: send.conversation,
                });
            }
            Some(first) => first.indices.push(send.index),
        }
    }
    pending
}

/// The outcomes of a batch, and where order forbids going on: after a send that may be tried again,
/// later ones of its session to its conversation wait for it.
struct Outcomes<'a> {
    batch: &'a [SendItem],
    outcomes: Vec<Option<Outcome>>,
    blocked: BTreeSet<(SessionId, ConversationId)>,
}

impl<'a> Outcomes<'a> {
    fn of(batch: &'a [SendItem]) -> Self {
        Outcomes {
            batch,
            outcomes: vec![None; batch.len()],
            blocked: BTreeSet::new(),
        }
    }

    fn set(&mut self, index: usize, outcome: Outcome) {
        self.outcomes[index] = Some(outcome);
    }

    fn refuse(&mut self, index: usize, conversation: ConversationId, refusal: Refusal) {
        if refusal.code.retryable() {
            self.blocked
                .insert((self.batch[index].session, conversation));
        }
        self.set(index, Err(refusal));
    }

    /// Refuses a send and its repeats in the same batch.
    fn refuse_all(&mut self, send: &Pending, refusal: &Refusal) {
        for &index in &send.indices {
            self.refuse(index, send.conversation, refusal.clone());
        }
    }

    fn is_blocked(&self, index: usize, conversation: ConversationId) -> bool {
        !self.blocked.is_empty()
            && self
                .blocked
                .contains(&(self.batch[index].session, conversation))
    }

    fn into_vec(self) -> Vec<Outcome> {
        let unanswered = || Refusal::new(Code::Unavailable, "the log did not answer");
        self.outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|| Err(unanswered())))
            .collect()
    }
}

fn key_of(item: &SendItem) -> DedupeKey {
    DedupeKey {
        from: item.user,
        send_id: item.send.send_id,
    }
}

fn accepted(item: &SendItem, id: MessageId) -> Accepted {
    Accepted {
        send_id: item.send.send_id,
        id,
        accepted_at: id.timestamp(),
    }
}

fn earlier_failed() -> Refusal {
    Refusal::new(
        Code::EarlierSendFailed,
        "an earlier message of yours to this conversation failed: resend that one first",
    )
}

fn too_slow() -> Refusal {
    let text = "the log did not acknowledge in time: resend under the same send_id";
    Refusal::new(Code::DeadlineExceeded, text)
}

/// The context of taking in what came under `parent`; its record goes on from here.
fn accepting(parent: TraceContext) -> TraceContext {
    parent.step(Step::Accept, &[])
}

fn taken_or_refused(answer: Published, trace: Option<TraceContext>) -> Result<(), Refusal> {
    match answer {
        Published::Appended => Ok(()),
        Published::Silent => Err(too_slow()),
        Published::Away(wait) => Err(Refusal::new(
            Code::Unavailable,
            "the part of the log that this conversation is in is away: resend under the same send_id",
        )
        .retry_after(wait)),
        Published::Failed(error) => {
            tracing::debug!(
                %error,
                source = %error.source,
                trace_id = trace::id(trace),
                "a send was not taken by the log"
            );
            Err(Refusal::new(
                Code::Unavailable,
                "the log cannot take messages now: resend under the same send_id",
            ))
        }
    }
}
