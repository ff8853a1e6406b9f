//! Routes deliveries. First invalidates the cache entries that a record made stale, then asks the
//! mailbox for each recipient's live sessions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::trace;
use backend::cache::Cache;
use backend::mailbox::MailboxStore;
use backend::{Error, Kind};
use protocol::cache::Invalidation;
use protocol::delivery::{Route, RouteFailure, RouteToken};
use protocol::mailbox::{RouteAnswer, RouteRequest};
use protocol::presence::{DeniedBoats, SessionKey};
use protocol::{Timestamp, TraceContext};

use crate::deadline::StoreDeadline;

/// Longest wait of a record for its cache entries to be invalidated. After that, whoever reads a
/// stale entry learns what it lacks from a later list, which is better than delivering to nobody.
const COPIES_WAIT: Duration = Duration::from_secs(60);

/// A question to the mailbox, and the cache entries to invalidate before it is asked.
pub(crate) struct RouteQuery {
    token: RouteToken,
    trace: Option<TraceContext>,
    outdated: Vec<Invalidation>,
    /// Stale cache entries no longer put the question off.
    is_late: bool,
    request: RouteRequest,
}

impl RouteQuery {
    pub(crate) fn of(route: Route, denied: DeniedBoats, now: Timestamp) -> RouteQuery {
        RouteQuery {
            token: route.token,
            trace: route.trace,
            is_late: (route.first_at).is_some_and(|first| now.since(first) > COPIES_WAIT),
            outdated: route.outdated,
            request: RouteRequest {
                user: route.user,
                platforms: route.platforms,
                forced: route.forced,
                mail: route.mail,
                denied,
                now,
            },
        }
    }
}

pub(crate) type RouteResults = Vec<(RouteToken, Result<RouteAnswer, RouteFailure>)>;

/// Asks the mailbox.
pub(crate) struct Router {
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    pub(crate) cache: Arc<dyn Cache>,
    pub(crate) stores: StoreDeadline,
}

impl Router {
    /// Forgets ended sessions and invalidates cache entries before it asks. A forgotten session is
    /// not named again, and a user who signs in after the question finds in the list whatever was
    /// not delivered to them.
    pub(crate) async fn route(
        self,
        forgets: Vec<SessionKey>,
        questions: Vec<RouteQuery>,
    ) -> RouteResults {
        if !forgets.is_empty() {
            let count = forgets.len();
            let answers = self.stores.each(count, self.mailbox.disconnect(forgets));
            for error in answers.await.into_iter().filter_map(Result::err) {
                // Later routes meet these sessions, and forget them, again.
                tracing::debug!(%error, "the registration of an ended session stays for now");
            }
        }
        let outdated = questions.iter().flat_map(|question| &question.outdated);
        let unforgotten = self.forget(outdated.copied().collect()).await;
        let is_ready = |question: &RouteQuery| {
            let mut outdated = question.outdated.iter();
            question.is_late || outdated.all(|outdated| !unforgotten.contains(outdated))
        };
        let (ready, put_off): (Vec<_>, Vec<_>) = questions.into_iter().partition(is_ready);
        let put_off = put_off.into_iter();
        let put_off = put_off.map(|question| (question.token, Err(RouteFailure::Unavailable)));
        let mut routed: RouteResults = put_off.collect();
        routed.extend(self.ask(ready).await);
        routed
    }

    /// Returns the entries that may still be found.
    async fn forget(&self, outdated: BTreeSet<Invalidation>) -> BTreeSet<Invalidation> {
        if outdated.is_empty() {
            return outdated;
        }
        let asked: Vec<Invalidation> = outdated.iter().copied().collect();
        let forgotten = self.cache.forget(&asked);
        let forgotten = self.stores.each(asked.len(), forgotten).await;
        let told = outdated.into_iter().zip(forgotten);
        let failed = told.filter_map(|(outdated, told)| {
            let error = told.err()?;
            tracing::debug!(%error, source = %error.source, "a copy is not forgotten");
            Some(outdated)
        });
        failed.collect()
    }

    async fn ask(&self, questions: Vec<RouteQuery>) -> RouteResults {
        if questions.is_empty() {
            return Vec::new();
        }
        let questions = questions.into_iter();
        let (tokens, requests): (Vec<_>, Vec<_>) = questions
            .map(|question| ((question.token, question.trace), question.request))
            .unzip();
        let answers = self.mailbox.route_or_store(requests);
        let answers = self.stores.each(tokens.len(), answers).await;
        let answered = tokens.into_iter().zip(answers);
        answered
            .map(|((token, trace), answer)| (token, answer.map_err(|error| failure(&error, trace))))
            .collect()
    }
}

fn failure(error: &Error, trace: Option<TraceContext>) -> RouteFailure {
    match error.kind {
        Kind::Unavailable => RouteFailure::Unavailable,
        Kind::Conflict | Kind::Corrupt => {
            tracing::warn!(
                %error,
                source = %error.source,
                trace_id = trace::id(trace),
                "the mailbox refuses a message"
            );
            RouteFailure::Refused
        }
    }
}
