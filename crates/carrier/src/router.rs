//! Step 5 of a message's way: questions to the mailbox, queued by server. Each server has at most
//! one call under way, so that a slow one delays only its own users.
//!
//! A call first invalidates the cache entries that a record made stale, then asks for each
//! recipient's live sessions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api::trace;
use backend::Backends;
use backend::cache::Cache;
use backend::mailbox::{MailboxStore, ServerId};
use backend::{Error, Kind};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use protocol::cache::Invalidation;
use protocol::delivery::{Route, RouteFailure, RouteToken};
use protocol::mailbox::RouteAnswer;
use protocol::presence::{DeniedBoats, SessionKey};
use protocol::{Timestamp, TraceContext};

use crate::Config;
use crate::deadline::StoreDeadline;

/// Users routed in one call.
const ROUTES_PER_CALL: usize = 1024;
/// Bytes of bodies in one call, unless one route has more. A call is a few pipelines, which a
/// server answers well within its deadline.
const BYTES_PER_CALL: usize = 4 << 20;
/// Longest wait of a record for its cache entries to be invalidated. After that, whoever reads a
/// stale entry learns what it lacks from a later list, which is better than delivering to nobody.
const MAX_CACHE_WAIT: Duration = Duration::from_secs(60);

pub(crate) type RouteResults = Vec<(RouteToken, Result<RouteAnswer, RouteFailure>)>;

pub(crate) struct RouteQueue {
    mailbox: Arc<dyn MailboxStore>,
    cache: Arc<dyn Cache>,
    store_deadline: StoreDeadline,
    /// Servers are few, and called in their order.
    servers: BTreeMap<ServerId, ServerQueue>,
    calls: FuturesUnordered<BoxFuture<'static, (ServerId, RouteResults)>>,
}

/// Questions that wait for a server's next call.
#[derive(Default)]
struct ServerQueue {
    forgets: Vec<SessionKey>,
    routes: VecDeque<Route>,
    is_called: bool,
}

impl RouteQueue {
    pub(crate) fn new(backends: &Backends, config: &Config) -> RouteQueue {
        RouteQueue {
            mailbox: backends.mailbox.clone(),
            cache: backends.cache.clone(),
            store_deadline: StoreDeadline::new(config),
            servers: BTreeMap::new(),
            calls: FuturesUnordered::new(),
        }
    }

    pub(crate) fn ask(&mut self, route: Route) {
        let server = self.mailbox.server(route.request.user);
        let queue = self.servers.entry(server).or_default();
        queue.routes.push_back(route);
    }

    pub(crate) fn forget(&mut self, key: SessionKey) {
        let server = self.mailbox.server(key.user);
        self.servers.entry(server).or_default().forgets.push(key);
    }

    /// Calls each server that has questions waiting and no call under way.
    pub(crate) fn begin(&mut self, denied_boats: &DeniedBoats, now: Timestamp) {
        for (&server, queue) in &mut self.servers {
            if queue.is_called || queue.is_empty() {
                continue;
            }
            queue.is_called = true;
            let forgets = std::mem::take(&mut queue.forgets);
            let mut routes = queue.next_call();
            routes
                .iter_mut()
                .for_each(|route| route.stamp(now, denied_boats));
            let router = Router {
                mailbox: self.mailbox.clone(),
                cache: self.cache.clone(),
                store_deadline: self.store_deadline,
            };
            let call = async move { (server, router.route(forgets, routes).await) };
            self.calls.push(Box::pin(call));
        }
    }

    /// Completes when a call ends; never if none is under way. Cancel safe.
    pub(crate) async fn next_results(&mut self) -> RouteResults {
        let Some((server, results)) = self.calls.next().await else {
            return std::future::pending().await;
        };
        if let Some(queue) = self.servers.get_mut(&server) {
            queue.is_called = false;
            // Servers come and go; one without questions is not remembered.
            if queue.is_empty() {
                self.servers.remove(&server);
            }
        }
        results
    }
}

impl ServerQueue {
    fn is_empty(&self) -> bool {
        self.forgets.is_empty() && self.routes.is_empty()
    }

