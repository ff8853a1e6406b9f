//! Who is there for those who are to be told, and before that: what of copies a record made old is forgotten.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::trace;
use backend::cache::Cache;
use backend::mailbox::MailboxStore;
use backend::{Error, Kind};
use protocol::cached::Outdated;
use protocol::delivery::{Route, RouteFailure, RouteToken};
use protocol::mailbox::{RouteAnswer, RouteRequest};
use protocol::presence::{Denied, SessionKey};
use protocol::{Timestamp, TraceContext};

use crate::stores::Timed;

/// How long a record waits for copies to be forgotten. Then what a copy lacks, if anybody finds it, is told with a later
/// list: better than telling nobody.
const COPIES_WAIT: Duration = Duration::from_secs(60);

/// A question to the mailbox, and whose copies are forgotten before it is asked.
pub(crate) struct Question {
    token: RouteToken,
    trace: Option<TraceContext>,
    outdated: Vec<Outdated>,
    /// Copies that cannot be forgotten do not put it off any more.
    is_late: bool,
    request: RouteRequest,
}

impl Question {
    pub(crate) fn of(route: Route, denied: Denied, now: Timestamp) -> Question {
        Question {
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

pub(crate) type Routed = Vec<(RouteToken, Result<RouteAnswer, RouteFailure>)>;

/// Asks the mailbox.
pub(crate) struct Router {
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    pub(crate) cache: Arc<dyn Cache>,
    pub(crate) stores: Timed,
}

impl Router {
    /// First forgets, then asks: what is forgotten is not named again, and who signs in after they were looked for finds
    /// in the list what they are not told.
    pub(crate) async fn route(self, forgets: Vec<SessionKey>, questions: Vec<Question>) -> Routed {
        if !forgets.is_empty() {
            let count = forgets.len();
            let answers = self.stores.each(count, self.mailbox.disconnect(forgets));
            for error in answers.await.into_iter().filter_map(Result::err) {
                // They will be met, and forgotten, again.
                tracing::debug!(%error, "the registration of an ended session stays for now");
            }
        }
        let outdated = questions.iter().flat_map(|question| &question.outdated);
        let unforgotten = self.forget(outdated.copied().collect()).await;
        let is_ready = |question: &Question| {
            let mut outdated = question.outdated.iter();
            question.is_late || outdated.all(|outdated| !unforgotten.contains(outdated))
        };
        let (ready, put_off): (Vec<_>, Vec<_>) = questions.into_iter().partition(is_ready);
        let put_off = put_off.into_iter();
        let put_off = put_off.map(|question| (question.token, Err(RouteFailure::Unavailable)));
        let mut routed: Routed = put_off.collect();
        routed.extend(self.ask(ready).await);
        routed
    }

    /// Answers what may still be found.
    async fn forget(&self, outdated: BTreeSet<Outdated>) -> BTreeSet<Outdated> {
        if outdated.is_empty() {
            return outdated;
        }
        let asked: Vec<Outdated> = outdated.iter().copied().collect();
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

    async fn ask(&self, questions: Vec<Question>) -> Routed {
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
