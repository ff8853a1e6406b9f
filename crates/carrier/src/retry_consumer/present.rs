//! Current state of the messages that are retried, as far as the stores answer in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::codec::EventFrames;
use backend::{Backends, Error, Kind};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use protocol::delivery::{DeliveryTask, Source};
use protocol::group::{GroupSettings, Member};
use protocol::ledger::DeadReason;
use protocol::message_row::{MessageRow, Owner};
use protocol::record::{RetryTask, Task};
use protocol::writer::{self, Facts, Missing, RetryFailure};
use protocol::{ConversationId, GroupId, MessageId, Seq, UserId};
use tokio::time::Instant;

use crate::deadline::{self, StoreDeadline};

/// Questions asked at the same time.
const TOGETHER: usize = 64;

/// Time to begin questions about single keys, once a question about all of them failed.
const ALONE_TIME: Duration = Duration::from_secs(1);

pub(crate) struct Present {
    pub(crate) backends: Backends,
    pub(crate) stores: StoreDeadline,
}

/// A due retry.
pub(super) type Due<'a> = (Source, &'a Task, &'a RetryTask);

/// Delivery of each retry, or why its record is dead: a row that cannot be read, a panic.
pub(super) type Deliveries = BTreeMap<Source, Result<DeliveryTask, (DeadReason, String)>>;

/// Outcome of asking for due retries.
pub(super) struct Decisions {
    pub(super) deliveries: Deliveries,
    /// Retries that a store did not answer for. The others without a delivery were not asked about.
    pub(super) failed: BTreeSet<Source>,
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

/// Answers of a store to each question, in order; `None` if there was no time to ask.
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
    failed: Missing,
    failure: Option<Error>,
}

impl FactResults {
    /// Error of a row among these.
    fn damage(&self, missing: &Missing) -> Option<&String> {
        let mut rows = missing.rows.iter();
        let mut overlays = missing.overlays.iter();
        let mut members = missing.members.iter();
        rows.find_map(|key| self.damaged_rows.get(key))
            .or_else(|| overlays.find_map(|key| self.damaged_overlays.get(key)))
            .or_else(|| members.find_map(|key| self.damaged_members.get(key)))
    }

    /// True if a store did not answer for one of these.
    fn is_failed(&self, missing: &Missing) -> bool {
        let failed = &self.failed;
        let mut rows = missing.rows.iter();
        let mut overlays = missing.overlays.iter();
        let mut members = missing.members.iter();
        rows.any(|key| failed.rows.contains(key))
            || overlays.any(|place| failed.overlays.contains(place))
            || members.any(|key| failed.members.contains(key))
    }
}

