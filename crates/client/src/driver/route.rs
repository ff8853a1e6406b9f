//! Route to a boat: one fixed address, or the best of a list of edges that stations give.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::edges::Edge;
use protocol::{Code, Refusal, Timestamp};
use tokio::time::{Duration, timeout};

use super::connection::{Connection, lost};
use super::dial::Dial;
use super::edge_book::{EdgeBook, blames_edge};
use super::tls::Tls;
use super::{Address, ClientConfig, ConnectError};
use crate::store::StorePath;

/// Time limit of a list request, while an edge is known.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// Application's source of the list of edges, `GET /v1/edges` of a station.
#[async_trait]
pub trait EdgeSource: Send + Sync {
    /// Fetches the current list. Dropped if it takes longer than
    /// [`connect_timeout`](ClientConfig::connect_timeout), or than two seconds while an edge is
    /// known.
    ///
    /// # Errors
    /// After any error, the previous list is used.
    async fn edges(&self) -> Result<Vec<Edge>, Refusal>;
}

/// Edges in place of a single address.
#[derive(Clone)]
pub struct EdgeConfig {
    pub source: Arc<dyn EdgeSource>,
    /// Zone of the client, whose edges come first.
    pub zone: Option<String>,
    /// Every address must ask for TLS, as the list comes by TLS: nobody in between may strip it.
    pub tls_only: bool,
}

/// An address, with its TLS.
#[derive(Clone)]
struct RouteTarget {
    address: Address,
    tls: Option<Tls>,
}

impl RouteTarget {
    fn new(url: &str, trust: Option<&rustls::ClientConfig>) -> Result<RouteTarget, ConnectError> {
        let address: Address = url.parse()?;
        let tls = match (trust, address.is_secure()) {
            (_, false) => None,
            (None, true) => return Err(ConnectError::Trust(address)),
            (Some(trust), true) => match Tls::new(&address, trust) {
                Some(tls) => Some(tls),
                None => return Err(ConnectError::Host(address)),
            },
        };
        Ok(RouteTarget { address, tls })
    }
}

#[derive(Clone)]
pub(super) struct Route {
    /// `None`: edges are the only way.
    fixed_target: Option<RouteTarget>,
    edges: Option<Arc<Edges>>,
    trust: Option<Arc<rustls::ClientConfig>>,
    dial: Arc<dyn Dial>,
    connect_timeout: Duration,
    frame_bytes_max: usize,
}

struct Edges {
    config: EdgeConfig,
    book: Mutex<EdgeBook>,
    /// `None`: the list is lost with the process.
    file: Option<PathBuf>,
    /// Edge of the current connection.
    at_hand: Mutex<Option<String>>,
}

impl Route {
    /// # Errors
    /// An invalid address, or one without what its TLS needs.
    pub(super) async fn new(config: &ClientConfig) -> Result<Route, ConnectError> {
        let trust = config.tls.clone();
        let fixed_target = match (&config.edges, config.url.as_str()) {
            (Some(_), "") => None,
            (edges, url) => {
                let target = RouteTarget::new(url, trust.as_deref())?;
                match edges {
                    Some(edges) if edges.tls_only && target.tls.is_none() => {
                        return Err(ConnectError::Plain(target.address));
                    }
                    _ => Some(target),
                }
            }
        };
        let edges = match &config.edges {
            Some(edges) => Some(Arc::new(Edges::open(edges.clone(), &config.state).await)),
            None => None,
        };
        Ok(Route {
            fixed_target,
            edges,
            trust,
            dial: Arc::clone(&config.dial),
            connect_timeout: config.connect_timeout,
            frame_bytes_max: config.frame_bytes_max,
        })
    }

    /// Opens a connection over the route chosen at `now`.
    pub(super) async fn open(self, now: Timestamp, jitter: u64) -> Result<Connection, Refusal> {
        let target = match &self.edges {
            Some(edges) => self.choose(edges, now, jitter).await?,
            None => self.fixed_target.clone().ok_or_else(nowhere)?,
        };
        let RouteTarget { address, tls } = target;
        let dial = self.dial.as_ref();
        let (connect_timeout, frame_bytes_max) = (self.connect_timeout, self.frame_bytes_max);
        Connection::open(
            &address,
            dial,
            tls.as_ref(),
            connect_timeout,
            frame_bytes_max,
        )
        .await
    }

