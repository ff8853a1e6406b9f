//! Questions to the mailbox, by the server that answers them: one call to each under way, so that a server that is slow
//! delays only the users it has.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use backend::cache::Cache;
use backend::mailbox::{MailboxStore, ServerId};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use protocol::Timestamp;
use protocol::delivery::Route;
use protocol::presence::{Denied, SessionKey};

use crate::router::{Question, Routed, Router};
use crate::stores::Timed;

/// Users that are routed in one call.
const ROUTES: usize = 1024;
/// Bytes of bodies in one call, unless one route has more: a call is a few pipelines, which a server answers well within
/// its deadline.
const BYTES: usize = 4 << 20;

pub(crate) struct Routes {
    mailbox: Arc<dyn MailboxStore>,
    cache: Arc<dyn Cache>,
    stores: Timed,
    servers: HashMap<ServerId, Waiting>,
    calls: FuturesUnordered<BoxFuture<'static, (ServerId, Routed)>>,
}

/// What waits for a server's next call.
#[derive(Default)]
struct Waiting {
    forgets: Vec<SessionKey>,
    routes: VecDeque<Route>,
    is_called: bool,
}

impl Routes {
    pub(crate) fn new(
        mailbox: Arc<dyn MailboxStore>,
        cache: Arc<dyn Cache>,
        stores: Timed,
    ) -> Routes {
        Routes {
            mailbox,
            cache,
            stores,
            servers: HashMap::new(),
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

    /// Calls each server for which something waits and that is not asked already.
    pub(crate) fn begin(&mut self, denied: &Denied, now: Timestamp) {
        for (&server, waiting) in &mut self.servers {
            if waiting.is_called || waiting.is_empty() {
                continue;
            }
            waiting.is_called = true;
            let forgets = std::mem::take(&mut waiting.forgets);
            let routes = waiting.next_call().into_iter();
            let question = |route| Question::of(route, denied.clone(), now);
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

    /// Completes when a call ends; never, where none is under way. Cancel safe.
    pub(crate) async fn answered(&mut self) -> Routed {
        let Some((server, routed)) = self.calls.next().await else {
            return std::future::pending().await;
        };
        if let Some(waiting) = self.servers.get_mut(&server) {
            waiting.is_called = false;
            // Servers come and go; whoever has nothing to do is not remembered.
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
