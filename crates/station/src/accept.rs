//! Accepts sends: judges them, gives them ids, and appends them to the log. A send is answered once
//! the log has it.
//!
//! Nothing slower than the rate limits, the dedupe key, a membership check if the answer is not
//! known, and one publish call is on this path (S1-18). A crash between any two steps is harmless:
//! before the publish nothing was promised; after it the key still says *pending*, and the client's
//! resend is published again under the same id.

pub(crate) mod breaker;
mod change_check;
mod ids;
mod publisher;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::trace::{self, Spans};
use backend::Backends;
use backend::mailbox::MailboxStore;
use backend::queue::NewRecord;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use protocol::admission::{
    Doubt, SendLimits, SendOrder, Verdict, accepted_message, admit, is_written, judge,
    message_task, needs_membership,
};
use protocol::bounds::Bounds;
use protocol::delivery::Origin;
use protocol::frame::{Accepted, Send};
use protocol::keys::record_key;
use protocol::mailbox::{DedupeAnswer, DedupeKey, FirstSend};
use protocol::presence::BoatLife;
use protocol::record::Task;
use protocol::session::Submit;
use protocol::trace::{Span, Step};
use protocol::{Code, ConversationId, MessageId, Refusal, TraceContext, UserId};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use self::change_check::ChangeCheck;
pub(crate) use self::ids::MessageIds;
pub(crate) use self::publisher::Records;
use self::publisher::{PublishAnswer, Publisher};
use crate::config::Config;
use crate::limits::Limits;
use crate::membership::Membership;
use crate::metrics::AcceptMetrics;
use crate::part_spawner::PartSpawner;
use crate::read::ListCache;
use crate::receipts::{ReadMarker, write_read_markers};
use crate::work_queue::{WAITING_MAX, WorkQueue};

/// Outcome of one send.
pub(crate) type SendOutcome = Result<Accepted, Refusal>;

/// Sends that the log took, for the mailbox to resolve.
type DedupeResolution = Vec<(DedupeKey, FirstSend)>;

/// Accepts messages.
pub(crate) struct SendAcceptor {
    backends: Backends,
    pub(crate) ids: MessageIds,
    limits: SendLimits,
    bounds: Bounds,
    rates: Arc<Limits>,
    /// Permits for sends on their way into the log.
    room: Semaphore,
    dedupe_deadline: Duration,
    membership: Arc<Membership>,
    changes: ChangeCheck,
    /// Time for all changes of a batch.
    change_deadline: Duration,
    records: Records,
    log: Publisher,
    resolutions: WorkQueue<DedupeResolution>,
    read_markers: WorkQueue<ReadMarker>,
    metrics: AcceptMetrics,
    spans: Spans,
}

/// A send that may be published.
struct AdmittedSend {
    /// Index of the send in the batch.
    index: usize,
    conversation: ConversationId,
}

/// One record to publish, and the sends whose answers depend on it.
struct PendingSend {
    id: MessageId,
    doubt: Doubt,
    /// Indices in the batch; several if a send_id came twice in it.
    indices: Vec<usize>,
    conversation: ConversationId,
}

/// Hint to clients of a station that has too much to do.
const SHED_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Changes of a batch judged at the same time.
const MAX_CONCURRENT_CHANGES: usize = 32;

impl SendAcceptor {
    pub(crate) fn new(
        backends: &Backends,
        config: &Config,
        ids: MessageIds,
        rates: Arc<Limits>,
        membership: Arc<Membership>,
        list_cache: ListCache,
        spawner: &PartSpawner,
    ) -> SendAcceptor {
        let deadline = config.store_deadline;
        let mailbox = backends.mailbox.clone();
        let resolve = move |batch| resolve_dedupe(mailbox.clone(), deadline, batch);
        let stores = backends.clone();
        let write =
            move |batch| write_read_markers(stores.clone(), list_cache.clone(), deadline, batch);
        SendAcceptor {
            backends: backends.clone(),
            ids,
            limits: SendLimits {
                body_bytes_max: config.body_bytes_max,
            },
            bounds: config.bounds(),
            rates,
            room: Semaphore::new(send_permit_count(config)),
            dedupe_deadline: config.dedupe_deadline,
            changes: ChangeCheck::new(backends, config, membership.clone()),
            change_deadline: config.members_deadline,
            membership,
            records: Records::new(backends),
            log: Publisher::new(backends, config.publish_deadline),
            resolutions: WorkQueue::spawn(spawner, "dedupe", WAITING_MAX, resolve),
            read_markers: WorkQueue::spawn(spawner, "seen", WAITING_MAX, write),
            metrics: AcceptMetrics::new(),
            spans: Spans::here(),
        }
    }