    async fn choose(
        &self,
        edges: &Edges,
        now: Timestamp,
        jitter: u64,
    ) -> Result<RouteTarget, Refusal> {
        let asks = {
            let mut book = edges.book.lock();
            book.asks(now).then(|| {
                if book.all_failed(now) {
                    self.connect_timeout
                } else {
                    self.connect_timeout.min(LIST_TIMEOUT)
                }
            })
        };
        if let Some(list_timeout) = asks {
            edges.ask(now, list_timeout).await;
        }
        let zone = edges.config.zone.as_deref();
        let url = {
            let book = edges.book.lock();
            // Boats may have moved: once every edge has failed, the fixed address takes turns with
            // them.
            let is_own_turn =
                self.fixed_target.is_some() && book.all_failed(now) && jitter & 1 == 0;
            let edge = book.choose(zone, now, jitter).filter(|_| !is_own_turn);
            edge.map(|edge| edge.url.clone())
        };
        (*edges.at_hand.lock()).clone_from(&url);
        let Some(url) = url else {
            return self.fixed_target.clone().ok_or_else(nowhere);
        };
        let target = RouteTarget::new(&url, self.trust.as_deref()).map_err(lost)?;
        if edges.config.tls_only && target.tls.is_none() {
            return Err(lost(format!("refused an edge without TLS: {url}")));
        }
        Ok(target)
    }

    /// Handles a connection that did not come about, or ended with this code: if the edge is to
    /// blame, others come first for a while.
    pub(super) fn fail(&self, end_code: Option<Code>, now: Timestamp) {
        if let Some(edges) = &self.edges
            && let Some(url) = edges.at_hand.lock().take()
            && end_code.is_none_or(blames_edge)
        {
            edges.book.lock().fail(&url, now);
        }
    }
}

impl Edges {
    async fn open(config: EdgeConfig, state: &StorePath) -> Edges {
        let file = match state {
            StorePath::Path(path) => Some(path.with_added_extension("edges")),
            StorePath::Memory => None,
        };
        // A list that cannot be read is fetched anew.
        let book = match &file {
            Some(file) => read(file).await.unwrap_or_default(),
            None => EdgeBook::default(),
        };
        Edges {
            config,
            book: Mutex::new(book),
            file,
            at_hand: Mutex::default(),
        }
    }

    /// Fetches the list once; without an answer, the known one stays.
    async fn ask(&self, now: Timestamp, list_timeout: Duration) {
        let list = match timeout(list_timeout, self.config.source.edges()).await {
            Ok(Ok(list)) => list,
            Ok(Err(why)) => {
                tracing::debug!(%why, "cannot fetch the list of edges");
                return;
            }
            Err(_) => {
                tracing::debug!(within = ?list_timeout, "timed out fetching the list of edges");
                return;
            }
        };
        let book = {
            let mut book = self.book.lock();
            book.learn(list, now).then(|| book.clone())
        };
        if let (Some(book), Some(file)) = (book, &self.file)
            && let Err(error) = write(file, &book).await
        {
            tracing::debug!(%error, file = %file.display(), "cannot save the list of edges");
        }
    }
}

fn nowhere() -> Refusal {
    let text = "no station names a boat address, and no earlier list is saved";
    Refusal::new(Code::Unavailable, text)
}

async fn read(file: &Path) -> Option<EdgeBook> {
    let text = tokio::fs::read(file).await.ok()?;
    serde_json::from_slice(&text).ok()
}

/// Writes all or nothing, if the process dies; a file torn by a dying machine is no list, and is
/// fetched anew.
async fn write(file: &Path, book: &EdgeBook) -> io::Result<()> {
    let new = file.with_added_extension("new");
    tokio::fs::write(&new, serde_json::to_vec(book)?).await?;
    tokio::fs::rename(&new, file).await
}