impl Present {
    /// Decides due retries, as far as the stores answer. After `until` only the first few questions
    /// of each kind are asked, so that each call brings some retries forward. A failed question
    /// about many keys is followed by one about each, begun within `ALONE_TIME`.
    pub(super) async fn decide(&self, due: &[Due<'_>], until: Instant) -> Decisions {
        let (mut known, mut deliveries) = (FactResults::default(), Deliveries::new());
        // Rows and the members of group commands, then what became of the messages there, then the
        // members who are owed an edited one.
        let (missing, _) = decided(due, &known, &mut deliveries);
        self.read(&missing, &mut known, until).await;
        let (missing, _) = decided(due, &known, &mut deliveries);
        let overlays = Missing {
            overlays: missing.overlays,
            ..Missing::default()
        };
        self.read(&overlays, &mut known, until).await;
        let (missing, _) = decided(due, &known, &mut deliveries);
        let failed = &known.failed.members;
        let members = Missing {
            members: missing.members.difference(failed).copied().collect(),
            ..Missing::default()
        };
        self.read(&members, &mut known, until).await;
        let (_, failed) = decided(due, &known, &mut deliveries);
        Decisions {
            deliveries,
            failed,
            failure: known.failure,
        }
    }

    async fn read(&self, missing: &Missing, known: &mut FactResults, until: Instant) {
        let (rows, overlays, members) = tokio::join!(
            self.rows(missing, until),
            self.overlays(missing, until),
            self.members(missing, until)
        );
        for (key, row) in rows.0 {
            match row {
                Answer::Fact(row) => _ = known.facts.rows.insert(key, row),
                Answer::Damage(error) => _ = known.damaged_rows.insert(key, error),
                Answer::Failure => _ = known.failed.rows.insert(key),
            }
        }
        for (place, overlay) in overlays.0 {
            match overlay {
                Answer::Fact(overlay) => _ = known.facts.overlays.insert(place, overlay),
                Answer::Damage(error) => _ = known.damaged_overlays.insert(place, error),
                Answer::Failure => _ = known.failed.overlays.insert(place),
            }
        }
        for (key, member) in members.0 {
            match member {
                Answer::Fact(member) => _ = known.facts.members.insert(key, member),
                Answer::Damage(error) => _ = known.damaged_members.insert(key, error),
                Answer::Failure => _ = known.failed.members.insert(key),
            }
        }
        let failure = rows.1.or(overlays.1).or(members.1);
        known.failure = known.failure.take().or(failure);
    }

    /// Messages as history has them. Rows of users and of groups are asked for side by side: where
    /// one kind fails, retries of the other go on.
    async fn rows(
        &self,
        missing: &Missing,
        until: Instant,
    ) -> KeyedAnswers<(Owner, MessageId), Option<MessageRow>> {
        let is_users = |key: &(Owner, MessageId)| matches!(key.0, Owner::User(_));
        let (of_users, of_groups): (Vec<_>, Vec<_>) =
            missing.rows.iter().copied().partition(is_users);
        let messages = &*self.backends.messages;
        let (from_users, from_groups) = tokio::join!(
            self.each(&of_users, |keys| messages.rows(keys), |_| true, until),
            self.each(&of_groups, |keys| messages.rows(keys), |_| true, until),
        );
        let rows = of_users.into_iter().zip(from_users.each);
        let rows = rows.chain(of_groups.into_iter().zip(from_groups.each));
        let rows = rows.filter_map(|(key, row)| Some((key, row?)));
        (rows.collect(), from_users.failure.or(from_groups.failure))
    }

    /// Edits and recalls made meanwhile.
    async fn overlays(
        &self,
        missing: &Missing,
        until: Instant,
    ) -> KeyedAnswers<(ConversationId, Seq), protocol::change::Overlay> {
        let (changes, stores) = (&*self.backends.changes, self.stores);
        let asked = missing
            .overlays
            .iter()
            .map(|(conversation, seq)| async move {
                let altered = changes.altered(*conversation, *seq, *seq);
                let overlay = stores.within(altered).await?.remove(seq);
                Ok(overlay.unwrap_or_default())
            });
        let answers = side_by_side(asked.collect(), until).await;
        let places = missing.overlays.iter().zip(answers.each);
        let overlays = places.filter_map(|(place, overlay)| Some((*place, overlay?)));
        (overlays.collect(), answers.failure)
    }

    /// Recipients of group commands and of edited messages, as members are now.
    async fn members(
        &self,
        missing: &Missing,
        until: Instant,
    ) -> KeyedAnswers<(GroupId, UserId), Option<(GroupSettings, Member)>> {
        let groups = &*self.backends.groups;
        let mut keys: BTreeMap<GroupId, Vec<(GroupId, UserId)>> = BTreeMap::new();
        for (group, user) in &missing.members {
            keys.entry(*group).or_default().push((*group, *user));
        }
        // Each group is asked about by itself, and fails by itself.
        let is_alone = |kind: Kind| kind == Kind::Corrupt;
        let asked = keys
            .values()
            .map(|keys| self.each(keys, |keys| groups.members_of(keys), is_alone, until));
        let answers = in_order(asked.collect(), until).await;
        let (mut members, mut failure) = (Vec::new(), None);
        for (keys, answers) in keys.into_values().zip(answers) {
            let known = keys.into_iter().zip(answers.each);
            members.extend(known.filter_map(|(key, member)| Some((key, member?))));
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
        until: Instant,
    ) -> Answers<Option<T>> {
        if keys.is_empty() {
            return Answers::of(Vec::new());
        }
        let stores = self.stores;
        let error = match stores.within(read(keys)).await {
            Ok(found) => return Answers::of(found),
            Err(error) => error,
        };
        let is_damage = error.kind == Kind::Corrupt;
        if !is_alone(error.kind) || (!is_damage && keys.len() == 1) {
            return Answers::failed(keys.len(), error);
        }
        tracing::debug!(%error, source = %error.source, keys = keys.len(), "asks about each alone");
        let until = match is_damage {
            true => until,
            false => until.max(Instant::now() + ALONE_TIME),
        };
        let asked = keys.iter().map(|key| {
            let found = read(std::slice::from_ref(key));
            async move { Ok(stores.within(found).await?.pop().flatten()) }
        });
        side_by_side(asked.collect(), until).await
    }
}

impl<T> Answers<T> {
    fn of(found: Vec<T>) -> Answers<T> {
        Answers {
            each: found
                .into_iter()
                .map(|found| Some(Answer::Fact(found)))
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
fn decided(
    due: &[Due<'_>],
    known: &FactResults,
    deliveries: &mut Deliveries,
) -> (Missing, BTreeSet<Source>) {
    let (mut missing, mut failed) = (Missing::default(), BTreeSet::new());
    for (source, task, retry) in due {
        if deliveries.contains_key(source) {
            continue;
        }
        match writer::retry(task, retry, &known.facts, &EventFrames) {
            Ok(delivery) => _ = deliveries.insert(*source, Ok(delivery)),
            Err(RetryFailure::Dead(reason, error)) => {
                _ = deliveries.insert(*source, Err((reason, error)));
            }
            Err(RetryFailure::Missing(lacking)) => match known.damage(&lacking) {
                Some(error) => {
                    let dead = (DeadReason::StoreRejected, error.clone());
                    _ = deliveries.insert(*source, Err(dead));
                }
                None => {
                    if known.is_failed(&lacking) {
                        failed.insert(*source);
                    }
                    missing.rows.extend(lacking.rows);
                    missing.overlays.extend(lacking.overlays);
                    missing.members.extend(lacking.members);
                }
            },
        }
    }
    (missing, failed)
}

/// Asks a few questions at a time, and none after `until` except the first few. Returns the answers
/// to those asked, in order.
async fn in_order<T>(asked: Vec<impl Future<Output = T>>, until: Instant) -> Vec<T> {
    let begun = asked.into_iter().enumerate();
    let begun = begun.take_while(|(number, _)| *number < TOGETHER || Instant::now() < until);
    let begun = begun.map(|(_, question)| question);
    stream::iter(begun).buffered(TOGETHER).collect().await
}

/// Asks a few questions at a time, and after `until`, or while a store answers none, only the first
/// few.
async fn side_by_side<T>(
    asked: Vec<impl Future<Output = deadline::Result<T>>>,
    until: Instant,
) -> Answers<T> {
    let mut answers = Answers {
        each: asked.iter().map(|_| None).collect(),
        failure: None,
    };
    let (mut failures, mut is_answered) = (0, false);
    let is_silent = AtomicBool::new(false);
    let goes_on = |number: usize| {
        let is_silent = is_silent.load(Ordering::Relaxed);
        number < TOGETHER || (Instant::now() < until && !is_silent)
    };
    let begun = asked.into_iter().enumerate();
    let begun = begun.take_while(|(number, _)| goes_on(*number));
    let begun = begun.map(|(number, question)| question.map(move |answer| (number, answer)));
    let mut given = stream::iter(begun).buffer_unordered(TOGETHER);
    while let Some((number, answer)) = given.next().await {
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
        is_silent.store(!is_answered && failures >= TOGETHER, Ordering::Relaxed);
        answers.each[number] = Some(answer);
    }
    answers
}
