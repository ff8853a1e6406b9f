//! Questions to the mailbox, queued by server: each has at most one call under way, so that a slow
//! server delays only its own users.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use backend::cache::Cache;
use backend::mailbox::{MailboxStore, ServerId};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use protocol::Timestamp;
use protocol::delivery::Route;
use protocol::presence::{DeniedBoats, SessionKey};

use crate::deadline::StoreDeadline;
use crate::router::{RouteQuery, RouteResults, Router};

/// Users routed in one call.
const ROUTES: usize = 1024;
/// Bytes of bodies in one call, unless one route has more. A call is a few pipelines, which a
/// server answers well within its deadline.
const BYTES: usize = 4 << 20;

pub(crate) struct RouteQueue {
    mailbox: Arc<dyn MailboxStore>,
    cache: Arc<dyn Cache>,
    stores: StoreDeadline,
    /// Servers are few, and called in their order.
    servers: BTreeMap<ServerId, Waiting>,
    calls: FuturesUnordered<BoxFuture<'static, (ServerId, RouteResults)>>,
}

/// Questions that wait for a server's next call.
#[derive(Default)]
struct Waiting {
    forgets: Vec<SessionKey>,
    routes: VecDeque<Route>,
    is_called: bool,
}

impl RouteQueue {
    pub(crate) fn new(
        mailbox: Arc<dyn MailboxStore>,
        cache: Arc<dyn Cache>,
        stores: StoreDeadline,
    ) -> RouteQueue {
        RouteQueue {
            mailbox,
            cache,
            stores,
            servers: BTreeMap::new(),
            calls: FuturesUnordered::new(),
        }
    }

    pub(crate) fn ask(&mut self, route: Route) {
        let server = self.mailbox.server(route.user);
        let waiting = self.servers.entry(server).or_default();
        waiting.routes.push_back(route);
    }

    pub(crate) fn forget(&mut self, key: SessionKey) {
        let server = self.mailbox.server(key.user);
        self.servers.entry(server).or_default().forgets.push(key);
    }

    /// Calls each server that has questions waiting and no call under way.
    pub(crate) fn begin(&mut self, denied: &DeniedBoats, now: Timestamp) {
        for (&server, waiting) in &mut self.servers {
            if waiting.is_called || waiting.is_empty() {
                continue;
            }
            waiting.is_called = true;
            let forgets = std::mem::take(&mut waiting.forgets);
            let routes = waiting.next_call().into_iter();
            let question = |route| RouteQuery::of(route, denied.clone(), now);
            let questions = routes.map(question).collect();
            let router = Router {
                mailbox: self.mailbox.clone(),
                cache: self.cache.clone(),
                stores: self.stores,
            };
            let call = async move { (server, router.route(forgets, questions).await) };
            self.calls.push(Box::pin(call));
        }
    }

    /// Completes when a call ends; never if none is under way. Cancel safe.
    pub(crate) async fn answered(&mut self) -> RouteResults {
        let Some((server, routed)) = self.calls.next().await else {
            return std::future::pending().await;
        };
        if let Some(waiting) = self.servers.get_mut(&server) {
            waiting.is_called = false;
            // Servers come and go; one without questions is not remembered.
            if waiting.is_empty() {
                self.servers.remove(&server);
            }
        }
        routed
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.forgets.is_empty() && self.routes.is_empty()
    }

    fn next_call(&mut self) -> Vec<Route> {
        let mut bytes = 0;
        let fits = |&route: &&Route| {
            bytes += route.mail.as_ref().map_or(0, |mail| mail.body.len());
            bytes <= BYTES
        };
        let count = self.routes.iter().take(ROUTES).take_while(fits).count();
        self.routes
            .drain(..count.max(1).min(self.routes.len()))
            .collect()
    }
}