    /// Accepts a batch; returns one outcome per send, in order. Each session's sends enter the log
    /// in their order. Sends of users of different mailbox servers do not wait for each other, and
    /// none waits for the stores that judge the changes of others. All share one deadline, so that
    /// the boat hears of the sends that the log took, however long the stores take for the rest.
    pub(crate) async fn accept(&self, life: &BoatLife, batch: Vec<Submit>) -> Vec<SendOutcome> {
        let deadline = self.log.call_deadline();
        let changing_users: BTreeSet<UserId> = batch
            .iter()
            .filter(|item| is_change(&item.send))
            .map(|item| item.user)
            .collect();
        // Asked once per user: servers may change places in between, and a session's sends stay
        // together.
        let mut part_keys = BTreeMap::new();
        for Submit { user, .. } in &batch {
            let server = || {
                (
                    self.backends.mailbox.server(*user),
                    changing_users.contains(user),
                )
            };
            part_keys.entry(*user).or_insert_with(server);
        }
        let mut batch: Vec<(usize, Submit)> = batch.into_iter().enumerate().collect();
        batch.sort_by_key(|(index, item)| (part_keys[&item.user], *index));
        let (indices, batch): (Vec<usize>, Vec<Submit>) = batch.into_iter().unzip();
        let parts = batch.chunk_by(|one, next| part_keys[&one.user] == part_keys[&next.user]);
        let outcomes = join_all(parts.map(|part| self.accept_part(life, part, deadline))).await;
        let mut outcomes: Vec<(usize, SendOutcome)> = indices
            .into_iter()
            .zip(outcomes.into_iter().flatten())
            .collect();
        outcomes.sort_unstable_by_key(|(index, _)| *index);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    async fn accept_part(
        &self,
        life: &BoatLife,
        batch: &[Submit],
        deadline: Instant,
    ) -> Vec<SendOutcome> {
        let started_at = Instant::now();
        let outcomes = self.decide_and_publish(life, batch, deadline).await;
        self.metrics.record(&outcomes, started_at.elapsed());
        self.record_spans(batch, &outcomes, started_at.elapsed());
        outcomes
    }

    fn record_spans(&self, batch: &[Submit], outcomes: &[SendOutcome], elapsed: Duration) {
        for (item, outcome) in batch.iter().zip(outcomes) {
            let Some(parent) = self.spans.sampled(item.send.trace) else {
                continue;
            };
            let name = match outcome {
                Ok(_) => "accepted",
                Err(refusal) => refusal.code.name(),
            };
            let context = accept_context(parent);
            self.spans.record(Span {
                is_failure: outcome.is_err(),
                message: outcome.as_ref().ok().map(|accepted| accepted.id),
                conversation: Some(item.send.to.kind()),
                platform: Some(item.platform),
                attempt: Some(item.send.attempt),
                ..Span::new(Step::Accept, context, Some(parent.span), elapsed, name)
            });
        }
    }

    async fn decide_and_publish(
        &self,
        life: &BoatLife,
        batch: &[Submit],
        deadline: Instant,
    ) -> Vec<SendOutcome> {
        let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let Ok(_permit) = self.room.try_acquire_many(count) else {
            let busy = Refusal::new(Code::Unavailable, "too many sends are in flight")
                .retry_after(SHED_RETRY_AFTER);
            return vec![Err(busy); batch.len()];
        };
        let mut outcomes = Outcomes::new(batch);
        let sends = self.admit_all(batch, &mut outcomes);
        if sends.is_empty() {
            return outcomes.into_vec();
        }
        let first_sends: Vec<FirstSend> = match self.ids.draw(sends.len()) {
            Ok(ids) => offer(&sends, ids),
            Err(refusal) => {
                for send in &sends {
                    outcomes.refuse(send.index, send.conversation, refusal.clone());
                }
                return outcomes.into_vec();
            }
        };
        let answers = self.ask_dedupe(batch, &sends, &first_sends).await;
        let pending = judge_all(batch, &sends, &first_sends, &answers, &mut outcomes);
        let pending = self.judge_members(batch, pending, &mut outcomes).await;
        let pending = self.judge_changes(batch, pending, &mut outcomes).await;
        let pending = self
            .apply_conversation_rates(batch, pending, &mut outcomes)
            .await;
        self.publish_all(life, batch, &pending, deadline, &mut outcomes)
            .await;
        outcomes.into_vec()
    }

    /// Makes the decisions that need only the send itself and its sender's rate.
    fn admit_all(&self, batch: &[Submit], outcomes: &mut Outcomes<'_>) -> Vec<AdmittedSend> {
        let mut sends = Vec::with_capacity(batch.len());
        for (index, item) in batch.iter().enumerate() {
            let conversation = match admit(item.user, &item.send, &self.limits) {
                Ok(conversation) => conversation,
                Err(refusal) => {
                    outcomes.set(index, Err(refusal));
                    continue;
                }
            };
            if let Err(refusal) = outcomes.check_order(index, conversation) {
                outcomes.refuse(index, conversation, refusal);
            } else if let Err(refusal) = self.rates.take_user_send(item.user, item.platform) {
                outcomes.refuse(index, conversation, refusal);
            } else {
                sends.push(AdmittedSend {
                    index,
                    conversation,
                });
            }
        }
        sends
    }

    /// Asks the dedupe keys; `None` if the mailbox does not answer in time, for accepting goes on
    /// without it.
    async fn ask_dedupe(
        &self,
        batch: &[Submit],
        sends: &[AdmittedSend],
        first_sends: &[FirstSend],
    ) -> Vec<Option<DedupeAnswer>> {
        let requests = sends
            .iter()
            .zip(first_sends)
            .map(|(send, &first_send)| (dedupe_key(&batch[send.index]), first_send))
            .collect();
        let now = self.backends.clock.now();
        let request = self.backends.mailbox.dedupe_begin(requests, now);
        let results = timeout(self.dedupe_deadline, request)
            .await
            .unwrap_or_default();
        let mut answers: Vec<_> = results.into_iter().map(Result::ok).collect();
        answers.resize(sends.len(), None);
        let unanswered_count = answers.iter().filter(|answer| answer.is_none()).count();
        self.metrics
            .dedupe_skipped
            .increment(unanswered_count as u64);
        answers
    }

    /// Keeps sends that are for no group, may have been published before, or come from a member who
    /// may write them.
    async fn judge_members(
        &self,
        batch: &[Submit],
        pending: Vec<PendingSend>,
        outcomes: &mut Outcomes<'_>,
    ) -> Vec<PendingSend> {
        let key = |send: &PendingSend| {
            let item = &batch[send.indices[0]];
            let group = needs_membership(&item.send).filter(|_| send.doubt.is_first())?;
            Some((group, item.user))
        };
        let keys: Vec<_> = pending.iter().filter_map(key).collect();
        if keys.is_empty() {
            return pending;
        }
        let refusals = self.membership.refused_senders(&keys).await;
        let is_let_in = |send: &PendingSend| {
            let Some(refusal) = key(send).and_then(|key| refusals.get(&key)) else {
                return true;
            };
            if refusal.code == Code::Muted && !is_written(&batch[send.indices[0]].send) {
                return true;
            }
            outcomes.refuse_all(send, refusal);
            false
        };
        pending.into_iter().filter(is_let_in).collect()
    }

    /// Keeps sends that are no change, may have been published before, or are a permitted change. A
    /// change not judged in time is left to the writer.
    async fn judge_changes(
        &self,
        batch: &[Submit],
        pending: Vec<PendingSend>,
        outcomes: &mut Outcomes<'_>,
    ) -> Vec<PendingSend> {
        let deadline = Instant::now() + self.change_deadline;
        let refusals: Vec<_> = (pending.iter())
            .map(|send| self.judge_change(batch, send, deadline))
            .collect();
        let refusals: Vec<Option<Refusal>> = stream::iter(refusals)
            .buffered(MAX_CONCURRENT_CHANGES)
            .collect()
            .await;
        let mut permitted_sends = Vec::with_capacity(pending.len());
        for (send, refusal) in pending.into_iter().zip(refusals) {
            match refusal {
                Some(refusal) => {
                    outcomes.refuse_all(&send, &refusal);
                }
                None => permitted_sends.push(send),
            }
        }
        permitted_sends
    }

    async fn judge_change(
        &self,
        batch: &[Submit],
        send: &PendingSend,
        deadline: Instant,
    ) -> Option<Refusal> {
        let item = &batch[send.indices[0]];
        if !send.doubt.is_first() || !is_change(&item.send) {
            return None;
        }
        let message = accepted_message(item.user, item.device.clone(), &item.send, send.id);
        let check = self.changes.refused(&message, send.conversation);
        timeout_at(deadline, check).await.ok().flatten()
    }

    /// Keeps sends that the rate limit of their conversation lets pass. Resends of users who are no
    /// members come this far without a check, and must not use up the rate of the members; neither
    /// must group commands, which anybody may send.
    async fn apply_conversation_rates(
        &self,
        batch: &[Submit],
        pending: Vec<PendingSend>,
        outcomes: &mut Outcomes<'_>,
    ) -> Vec<PendingSend> {
        let key = |send: &PendingSend| {
            let item = &batch[send.indices[0]];
            Some((needs_membership(&item.send)?, item.user))
        };
        let resends = pending.iter().filter(|send| !send.doubt.is_first());
        let resends: Vec<_> = resends.filter_map(key).collect();
        let strangers = self.membership.refused_senders(&resends).await;
        // Earlier sends of the same session; a send refused before this step may have come later.
        let mut order = SendOrder::default();
        let mut permitted_sends = Vec::with_capacity(pending.len());
        for send in pending {
            let needs_token = match send.conversation {
                ConversationId::Group(_) => {
                    key(&send).is_some_and(|key| !strangers.contains_key(&key))
                }
                ConversationId::Private { .. } | ConversationId::System(_) => true,
            };
            let session = batch[send.indices[0]].session;
            let verdict = order.check(session, send.conversation).and_then(|()| {
                if needs_token {
                    self.rates.take_conversation_send(send.conversation)
                } else {
                    Ok(())
                }
            });
            match verdict {
                Err(refusal) => {
                    order.refused(session, send.conversation, &refusal);
                    outcomes.refuse_all(&send, &refusal);
                }
                Ok(()) => permitted_sends.push(send),
            }
        }
        permitted_sends
    }

    async fn publish_all(
        &self,
        life: &BoatLife,
        batch: &[Submit],
        pending: &[PendingSend],
        deadline: Instant,
        outcomes: &mut Outcomes<'_>,
    ) {
        if pending.is_empty() {
            return;
        }
        let records = pending
            .iter()
            .map(|send| self.new_record(life, &batch[send.indices[0]], send))
            .collect();
        let answers = self.log.publish(records, deadline).await;
        let traces = pending.iter().map(|send| batch[send.indices[0]].send.trace);
        let acknowledgements = answers
            .into_iter()
            .zip(traces)
            .map(|(answer, trace)| publish_result(answer, trace));
        let mut resolution = DedupeResolution::new();
        for (send, answer) in pending.iter().zip(acknowledgements) {
            for &index in &send.indices {
                match &answer {
                    Ok(()) => {
                        outcomes.set(index, Ok(accepted(&batch[index], send.id)));
                        self.queue_read_marker(&batch[index], send.conversation);
                    }
                    Err(refusal) => {
                        let order = outcomes.check_order(index, send.conversation);
                        let refusal = order.err().unwrap_or_else(|| refusal.clone());
                        outcomes.refuse(index, send.conversation, refusal);
                    }
                }
            }
            if answer.is_ok() {
                let first_send = FirstSend {
                    id: send.id,
                    conversation: send.conversation,
                };
                resolution.push((dedupe_key(&batch[send.indices[0]]), first_send));
            }
        }
        if !resolution.is_empty() {
            self.resolutions.offer(resolution);
        }
    }

    fn queue_read_marker(&self, item: &Submit, conversation: ConversationId) {
        if let Some(seq) = item.send.seen_seq {
            self.read_markers.offer(ReadMarker {
                user: item.user,
                conversation,
                seq,
            });
        }
    }

    fn new_record(&self, life: &BoatLife, item: &Submit, pending: &PendingSend) -> NewRecord {
        let message = accepted_message(item.user, item.device.clone(), &item.send, pending.id);
        let origin = Origin {
            session: item.session,
            life: life.clone(),
        };
        let now = self.backends.clock.now();
        let task = Task {
            trace: item.send.trace.map(accept_context),
            ..message_task(message, origin, pending.doubt, self.bounds, now)
        };
        self.records.record(record_key(pending.conversation), &task)
    }
}

/// Room for the sends of at least one full batch, or no full batch would ever be taken.
fn send_permit_count(config: &Config) -> usize {
    let room = config.sends_in_flight_max.max(config.batch_items_max);
    room.min(Semaphore::MAX_PERMITS)
}

/// Marks keys as published. Unresolved keys stay pending, which a resend can live with.
async fn resolve_dedupe(
    mailbox: Arc<dyn MailboxStore>,
    deadline: Duration,
    batch: Vec<DedupeResolution>,
) {
    let sends = batch.into_iter().flatten().collect();
    let outcome = timeout(deadline, mailbox.dedupe_done(sends)).await;
    if !matches!(outcome, Ok(Ok(()))) {
        metrics::counter!("station_dedupe_unresolved_total").increment(1);
    }
}

/// True for a change of a message, which stores judge; a group command is the writer's.
fn is_change(send: &Send) -> bool {
    let change = send.content.change.as_ref();
    change.is_some_and(|change| change.subject.is_some())
}

/// First send that each one would be, if it is new.
fn offer(sends: &[AdmittedSend], ids: Vec<MessageId>) -> Vec<FirstSend> {
    let offer = |(send, id): (&AdmittedSend, MessageId)| FirstSend {
        id,
        conversation: send.conversation,
    };
    sends.iter().zip(ids).map(offer).collect()
}

/// Judges each admitted send by its key. Answers the sends that the log has already, and those
/// whose send_id belongs to another message.
fn judge_all(
    batch: &[Submit],
    sends: &[AdmittedSend],
    fresh: &[FirstSend],
    dedupe: &[Option<DedupeAnswer>],
    outcomes: &mut Outcomes<'_>,
) -> Vec<PendingSend> {
    let mut pending: Vec<PendingSend> = Vec::with_capacity(sends.len());
    let mut by_id: BTreeMap<MessageId, usize> = BTreeMap::new();
    for ((send, &fresh), &dedupe) in sends.iter().zip(fresh).zip(dedupe) {
        let item = &batch[send.index];
        let (id, doubt) = match judge(&item.send, fresh, dedupe) {
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
        match by_id.get(&id).map(|&index| &mut pending[index]) {
            None => {
                by_id.insert(id, pending.len());
                pending.push(PendingSend {
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

/// Outcomes of a batch, and the order of its sends: after one that may be retried, later ones of its
/// session to its conversation wait for it.
struct Outcomes<'a> {
    batch: &'a [Submit],
    outcomes: Vec<Option<SendOutcome>>,
    order: SendOrder,
}

impl<'a> Outcomes<'a> {
    fn new(batch: &'a [Submit]) -> Self {
        Outcomes {
            batch,
            outcomes: vec![None; batch.len()],
            order: SendOrder::default(),
        }
    }

    fn set(&mut self, index: usize, outcome: SendOutcome) {
        self.outcomes[index] = Some(outcome);
    }

    fn refuse(&mut self, index: usize, conversation: ConversationId, refusal: Refusal) {
        let session = self.batch[index].session;
        self.order.refused(session, conversation, &refusal);
        self.set(index, Err(refusal));
    }

    /// Refuses a send and its repeats in the same batch.
    fn refuse_all(&mut self, send: &PendingSend, refusal: &Refusal) {
        for &index in &send.indices {
            self.refuse(index, send.conversation, refusal.clone());
        }
    }

    /// Checks that no earlier send has to be repeated before this one.
    fn check_order(&self, index: usize, conversation: ConversationId) -> Result<(), Refusal> {
        self.order.check(self.batch[index].session, conversation)
    }

    fn into_vec(self) -> Vec<SendOutcome> {
        let no_answer = || Refusal::new(Code::Unavailable, "the log did not answer");
        self.outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|| Err(no_answer())))
            .collect()
    }
}

fn dedupe_key(item: &Submit) -> DedupeKey {
    DedupeKey {
        from: item.user,
        send_id: item.send.send_id,
    }
}

fn accepted(item: &Submit, id: MessageId) -> Accepted {
    Accepted {
        send_id: item.send.send_id,
        id,
        accepted_at: id.timestamp(),
    }
}

fn too_slow() -> Refusal {
    let text = "the log did not acknowledge in time: resend under the same send_id";
    Refusal::new(Code::DeadlineExceeded, text)
}

/// Context of accepting a send that came under `parent`; its record continues from here.
fn accept_context(parent: TraceContext) -> TraceContext {
    parent.step(Step::Accept, &[])
}

fn publish_result(answer: PublishAnswer, trace: Option<TraceContext>) -> Result<(), Refusal> {
    match answer {
        PublishAnswer::Appended => Ok(()),
        PublishAnswer::Silent => Err(too_slow()),
        PublishAnswer::Away(wait) => Err(Refusal::new(
            Code::Unavailable,
            "the log partition of this conversation is unavailable: resend under the same send_id",
        )
        .retry_after(wait)),
        PublishAnswer::Failed(error) => {
            tracing::debug!(
                %error,
                source = %error.source,
                trace_id = trace::id(trace),
                "the log did not take a send"
            );
            Err(Refusal::new(
                Code::Unavailable,
                "the log cannot take messages now: resend under the same send_id",
            ))
        }
    }
}
