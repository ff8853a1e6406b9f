//! Current state of the messages that are retried, as far as the stores answer in time.

use std::collections::BTreeMap;

use api::codec::EventFrames;
use backend::{Backends, Error, Kind};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use protocol::delivery::{DeliveryTask, Source};
use protocol::ledger::DeadReason;
use protocol::message_row::{MessageRow, Owner};
use protocol::record::{RetryTask, Task};
use protocol::writer::{self, Facts, Missing, RetryFailure};
use protocol::{ConversationId, GroupId, MessageId, Seq, UserId};
use tokio::time::Instant;

use crate::deadline::{self, StoreDeadline};

/// Questions asked at the same time.
const TOGETHER: usize = 64;

pub(crate) struct Present {
    pub(crate) backends: Backends,
    pub(crate) stores: StoreDeadline,
}

/// A due retry.
pub(super) type Due<'a> = (Source, &'a Task, &'a RetryTask);

/// Delivery of each retry, or why its record is dead: a row that cannot be read, a panic.
pub(super) type Deliveries = BTreeMap<Source, Result<DeliveryTask, (DeadReason, String)>>;

/// Answers of a store to each question, in order; `None` if it failed, or time ran out.
struct Answers<T> {
    each: Vec<Option<Result<T, String>>>,
    failure: Option<Error>,
}

/// Answers by key, and why some are missing.
type Read<K, T> = (Vec<(K, Result<T, String>)>, Option<Error>);

/// Facts, and the errors of rows that cannot be read.
#[derive(Default)]
struct Known {
    facts: Facts,
    damaged_rows: BTreeMap<(Owner, MessageId), String>,
    damaged_overlays: BTreeMap<(ConversationId, Seq), String>,
    damaged_members: BTreeMap<(GroupId, UserId), String>,
    failure: Option<Error>,
}

impl Known {
    /// Error of a row among these.
    fn damage(&self, missing: &Missing) -> Option<&String> {
        let mut rows = missing.rows.iter();
        let mut overlays = missing.overlays.iter();
        let mut roles = missing.roles.iter();
        rows.find_map(|key| self.damaged_rows.get(key))
            .or_else(|| overlays.find_map(|key| self.damaged_overlays.get(key)))
            .or_else(|| roles.find_map(|key| self.damaged_members.get(key)))
    }
}

