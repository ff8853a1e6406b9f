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
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the last answers to be written.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(1);

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
    let server = InProcessServer::new(routes)
        .requiring_proof(wants_proof)
        .closing(stop.clone());
    // Also if this future is dropped.
    let _end_guard = server.gone().clone().drop_guard();
    let connections = TcpIncoming::from(listener).with_nodelay(Some(true));
    let connections = with_proof(with_permits(connections), identity, config.connection_age);
    let stop_token = stop.clone();
    let mut serve_future = pin!(
        Server::builder()
            .http2_keepalive_interval(Some(config.keepalive_interval))
            .http2_keepalive_timeout(Some(config.keepalive_timeout))
            .max_concurrent_streams(STREAMS_MAX)
            .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
            .http2_max_header_list_size(HEADERS_MAX)
            .serve_with_incoming_shutdown(
                server.clone(),
                connections,
                stop_token.cancelled_owned()
            )
    );
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        outcome = &mut serve_future => return Ok(outcome?),
    }
    if let Ok(outcome) = timeout(config.stop_grace, &mut serve_future).await {
        return Ok(outcome?);
    }
    server.end();
    // The calls are answered; a peer that does not take the answers is not waited for.
    match timeout(LAST_ANSWERS_TIMEOUT, serve_future).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Ok(()),
    }
}

/// Gives each connection a permit. Pauses where this process has no room for another one.
fn with_permits(
    connections: impl Stream<Item = io::Result<TcpStream>>,
) -> impl Stream<Item = io::Result<(TcpStream, OwnedSemaphorePermit)>> {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (mut backoff, started_at) = (AcceptBackoff::default(), Instant::now());
    connections.then(move |connection| {
        let pause = match &connection {
            Ok(_) => {
                backoff.accepted();
                Duration::ZERO
            }
            // The next would fail as well.
            Err(error) if error.raw_os_error().is_some_and(is_exhaustion) => {
                let pause = backoff.failed(Timestamp::ZERO + started_at.elapsed());
                if pause.warn {
                    tracing::warn!(%error, "accepting paused: cannot accept connections from services");
                }
                pause.length
            }
            // The error concerns one connection, which is gone.
            Err(_) => Duration::ZERO,
        };
        let permits = permits.clone();
        async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let stream = connection?;
            let permit = permits.acquire_owned().await;
            let permit = permit.map_err(io::Error::other)?;
            Ok((stream, permit))
        }
    })
}

/// Connections of a listener whose peers did not prove their identity.
struct Refusals {
    started_at: Instant,
    pace: Mutex<LogPace>,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals {
            started_at: Instant::now(),
            pace: Mutex::default(),
        }
    }
}

impl Refusals {
    /// Logs a line now and then, as strangers decide how many there are.
    fn log_refusal(&self, peer: io::Result<SocketAddr>, error: &io::Error) {
        let now = Timestamp::ZERO + self.started_at.elapsed();
        let count = self.pace.lock().count(now);
        let Some(count) = count else {
            return;
        };
        let peer = peer.map_or_else(|_| "gone".to_owned(), |peer| peer.to_string());
        tracing::warn!(peer, %error, count, "closed connections from unknown services; this is the latest");
    }
}

/// Connections whose peers have proved their identity, as each gets there; others are dropped.
fn with_proof(
    connections: impl Stream<Item = io::Result<(TcpStream, OwnedSemaphorePermit)>>,
    identity: Option<Arc<dyn Identity>>,
    age: Duration,
) -> impl Stream<Item = io::Result<OpeningStream<Link>>> {
    let refusals = Arc::new(Refusals::default());
    let links = connections.map(move |connection| {
        let (identity, refusals) = (identity.clone(), refusals.clone());
        async move {
            let (stream, permit) = connection?;
            let peer = stream.peer_addr();
            let link = match identity {
                None => Link::plain(stream),
                Some(identity) => match Link::accept(stream, identity, age).await {
                    Ok(link) => link,
                    Err(error) => {
                        refusals.log_refusal(peer, &error);
                        return Ok(None);
                    }
                },
            };
            Ok(Some(OpeningStream::new(link, FIRST_BYTES_TIMEOUT, permit)))
        }
    });
    links
        .buffer_unordered(HANDSHAKES_MAX)
        .filter_map(|link| std::future::ready(link.transpose()))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    /// Time that ten failures in a row take.
    async fn ten_failures_duration(os_error: i32) -> Duration {
        let started_at = Instant::now();
        let failures = (0..10).map(|_| Err(io::Error::from_raw_os_error(os_error)));
        let result = with_permits(stream::iter(failures)).map(|result| result.is_err());
        let result: Vec<bool> = result.collect().await;
        assert_eq!(result, [true; 10]);
        started_at.elapsed()
    }

    // The listener tried, and warned, ten times a second.
    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_come_once_a_second() {
        const EMFILE: i32 = 24;
        assert_eq!(
            ten_failures_duration(EMFILE).await,
            Duration::from_millis(7_500)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_gone_delays_no_other() {
        const ECONNABORTED: i32 = 103;
        assert_eq!(ten_failures_duration(ECONNABORTED).await, Duration::ZERO);
    }
}