    fn next_call(&mut self) -> Vec<Route> {
        let mut bytes = 0;
        let fits = |&route: &&Route| {
            let mail = route.request.mail.as_ref();
            bytes += mail.map_or(0, |mail| mail.body.len());
            bytes <= BYTES_PER_CALL
        };
        let count = self
            .routes
            .iter()
            .take(ROUTES_PER_CALL)
            .take_while(fits)
            .count();
        self.routes
            .drain(..count.max(1).min(self.routes.len()))
            .collect()
    }
}

/// Asks the mailbox.
struct Router {
    mailbox: Arc<dyn MailboxStore>,
    cache: Arc<dyn Cache>,
    store_deadline: StoreDeadline,
}

impl Router {
    /// Forgets ended sessions and invalidates cache entries before it asks. A forgotten session is
    /// not named again, and a user who signs in after the question finds in the list whatever was
    /// not delivered to them.
    async fn route(self, forgets: Vec<SessionKey>, routes: Vec<Route>) -> RouteResults {
        if !forgets.is_empty() {
            let count = forgets.len();
            let answers = self
                .store_deadline
                .each(count, self.mailbox.disconnect(forgets));
            for error in answers.await.into_iter().filter_map(Result::err) {
                // Later routes meet these sessions, and forget them, again.
                tracing::debug!(%error, "cannot remove the registration of an ended session yet");
            }
        }
        let stale = routes.iter().flat_map(|route| &route.invalidations);
        let failures = self.forget(stale.copied().collect()).await;
        let is_ready = |route: &Route| {
            let mut stale = route.invalidations.iter();
            is_late(route) || stale.all(|stale| !failures.contains(stale))
        };
        let (ready, unready): (Vec<_>, Vec<_>) = routes.into_iter().partition(is_ready);
        let unready = unready.into_iter();
        let unready = unready.map(|route| (route.token, Err(RouteFailure::Unavailable)));
        let mut results: RouteResults = unready.collect();
        results.extend(self.ask(ready).await);
        results
    }

    /// Returns the entries that may still be found.
    async fn forget(&self, stale: BTreeSet<Invalidation>) -> BTreeSet<Invalidation> {
        if stale.is_empty() {
            return stale;
        }
        let invalidations: Vec<Invalidation> = stale.iter().copied().collect();
        let answers = self.cache.forget(&invalidations);
        let answers = self.store_deadline.each(invalidations.len(), answers).await;
        let result = stale.into_iter().zip(answers);
        let failures = result.filter_map(|(stale, result)| {
            let error = result.err()?;
            tracing::debug!(%error, source = %error.source, "cannot invalidate a cache entry");
            Some(stale)
        });
        failures.collect()
    }

    async fn ask(&self, routes: Vec<Route>) -> RouteResults {
        if routes.is_empty() {
            return Vec::new();
        }
        let routes = routes.into_iter();
        let (tokens, requests): (Vec<_>, Vec<_>) = routes
            .map(|route| ((route.token, route.trace), route.request))
            .unzip();
        let answers = self.mailbox.route_or_store(requests);
        let answers = self.store_deadline.each(tokens.len(), answers).await;
        let results = tokens.into_iter().zip(answers);
        results
            .map(|((token, trace), answer)| (token, answer.map_err(|error| failure(&error, trace))))
            .collect()
    }
}

/// Whether stale cache entries no longer put the question off.
fn is_late(route: &Route) -> bool {
    let (now, first_at) = (route.request.now, route.first_at);
    first_at.is_some_and(|first_at| now.since(first_at) > MAX_CACHE_WAIT)
}

fn failure(error: &Error, trace: Option<TraceContext>) -> RouteFailure {
    match error.kind {
        Kind::Unavailable => RouteFailure::Unavailable,
        Kind::Conflict | Kind::Corrupt => {
            tracing::warn!(
                %error,
                source = %error.source,
                trace_id = trace::id(trace),
                "the mailbox refused a message"
            );
            RouteFailure::Refused
        }
    }
}
