//! Serving over the network.

use std::pin::pin;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::Config;
use super::served::Served;

/// Calls of one connection that may be in flight; more wait on the caller's side.
const STREAMS_MAX: u32 = 1024;

/// How long the last answers may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a server ended before it was asked to.
#[derive(Debug, Error)]
#[error("serving failed: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

/// Serves `routes` on `listener` until `stop`: then nothing new is taken, calls in flight may finish
/// for `stop_grace`, and what is left (streams) ends with `UNAVAILABLE`. Dropping the future ends
/// those at once.
///
/// # Errors
/// The listener failed for good.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    config: &Config,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let served = Served::new(routes);
    // Also where this future is dropped.
    let _ended = served.gone().clone().drop_guard();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let stopped = stop.clone();
    let mut serving = pin!(
        Server::builder()
            .http2_keepalive_interval(Some(config.keepalive_interval))
            .http2_keepalive_timeout(Some(config.keepalive_timeout))
            .max_concurrent_streams(STREAMS_MAX)
            .serve_with_incoming_shutdown(served.clone(), incoming, stopped.cancelled_owned())
    );
    tokio::select! {
        ended = &mut serving => return Ok(ended?),
        () = stop.cancelled() => {}
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
