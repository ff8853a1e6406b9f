//! Serving over the network.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use protocol::Timestamp;
use protocol::accept_backoff::{AcceptBackoff, is_exhaustion};
use protocol::log_pace::LogPace;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::identity::Link;
use super::in_process::InProcessServer;
use super::{Config, Identity, OpeningStream};

/// Calls of one connection in flight; further ones wait on the caller's side.
const STREAMS_MAX: u32 = 1024;
/// Calls that a peer took back before they began; beyond it the connection is closed.
const RESETS_MAX: usize = 32;
/// Bytes of the headers of a call.
const HEADERS_MAX: u32 = 16 * 1024;
/// Connections of a listener; further ones wait in the kernel.
const CONNECTIONS_MAX: usize = 4096;
/// Handshakes at the same time; further connections wait in the kernel.
const HANDSHAKES_MAX: usize = 1024;
/// Deadline of a connection's first bytes. From then on the keepalive checks whether it lives.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

/// Time for the last answers to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Error that ended a server before it was asked to stop.
#[derive(Debug, Error)]
#[error("serving failed: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

/// See [`super::Connector::serve`].
pub(super) async fn serve(
    listener: TcpListener,
    routes: Routes,
    config: &Config,
    identity: Option<Arc<dyn Identity>>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let wants_proof = identity.as_ref().is_some_and(|it| it.required());
    let served = InProcessServer::new(routes)
        .wanting_proof(wants_proof)
        .closing(stop.clone());
    // Also if this future is dropped.
    let _ended = served.gone().clone().drop_guard();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let incoming = opened(placed(incoming), identity, config.connection_age);
    let stopped = stop.clone();
    let mut serving = pin!(
        Server::builder()
            .http2_keepalive_interval(Some(config.keepalive_interval))
            .http2_keepalive_timeout(Some(config.keepalive_timeout))
            .max_concurrent_streams(STREAMS_MAX)
            .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
            .http2_max_header_list_size(HEADERS_MAX)
            .serve_with_incoming_shutdown(served.clone(), incoming, stopped.cancelled_owned())
    );
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        ended = &mut serving => return Ok(ended?),
    }
    if let Ok(ended) = timeout(config.stop_grace, &mut serving).await {
        return Ok(ended?);
    }
    served.end();
    // The calls are answered; a peer that does not take the answers is not waited for.
    match timeout(LAST_WORDS, serving).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Ok(()),
    }
}

/// Gives each connection a permit. Pauses where this process has no room for another one.
fn placed(
    incoming: impl Stream<Item = io::Result<TcpStream>>,
) -> impl Stream<Item = io::Result<(TcpStream, OwnedSemaphorePermit)>> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (mut backoff, begun) = (AcceptBackoff::default(), Instant::now());
    incoming.then(move |accepted| {
        let pause = match &accepted {
            Ok(_) => {
                backoff.accepted();
                Duration::ZERO
            }
            // The next would fail as well.
            Err(error) if error.raw_os_error().is_some_and(is_exhaustion) => {
                let pause = backoff.failed(Timestamp::ZERO + begun.elapsed());
                if pause.warn {
                    tracing::warn!(%error, "accepting pauses: connections of services fail");
                }
                pause.length
            }
            // The error concerns one connection, which is gone.
            Err(_) => Duration::ZERO,
        };
        let places = places.clone();
        async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let stream = accepted?;
            let place = places.acquire_owned().await;
            let place = place.map_err(io::Error::other)?;
            Ok((stream, place))
        }
    })
}

/// Connections of a listener whose peers did not prove their identity.
struct Refusals {
    begun: Instant,
    pace: Mutex<LogPace>,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals {
            begun: Instant::now(),
            pace: Mutex::default(),
        }
    }
}

impl Refusals {
    /// Logs a line now and then, as strangers decide how many there are.
    fn say(&self, peer: io::Result<SocketAddr>, error: &io::Error) {
        let now = Timestamp::ZERO + self.begun.elapsed();
        let count = self.pace.lock().count(now);
        let Some(count) = count else {
            return;
        };
        let peer = peer.map_or_else(|_| "gone".to_owned(), |peer| peer.to_string());
        tracing::warn!(peer, %error, count, "connections of no known service were closed, the last of them this one");
    }
}

/// Connections whose peers have proved their identity, as each gets there; others are dropped.
fn opened(
    incoming: impl Stream<Item = io::Result<(TcpStream, OwnedSemaphorePermit)>>,
    identity: Option<Arc<dyn Identity>>,
    age: Duration,
) -> impl Stream<Item = io::Result<OpeningStream<Link>>> {
    let refusals = Arc::new(Refusals::default());
    let proved = incoming.map(move |accepted| {
        let (identity, refusals) = (identity.clone(), refusals.clone());
        async move {
            let (stream, place) = accepted?;
            let peer = stream.peer_addr();
            let link = match identity {
                None => Link::plain(stream),
                Some(identity) => match Link::accept(stream, identity, age).await {
                    Ok(link) => link,
                    Err(error) => {
                        refusals.say(peer, &error);
                        return Ok(None);
                    }
                },
            };
            Ok(Some(OpeningStream::new(link, BEGIN_WITHIN, place)))
        }
    });
    proved
        .buffer_unordered(HANDSHAKES_MAX)
        .filter_map(|link| std::future::ready(link.transpose()))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    /// Time that ten failures in a row take.
    async fn time_of_ten(os_error: i32) -> Duration {
        let begun = Instant::now();
        let failures = (0..10).map(|_| Err(io::Error::from_raw_os_error(os_error)));
        let tried = placed(stream::iter(failures)).map(|tried| tried.is_err());
        let tried: Vec<bool> = tried.collect().await;
        assert_eq!(tried, [true; 10]);
        begun.elapsed()
    }

    // The listener tried, and warned, ten times a second.
    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_come_once_a_second() {
        const EMFILE: i32 = 24;
        assert_eq!(time_of_ten(EMFILE).await, Duration::from_millis(7_500));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_gone_delays_no_other() {
        const ECONNABORTED: i32 = 103;
        assert_eq!(time_of_ten(ECONNABORTED).await, Duration::ZERO);
    }
}
