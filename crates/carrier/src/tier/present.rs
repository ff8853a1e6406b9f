//! How the messages of retries stand now, as far as the stores tell in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::task::DeliverTask;
use api::told::{Roles, is_wish};
use backend::changes::ChangeStore;
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use backend::history::HistoryStore;
use backend::{Error, Kind};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use protocol::delivery::Source;
use protocol::group::GroupRow;
use protocol::history::PrivateRow;
use protocol::{MessageId, Placed, Recipient};
use tokio::time::Instant;

use crate::standings::standings;
use crate::stores::{self, Timed};

/// Questions that are asked at once.
const TOGETHER: usize = 64;

pub(crate) struct Present {
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) changes: Arc<dyn ChangeStore>,
    pub(crate) groups: Arc<dyn GroupStore>,
    pub(crate) group_history: Arc<dyn GroupHistoryStore>,
    pub(crate) stores: Timed,
}

pub(super) struct Standing {
    /// The message as history has it; `None`: it has none.
    pub(super) placed: Option<Placed>,
    /// How those stand who are to be told of a wish.
    pub(super) roles: Roles,
}

/// By retry, or why a record of it cannot be read.
type Standings = BTreeMap<Source, Result<Standing, String>>;
type Told = BTreeMap<Source, Result<Roles, String>>;
type Rows = BTreeMap<MessageId, Result<Option<Placed>, String>>;

/// What a store said to each question, in order; `None` where it failed, or there was no time.
struct Answers<T> {
    each: Vec<Option<Result<T, String>>>,
    failure: Option<Error>,
}

impl Present {
    /// Of retries that are due, in order: those that the stores told of, and why one of the others is not among them,
    /// unless there was no time. Nothing is asked after `until` but the first few of each kind, so that each call
    /// brings some of them forward.
    pub(super) async fn standings(
        &self,
        due: &[(Source, &DeliverTask)],
        until: Instant,
    ) -> (Standings, Option<Error>) {
        let (mut rows, row_failure) = self.rows(due, until).await;
        let (change_failure, (mut told, told_failure)) =
            tokio::join!(self.alter(due, &mut rows, until), self.told(due, until));
        let standings = due.iter().filter_map(|(source, deliver)| {
            let message = &deliver.placed.message;
            let row = rows.get(&message.id)?.clone();
            let roles = match is_wish(message) {
                true => told.remove(source)?,
                false => Ok(Roles::new()),
            };
            let standing = row.and_then(|placed| {
                let roles = roles?;
                Ok(Standing { placed, roles })
            });
            Some((*source, standing))
        });
        let standings = standings.collect();
        (standings, row_failure.or(change_failure).or(told_failure))
    }

    /// The messages as history has them.
    async fn rows(&self, due: &[(Source, &DeliverTask)], until: Instant) -> (Rows, Option<Error>) {
        let (mut private, mut group) = (Vec::new(), Vec::new());
        for (_, deliver) in due {
            let message = &deliver.placed.message;
            match message.to {
                Recipient::User(to) => private.push((to, message.id)),
                Recipient::Group(of) => group.push((of, message.id)),
            }
        }
        let (history, group_history) = (&*self.history, &*self.group_history);
        let (of_users, of_groups) = tokio::join!(
            self.each(&private, |keys| history.private(keys), until),
            self.each(&group, |keys| group_history.rows(keys), until),
        );
        let placed = |row: Option<PrivateRow>| row.as_ref().and_then(PrivateRow::placed);
        let rows = private.into_iter().zip(of_users.each);
        let rows = rows.filter_map(|((_, id), row)| Some((id, row?.map(placed))));
        let placed = |row: Option<GroupRow>| row.as_ref().map(GroupRow::placed);
        let group_rows = group.into_iter().zip(of_groups.each);
        let group_rows = group_rows.filter_map(|((_, id), row)| Some((id, row?.map(placed))));
        let rows = rows.chain(group_rows).collect();
        (rows, of_users.failure.or(of_groups.failure))
    }

    /// What was edited or recalled meanwhile goes out so. Rows of which that is not known are left out.
    async fn alter(
        &self,
        due: &[(Source, &DeliverTask)],
        rows: &mut Rows,
        until: Instant,
    ) -> Option<Error> {
        let (changes, stores) = (&*self.changes, self.stores);
        let (mut ids, mut asked) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for (_, deliver) in due {
            let id = deliver.placed.message.id;
            let Some(Ok(Some(placed))) = rows.get(&id) else {
                continue;
            };
            if !seen.insert(id) {
                continue;
            }
            let (conversation, seq) = (placed.conversation, placed.position.seq);
            ids.push(id);
            asked.push(async move {
                let altered = changes.altered(conversation, seq, seq);
                Ok(stores.within(altered).await?.remove(&seq))
            });
        }
        let answers = side_by_side(asked, until).await;
        for (id, altered) in ids.into_iter().zip(answers.each) {
            match (altered, rows.get_mut(&id)) {
                (Some(Ok(Some(altered))), Some(Ok(Some(placed)))) => {
                    placed.message.content = altered.shown(&placed.message.content);
                }
                (Some(Err(error)), Some(row)) => *row = Err(error),
                (Some(_), _) => {}
                (None, _) => _ = rows.remove(&id),
            }
        }
        answers.failure
    }

    /// How those stand who are to be told of a wish.
    async fn told(&self, due: &[(Source, &DeliverTask)], until: Instant) -> (Told, Option<Error>) {
        let (groups, stores) = (&*self.groups, self.stores);
        let (mut sources, mut asked) = (Vec::new(), Vec::new());
        for (source, deliver) in due {
            if is_wish(&deliver.placed.message) {
                sources.push(*source);
                asked.push(standings(groups, stores, deliver));
            }
        }
        let answers = side_by_side(asked, until).await;
        let told = sources.into_iter().zip(answers.each);
        let told = told.filter_map(|(source, roles)| Some((source, roles?)));
        (told.collect(), answers.failure)
    }

    /// Reads all of it at once; where one is damaged, each alone.
    async fn each<'a, K, T>(
        &self,
        keys: &'a [K],
        read: impl Fn(&'a [K]) -> BoxFuture<'a, stores::Result<Vec<Option<T>>>>,
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

/// Asks some at a time, and after `until` no more of them; the first few in any case.
async fn side_by_side<T>(
    asked: Vec<impl Future<Output = stores::Result<T>>>,
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
            // What cannot be read is the fault of a record; the rest is a failure of the store.
            Err(error) if error.kind == Kind::Corrupt => {
                answers.each[number] = Some(Err(format!("{error}: {}", error.source)));
            }
            Err(error) => answers.failure = Some(error),
        }
    }
    answers
}
