//! Current state of the messages that are retried, as far as the stores answer in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::codec::EventFrames;
use backend::{Backends, Error, Kind};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use protocol::delivery::{DeliveryTask, Source};
use protocol::group::{GroupInfo, Member};
use protocol::ledger::DeadReason;
use protocol::message_row::{MessageRow, Owner};
use protocol::record::{RetryTask, Task};
use protocol::writer::{self, Facts, Missing, RetryFailure};
use protocol::{ConversationId, GroupId, MessageId, Seq, UserId};
use tokio::time::Instant;

use crate::deadline::{self, StoreDeadline};

/// Questions asked at the same time.
const MAX_CONCURRENT_LOOKUPS: usize = 64;

/// Time to begin questions about single keys, once a question about all of them failed.
const SINGLE_LOOKUP_TIME: Duration = Duration::from_secs(1);

pub(super) struct CurrentState {
    pub(super) backends: Backends,
    pub(super) store_deadline: StoreDeadline,
}

/// A due retry.
pub(super) type Due<'a> = (Source, &'a Task, &'a RetryTask);

/// Delivery of each retry, or why its record is dead: a row that cannot be read, a panic.
pub(super) type Deliveries = BTreeMap<Source, Result<DeliveryTask, (DeadReason, String)>>;

/// Outcome of asking for due retries.
pub(super) struct Decisions {
    pub(super) deliveries: Deliveries,
    /// Retries that a store did not answer for. The others without a delivery were not asked about.
    pub(super) failed_sources: BTreeSet<Source>,
    /// Error behind one of the failed.
    pub(super) failure: Option<Error>,
}

/// Answer to a question about one key.
enum Answer<T> {
    Fact(T),
    /// Error of a row that cannot be read.
    Damage(String),
    /// The store did not answer.
    Failure,
}

/// Answers of a store to each question, in order; `None` where there was no time to ask.
struct Answers<T> {
    each: Vec<Option<Answer<T>>>,
    failure: Option<Error>,
}

/// Answers by key, and the error behind one of the failures.
type KeyedAnswers<K, T> = (Vec<(K, Answer<T>)>, Option<Error>);

/// Facts, and the errors of rows that cannot be read.
#[derive(Default)]
struct FactResults {
    facts: Facts,
    damaged_rows: BTreeMap<(Owner, MessageId), String>,
    damaged_overlays: BTreeMap<(ConversationId, Seq), String>,
    damaged_members: BTreeMap<(GroupId, UserId), String>,
    /// Keys that a store did not answer for.
    failed_keys: Missing,
    failure: Option<Error>,
}

impl FactResults {
    /// Error of a row among these.
    fn damage(&self, missing_facts: &Missing) -> Option<&String> {
        let mut rows = missing_facts.rows.iter();
        let mut overlays = missing_facts.overlays.iter();
        let mut members = missing_facts.members.iter();
        rows.find_map(|key| self.damaged_rows.get(key))
            .or_else(|| overlays.find_map(|key| self.damaged_overlays.get(key)))
            .or_else(|| members.find_map(|key| self.damaged_members.get(key)))
    }

    /// Whether a store did not answer for one of these.
    fn is_failed(&self, missing_facts: &Missing) -> bool {
        let failed_keys = &self.failed_keys;
        let mut rows = missing_facts.rows.iter();
        let mut overlays = missing_facts.overlays.iter();
        let mut members = missing_facts.members.iter();
        rows.any(|key| failed_keys.rows.contains(key))
            || overlays.any(|place| failed_keys.overlays.contains(place))
            || members.any(|key| failed_keys.members.contains(key))
    }
}

