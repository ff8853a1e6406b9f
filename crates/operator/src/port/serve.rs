//! A listener for HTTP/1.1 and HTTP/2 with bounds and deadlines.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::transport::OpeningStream;
use axum::Router;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use protocol::Timestamp;
use protocol::accept_backoff::{AcceptBackoff, Pause};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service;

use super::handshakes::Handshakes;
use super::places::{Place, Places};
use super::spare_files::{SpareFiles, is_out_of_room};

/// Time for a connection to begin, and for a head to arrive; an idle HTTP/1.1 connection is closed
/// after it, too.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// Time for a connection past its life to take its last answer.
const FAREWELL: Duration = Duration::from_secs(10);
/// Connections of operators and probes accepted when no file is left.
const SPARES: usize = 8;
/// Connections of operators and probes; further ones wait in the kernel.
const CONNECTIONS_MAX: usize = 512;
/// Limit of lines and bytes in a head: several times those of a browser.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Limits of an HTTP/2 connection: concurrent calls, and calls reset before they began.
const STREAMS_MAX: u32 = 128;
const RESETS_MAX: usize = 32;
/// Pause between two HTTP/2 pings, and time for their answer.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(5);

/// A port, before it serves.
pub struct Port {
    /// Name of the port in log lines.
    pub name: &'static str,
    /// `None`: the port speaks no TLS.
    pub tls: Option<Handshakes>,
    pub router: Router,
    pub places: Places,
    /// Connections accepted when this process may open no more files.
    pub spares: usize,
    /// Longest life of a connection; `None`: as long as its peer answers.
    pub life: Option<Duration>,
}

impl Port {
    /// Port for operators and probes.
    pub fn new(name: &'static str, router: Router) -> Port {
        Port {
            name,
            tls: None,
            router,
            places: Places::new(CONNECTIONS_MAX),
            spares: SPARES,
            life: None,
        }
    }

    /// Serves until `stop`; requests in flight are answered.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let port = Arc::new(self);
        let spares = Arc::new(SpareFiles::new(port.spares));
        let (mut backoff, started_at) = (AcceptBackoff::default(), Instant::now());
        let accept_loop = async {
            loop {
                let Some(free) = port.places.free().await else {
                    return;
                };
                match spares.accept(&listener).await {
                    Ok((stream, peer)) => {
                        backoff.accepted();
                        let Some(place) = port.places.take(free, peer.ip()) else {
                            drop(stream);
                            spares.refill();
                            continue;
                        };
                        // A lone small frame must not wait for the one before it.
                        let _ = stream.set_nodelay(true);
                        let (port, stop) = (Arc::clone(&port), stop.clone());
                        let spares = Arc::clone(&spares);
                        tokio::spawn(async move {
                            let handshake = port.secure(stream, peer);
                            if let Some(Some(stream)) = stop.run_until_cancelled(handshake).await {
                                port.converse(stream, peer, place, stop).await;
                            }
                            spares.refill();
                        });
                    }
                    Err(error) => {
                        let now = Timestamp::ZERO + started_at.elapsed();
                        let Some(pause) = pause_after(&error, &mut backoff, now) else {
                            continue;
                        };
                        if pause.warn {
                            tracing::warn!(%error, port = port.name, "accepting paused");
                        }
                        sleep(pause.length).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(accept_loop).await;
    }

    /// Stream that HTTP is spoken over; `None` if the handshake failed.
    async fn secure(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<Either<TcpStream, Box<TlsStream<TcpStream>>>> {
        let Some(tls) = &self.tls else {
            return Some(Either::Left(stream));
        };
        match tls.accept(stream).await {
            Ok(stream) => Some(Either::Right(stream)),
            Err(error) => {
                tracing::debug!(%error, %peer, port = self.name, "TLS handshake failed");
                None
            }
        }
    }

    async fn converse(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        place: Place,
        stop: CancellationToken,
    ) {
        let router = self.router.clone();
        let answer = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            router.clone().call(request)
        });
        let mut server = Builder::new(TokioExecutor::new());
        server
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX);
        server
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_WITHIN)
            .max_concurrent_streams(STREAMS_MAX)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_header_list_size(HEAD_BYTES_MAX as u32);
        let stream = TokioIo::new(OpeningStream::new(stream, HEAD_WITHIN, place));
        let mut connection = pin!(server.serve_connection(stream, answer));
        let life = async {
            match self.life {
                Some(life) => sleep(life).await,
                None => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            biased;
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = life => {
                connection.as_mut().graceful_shutdown();
                // A client that does not read its answer loses it.
                timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
            }
            // Polled last, as requests may come without a pause.
            result = connection.as_mut() => result,
        };
        if let Err(error) = result {
            tracing::debug!(%error, %peer, port = self.name, "connection closed early");
        }
    }
}

/// Pause after a failed accept where this process has no room: a connection that ends makes some.
/// `None` if the error concerns one connection, which is gone.
fn pause_after(error: &io::Error, backoff: &mut AcceptBackoff, now: Timestamp) -> Option<Pause> {
    is_out_of_room(error).then(|| backoff.failed(now))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn port() -> Port {
        let router = Router::new().route("/livez", get(|| async { "live\n" }));
        Port::new("test", router)
    }

    /// Sends these bytes and no more, until the port closes; returns the time taken and the answer.
    /// In memory: paused time would pass while the kernel works.
    async fn stall(port: &Port, bytes: &[u8]) -> (Duration, String) {
        let (mut stream, server_end) = duplex(64 << 10);
        let peer = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let free = port.places.free().await.expect("open");
        let place = port.places.take(free, peer.ip()).expect("room");
        let start = Instant::now();
        let server = port.converse(server_end, peer, place, CancellationToken::new());
        let client = async {
            stream.write_all(bytes).await.expect("sent");
            let mut answer = Vec::new();
            // A reset is an end as well.
            let _ = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8_lossy(&answer).into_owned();
            (start.elapsed(), answer)
        };
        tokio::join!(server, client).1
    }

    // A drip of bytes held a connection forever.
    #[tokio::test(start_paused = true)]
    async fn an_unfinished_head_is_dropped_after_ten_seconds() {
        let port = port();
        let cases: [&[u8]; 4] = [
            b"",
            b"GET /livez HTTP/1.1\r\n",
            b"PRI * HTTP/2.0\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ];
        for bytes in cases {
            let (duration, _) = stall(&port, bytes).await;
            let range = Duration::from_secs(10)..=Duration::from_secs(15);
            let text = String::from_utf8_lossy(bytes);
            assert!(range.contains(&duration), "{text:?}: {duration:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_lives_ten_seconds_after_its_answer() {
        let port = port();
        let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let (duration, answer) = stall(&port, request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("live\n"), "{answer}");
        assert!(
            duration >= HEAD_WITHIN && duration < HEAD_WITHIN * 2,
            "{duration:?}"
        );
    }

    #[test]
    fn only_a_lack_of_room_pauses_the_port() {
        const EMFILE: i32 = 24;
        const ECONNABORTED: i32 = 103;
        let mut backoff = AcceptBackoff::default();
        let mut pause = |number| {
            let error = io::Error::from_raw_os_error(number);
            let pause = pause_after(&error, &mut backoff, Timestamp::ZERO);
            pause.map(|pause| pause.length.as_millis())
        };
        assert_eq!(pause(ECONNABORTED), None);
        assert_eq!(pause(EMFILE), Some(100));
        assert_eq!(pause(ECONNABORTED), None, "and the trouble goes on");
        assert_eq!(pause(EMFILE), Some(200));
    }
}