impl Present {
    /// Deliveries of due retries, in order, as far as the stores answered, with the error behind one of the missing
    /// ones, unless time ran out. After `until` only the first few questions of each kind are asked, so that each call
    /// brings some retries forward.
    pub(super) async fn deliveries(
        &self,
        due: &[Due<'_>],
        until: Instant,
    ) -> (Deliveries, Option<Error>) {
        let (mut known, mut deliveries) = (Known::default(), Deliveries::new());
        // Rows and roles, then what became of the messages there.
        let missing = decided(due, &known, &mut deliveries);
        self.read(&missing, &mut known, until).await;
        let missing = decided(due, &known, &mut deliveries);
        let overlays = Missing {
            overlays: missing.overlays,
            ..Missing::default()
        };
        self.read(&overlays, &mut known, until).await;
        let _ = decided(due, &known, &mut deliveries);
        (deliveries, known.failure)
    }

    async fn read(&self, missing: &Missing, known: &mut Known, until: Instant) {
        let (rows, overlays, roles) = tokio::join!(
            self.rows(missing, until),
            self.overlays(missing, until),
            self.roles(missing, until)
        );
        for (key, row) in rows.0 {
            match row {
                Ok(row) => _ = known.facts.rows.insert(key, row),
                Err(error) => _ = known.damaged_rows.insert(key, error),
            }
        }
        for (place, overlay) in overlays.0 {
            match overlay {
                Ok(overlay) => _ = known.facts.overlays.insert(place, overlay),
                Err(error) => _ = known.damaged_overlays.insert(place, error),
            }
        }
        for (key, role) in roles.0 {
            match role {
                Ok(role) => _ = known.facts.roles.insert(key, role),
                Err(error) => _ = known.damaged_members.insert(key, error),
            }
        }
        let failure = rows.1.or(overlays.1).or(roles.1);
        known.failure = known.failure.take().or(failure);
    }

    /// Messages as history has them. Rows of users and of groups are asked for side by side: where
    /// one kind fails, retries of the other go on.
    async fn rows(
        &self,
        missing: &Missing,
        until: Instant,
    ) -> Read<(Owner, MessageId), Option<MessageRow>> {
        let is_users = |key: &(Owner, MessageId)| matches!(key.0, Owner::User(_));
        let (of_users, of_groups): (Vec<_>, Vec<_>) =
            missing.rows.iter().copied().partition(is_users);
        let messages = &*self.backends.messages;
        let (from_users, from_groups) = tokio::join!(
            self.each(&of_users, |keys| messages.rows(keys), until),
            self.each(&of_groups, |keys| messages.rows(keys), until),
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
    ) -> Read<(ConversationId, Seq), protocol::change::Overlay> {
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

    /// Current roles of the recipients of group commands.
    async fn roles(
        &self,
        missing: &Missing,
        until: Instant,
    ) -> Read<(GroupId, UserId), Option<protocol::group::Role>> {
        let groups = &*self.backends.groups;
        let mut keys: BTreeMap<GroupId, Vec<(GroupId, UserId)>> = BTreeMap::new();
        for (group, user) in &missing.roles {
            keys.entry(*group).or_default().push((*group, *user));
        }
        let asked = keys
            .values()
            .map(|keys| self.each(keys, |keys| groups.members_of(keys), until));
        let answers: Vec<_> = stream::iter(asked.collect::<Vec<_>>())
            .buffered(TOGETHER)
            .collect()
            .await;
        let (mut roles, mut failure) = (Vec::new(), None);
        for (keys, members) in keys.into_values().zip(answers) {
            let found = keys.into_iter().zip(members.each);
            let found = found.filter_map(|(key, member)| {
                let role = member?.map(|member| member?.1.role);
                Some((key, role))
            });
            roles.extend(found);
            failure = failure.or(members.failure);
        }
        (roles, failure)
    }

    /// Reads all keys at once, or each alone if one row is damaged.
    async fn each<'a, K, T>(
        &self,
        keys: &'a [K],
        read: impl Fn(&'a [K]) -> BoxFuture<'a, deadline::Result<Vec<Option<T>>>>,
        until: Instant,
    ) -> Answers<Option<T>> {
        if keys.is_empty() {
            return Answers::of(Vec::new());
        }
        let stores = self.stores;
        match stores.within(read(keys)).await {
            Ok(found) => Answers::of(found),
            Err(error) if error.kind == Kind::Corrupt => {
                let asked = keys.iter().map(|key| {
                    let found = read(std::slice::from_ref(key));
                    async move { Ok(stores.within(found).await?.pop().flatten()) }
                });
                side_by_side(asked.collect(), until).await
            }
            Err(error) => Answers {
                each: Vec::new(),
                failure: Some(error),
            },
        }
    }
}

impl<T> Answers<T> {
    fn of(found: Vec<T>) -> Answers<T> {
        Answers {
            each: found.into_iter().map(|found| Some(Ok(found))).collect(),
            failure: None,
        }
    }
}

/// Decides what the facts suffice for, and answers the keys that the rest lacks.
fn decided(due: &[Due<'_>], known: &Known, deliveries: &mut Deliveries) -> Missing {
    let mut missing = Missing::default();
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
                    missing.rows.extend(lacking.rows);
                    missing.overlays.extend(lacking.overlays);
                    missing.roles.extend(lacking.roles);
                }
            },
        }
    }
    missing
}

/// Asks a few questions at a time, and none after `until` except the first few.
async fn side_by_side<T>(
    asked: Vec<impl Future<Output = deadline::Result<T>>>,
    until: Instant,
) -> Answers<T> {
    let mut answers = Answers {
        each: asked.iter().map(|_| None).collect(),
        failure: None,
    };
    let begun = asked.into_iter().enumerate();
    let begun = begun.take_while(|(number, _)| *number < TOGETHER || Instant::now() < until);
    let begun = begun.map(|(number, question)| question.map(move |answer| (number, answer)));
    let mut given = stream::iter(begun).buffer_unordered(TOGETHER);
    while let Some((number, answer)) = given.next().await {
        match answer {
            Ok(answer) => answers.each[number] = Some(Ok(answer)),
            // An unreadable row is the fault of its record; any other error is a failure of the
            // store.
            Err(error) if error.kind == Kind::Corrupt => {
                answers.each[number] = Some(Err(format!("{error}: {}", error.source)));
            }
            Err(error) => answers.failure = Some(error),
        }
    }
    answers
}