impl CurrentState {
    /// Decides due retries, as far as stores answer. After `deadline` only the first few questions
    /// of each kind are asked, so that each call brings some retries forward. A failed question
    /// about many keys is followed by one about each, begun within `SINGLE_LOOKUP_TIME`.
    pub(super) async fn decide(&self, retries: &[Due<'_>], deadline: Instant) -> Decisions {
        let (mut results, mut deliveries) = (FactResults::default(), Deliveries::new());
        // First the rows, and the members that group commands name; then the edits and recalls of
        // those messages; then the members to whom an edited message is owed.
        let (missing_facts, _) = decide_ready(retries, &results, &mut deliveries);
        self.read(&missing_facts, &mut results, deadline).await;
        let (missing_facts, _) = decide_ready(retries, &results, &mut deliveries);
        let overlays = Missing {
            overlays: missing_facts.overlays,
            ..Missing::default()
        };
        self.read(&overlays, &mut results, deadline).await;
        let (missing_facts, _) = decide_ready(retries, &results, &mut deliveries);
        let failed_members = &results.failed_keys.members;
        let members = Missing {
            members: missing_facts
                .members
                .difference(failed_members)
                .copied()
                .collect(),
            ..Missing::default()
        };
        self.read(&members, &mut results, deadline).await;
        let (_, failed_sources) = decide_ready(retries, &results, &mut deliveries);
        Decisions {
            deliveries,
            failed_sources,
            failure: results.failure,
        }
    }

    async fn read(&self, missing_facts: &Missing, results: &mut FactResults, deadline: Instant) {
        let (rows, overlays, members) = tokio::join!(
            self.rows(missing_facts, deadline),
            self.overlays(missing_facts, deadline),
            self.members(missing_facts, deadline)
        );
        for (key, row) in rows.0 {
            match row {
                Answer::Fact(row) => _ = results.facts.rows.insert(key, row),
                Answer::Damage(error) => _ = results.damaged_rows.insert(key, error),
                Answer::Failure => _ = results.failed_keys.rows.insert(key),
            }
        }
        for (place, overlay) in overlays.0 {
            match overlay {
                Answer::Fact(overlay) => _ = results.facts.overlays.insert(place, overlay),
                Answer::Damage(error) => _ = results.damaged_overlays.insert(place, error),
                Answer::Failure => _ = results.failed_keys.overlays.insert(place),
            }
        }
        for (key, member) in members.0 {
            match member {
                Answer::Fact(member) => _ = results.facts.members.insert(key, member),
                Answer::Damage(error) => _ = results.damaged_members.insert(key, error),
                Answer::Failure => _ = results.failed_keys.members.insert(key),
            }
        }
        let failure = rows.1.or(overlays.1).or(members.1);
        results.failure = results.failure.take().or(failure);
    }

    /// Messages as history has them. Rows of users and of groups are asked for side by side: where
    /// one kind fails, retries of the other go on.
    async fn rows(
        &self,
        missing_facts: &Missing,
        deadline: Instant,
    ) -> KeyedAnswers<(Owner, MessageId), Option<MessageRow>> {
        let is_users = |key: &(Owner, MessageId)| matches!(key.0, Owner::User(_));
        let (user_keys, group_keys): (Vec<_>, Vec<_>) =
            missing_facts.rows.iter().copied().partition(is_users);
        let messages = &*self.backends.messages;
        let (user_answers, group_answers) = tokio::join!(
            self.each(&user_keys, |keys| messages.rows(keys), |_| true, deadline),
            self.each(&group_keys, |keys| messages.rows(keys), |_| true, deadline),
        );
        let rows = user_keys.into_iter().zip(user_answers.each);
        let rows = rows.chain(group_keys.into_iter().zip(group_answers.each));
        let rows = rows.filter_map(|(key, row)| Some((key, row?)));
        (
            rows.collect(),
            user_answers.failure.or(group_answers.failure),
        )
    }

    /// Edits and recalls made meanwhile.
    async fn overlays(
        &self,
        missing_facts: &Missing,
        deadline: Instant,
    ) -> KeyedAnswers<(ConversationId, Seq), protocol::change::Overlay> {
        let (changes, store_deadline) = (&*self.backends.changes, self.store_deadline);
        let lookups = missing_facts
            .overlays
            .iter()
            .map(|(conversation, seq)| async move {
                let lookup = changes.altered(*conversation, *seq, *seq);
                let overlay = store_deadline.within(lookup).await?.remove(seq);
                Ok(overlay.unwrap_or_default())
            });
        let answers = lookup_concurrently(lookups.collect(), deadline).await;
        let places = missing_facts.overlays.iter().zip(answers.each);
        let overlays = places.filter_map(|(place, overlay)| Some((*place, overlay?)));
        (overlays.collect(), answers.failure)
    }

    /// Recipients of group commands and of edited messages, as members are now.
    async fn members(
        &self,
        missing_facts: &Missing,
        deadline: Instant,
    ) -> KeyedAnswers<(GroupId, UserId), Option<(GroupInfo, Member)>> {
        let groups = &*self.backends.groups;
        let mut keys: BTreeMap<GroupId, Vec<(GroupId, UserId)>> = BTreeMap::new();
        for (group, user) in &missing_facts.members {
            keys.entry(*group).or_default().push((*group, *user));
        }
        // Each group is asked about by itself, and fails by itself.
        let is_alone = |kind: Kind| kind == Kind::Corrupt;
        let lookups = keys
            .values()
            .map(|keys| self.each(keys, |keys| groups.members_of(keys), is_alone, deadline));
        let answers = lookup_in_order(lookups.collect(), deadline).await;
        let (mut members, mut failure) = (Vec::new(), None);
        for (keys, answers) in keys.into_values().zip(answers) {
            let keyed_answers = keys.into_iter().zip(answers.each);
            members.extend(keyed_answers.filter_map(|(key, member)| Some((key, member?))));
            failure = failure.or(answers.failure);
        }
        (members, failure)
    }

    /// Reads all keys at once. After an error that `is_alone`, each is read alone: one that cannot
    /// be read, or is not answered for, holds up no other.
    async fn each<'a, K, T>(
        &self,
        keys: &'a [K],
        read: impl Fn(&'a [K]) -> BoxFuture<'a, deadline::Result<Vec<Option<T>>>>,
        is_alone: impl Fn(Kind) -> bool,
        deadline: Instant,
    ) -> Answers<Option<T>> {
        if keys.is_empty() {
            return Answers::from_rows(Vec::new());
        }
        let store_deadline = self.store_deadline;
        let error = match store_deadline.within(read(keys)).await {
            Ok(rows) => return Answers::from_rows(rows),
            Err(error) => error,
        };
        let is_damage = error.kind == Kind::Corrupt;
        if !is_alone(error.kind) || (!is_damage && keys.len() == 1) {
            return Answers::failed(keys.len(), error);
        }
        tracing::debug!(%error, source = %error.source, keys = keys.len(), "a batched lookup \
                                                                            failed; asking for \
                                                                            each key alone");
        let deadline = if is_damage {
            deadline
        } else {
            deadline.max(Instant::now() + SINGLE_LOOKUP_TIME)
        };
        let lookups = keys.iter().map(|key| {
            let row = read(std::slice::from_ref(key));
            async move { Ok(store_deadline.within(row).await?.pop().flatten()) }
        });
        lookup_concurrently(lookups.collect(), deadline).await
    }
}

impl<T> Answers<T> {
    fn from_rows(rows: Vec<T>) -> Answers<T> {
        Answers {
            each: rows
                .into_iter()
                .map(|row| Some(Answer::Fact(row)))
                .collect(),
            failure: None,
        }
    }

