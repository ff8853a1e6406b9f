//! Head of a request, parsed by hyper within the bounds of the client port, and the handshake by
//! its headers.
#![no_main]

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use boat::stack::websocket::handshake;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::Full;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use libfuzzer_sys::fuzz_target;

const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Socket with all input at hand, which takes all output.
struct Socket<'a>(&'a [u8]);

impl Read for Socket<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let (part, rest) = self.0.split_at(self.0.len().min(to.remaining()));
        to.put_slice(part);
        self.0 = rest;
        Poll::Ready(Ok(()))
    }
}

impl Write for Socket<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let accept_key = handshake::accept(request.method(), request.headers(), "packetboat.v1");
    let status = match accept_key {
        Ok(key) => {
            assert_eq!(key.len(), 28, "a hash in base64");
            200
        }
        Err(rejection) => {
            assert!(rejection.status.is_client_error());
            rejection.status.as_u16()
        }
    };
    let response = Response::builder().status(status).body(Full::default());
    Ok(response.expect("a response"))
}

fuzz_target!(|data: &[u8]| {
    let connection = hyper::server::conn::http1::Builder::new()
        .header_read_timeout(None)
        .max_headers(64)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .half_close(false)
        .serve_connection(Socket(data), service_fn(answer));
    // Nothing ever waits, as all bytes are at hand.
    let _ = connection.now_or_never();
});