    /// No answer to any of this many questions.
    fn failed(count: usize, error: Error) -> Answers<T> {
        Answers {
            each: (0..count).map(|_| Some(Answer::Failure)).collect(),
            failure: Some(error),
        }
    }
}

/// Decides what the facts suffice for, and answers the keys that the rest lacks, and those of the
/// rest that a store did not answer for.
fn decide_ready(
    retries: &[Due<'_>],
    results: &FactResults,
    deliveries: &mut Deliveries,
) -> (Missing, BTreeSet<Source>) {
    let (mut missing_facts, mut failed_sources) = (Missing::default(), BTreeSet::new());
    for (source, task, retry) in retries {
        if deliveries.contains_key(source) {
            continue;
        }
        match writer::retry(task, retry, &results.facts, &EventFrames) {
            Ok(delivery) => _ = deliveries.insert(*source, Ok(delivery)),
            Err(RetryFailure::Dead(reason, error)) => {
                _ = deliveries.insert(*source, Err((reason, error)));
            }
            Err(RetryFailure::Missing(missing_keys)) => match results.damage(&missing_keys) {
                Some(error) => {
                    let dead_letter = (DeadReason::StoreRejected, error.clone());
                    _ = deliveries.insert(*source, Err(dead_letter));
                }
                None => {
                    if results.is_failed(&missing_keys) {
                        failed_sources.insert(*source);
                    }
                    missing_facts.rows.extend(missing_keys.rows);
                    missing_facts.overlays.extend(missing_keys.overlays);
                    missing_facts.members.extend(missing_keys.members);
                }
            },
        }
    }
    (missing_facts, failed_sources)
}

/// Asks a few questions at a time, and none after `deadline` except the first few. Returns
/// the answers to those asked, in order.
async fn lookup_in_order<T>(lookups: Vec<impl Future<Output = T>>, deadline: Instant) -> Vec<T> {
    let started_lookups = lookups.into_iter().enumerate();
    let started_lookups = started_lookups
        .take_while(|(number, _)| *number < MAX_CONCURRENT_LOOKUPS || Instant::now() < deadline);
    let started_lookups = started_lookups.map(|(_, question)| question);
    stream::iter(started_lookups)
        .buffered(MAX_CONCURRENT_LOOKUPS)
        .collect()
        .await
}

/// Asks a few questions at a time, and after `deadline`, or while a store answers none, only the
/// first few.
async fn lookup_concurrently<T>(
    lookups: Vec<impl Future<Output = deadline::Result<T>>>,
    deadline: Instant,
) -> Answers<T> {
    let mut answers = Answers {
        each: lookups.iter().map(|_| None).collect(),
        failure: None,
    };
    let (mut failures, mut is_answered) = (0, false);
    let is_silent = AtomicBool::new(false);
    let goes_on = |number: usize| {
        let is_silent = is_silent.load(Ordering::Relaxed);
        number < MAX_CONCURRENT_LOOKUPS || (Instant::now() < deadline && !is_silent)
    };
    let started_lookups = lookups.into_iter().enumerate();
    let started_lookups = started_lookups.take_while(|(number, _)| goes_on(*number));
    let started_lookups =
        started_lookups.map(|(number, question)| question.map(move |answer| (number, answer)));
    let mut answered_lookups =
        stream::iter(started_lookups).buffer_unordered(MAX_CONCURRENT_LOOKUPS);
    while let Some((number, answer)) = answered_lookups.next().await {
        let answer = match answer {
            Ok(answer) => Answer::Fact(answer),
            // An unreadable row is the fault of its record; any other error is a failure of the
            // store.
            Err(error) if error.kind == Kind::Corrupt => {
                Answer::Damage(format!("{error}: {}", error.source))
            }
            Err(error) => {
                answers.failure = Some(error);
                Answer::Failure
            }
        };
        match answer {
            Answer::Fact(_) | Answer::Damage(_) => is_answered = true,
            Answer::Failure => failures += 1,
        }
        is_silent.store(
            !is_answered && failures >= MAX_CONCURRENT_LOOKUPS,
            Ordering::Relaxed,
        );
        answers.each[number] = Some(answer);
    }
    answers
}
