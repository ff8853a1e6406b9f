//! The way to one server.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Endpoint;
use tower::ServiceExt;

use super::body::{Bounded, Says};
use super::call::{broken_off, is_streaming, read_by, tied, time_allowed, unreachable, within};
use super::served::Slot;
use super::{Config, IN_PROCESS};

/// A clonable service that every generated client takes. Errors are [`Status`]es.
#[derive(Clone)]
pub struct Channel {
    address: Arc<str>,
    path: Path,
    unary_timeout: Duration,
}

#[derive(Clone)]
pub(super) enum Path {
    Near(Arc<Slot>),
    Far(tonic::transport::Channel),
    Nowhere,
}

impl Path {
    pub(super) fn far(address: &str, config: &Config) -> Path {
        let Ok(endpoint) = Endpoint::from_shared(address.to_owned()) else {
            return Path::Nowhere;
        };
        if endpoint.uri().scheme_str() != Some("http") {
            return Path::Nowhere;
        }
        let endpoint = endpoint
            .tcp_nodelay(true)
            .connect_timeout(config.connect_timeout)
            .http2_keep_alive_interval(config.keepalive_interval)
            .keep_alive_timeout(config.keepalive_timeout)
            .keep_alive_while_idle(true);
        Path::Far(endpoint.connect_lazy())
    }
}

impl Path {
    fn send(
        &self,
        request: http::Request<Body>,
    ) -> impl Future<Output = Result<http::Response<Body>, Status>> + Send + 'static {
        let path = self.clone();
        async move {
            match path {
                Path::Near(slot) => near(&slot, request).await,
                Path::Far(channel) => far(channel, request).await,
                Path::Nowhere => Err(Status::unavailable(format!(
                    "this address leads nowhere: one is {IN_PROCESS}<name> or http://host:port"
                ))),
            }
        }
    }
}

impl Channel {
    pub(super) fn new(address: &str, path: Path, unary_timeout: Duration) -> Channel {
        Channel {
            address: address.into(),
            path,
            unary_timeout,
        }
    }

    /// As it was given to the connector.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How long unary calls of this clone may take where they set no deadline of their own.
    #[must_use]
    pub fn with_unary_timeout(mut self, timeout: Duration) -> Channel {
        self.unary_timeout = timeout;
        self
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.address).finish()
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    /// Always ready: waiting for a connection is part of the call, and under its deadline.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let streaming = is_streaming(request.uri().path());
        let allowed = time_allowed(request.headers_mut(), streaming, self.unary_timeout);
        crate::trace::put_on_call(request.headers_mut());
        if !streaming {
            return Box::pin(within(allowed, self.path.send(request)));
        }
        let (request, reader) = tied(request);
        Box::pin(within(allowed, read_by(reader, self.path.send(request))))
    }
}

async fn near(
    slot: &Slot,
    mut request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let Some(served) = slot.get() else {
        return Err(Status::unavailable(
            "nobody serves this name in the process",
        ));
    };
    // They would not cross a network.
    request.extensions_mut().clear();
    Ok(served.answer(request).await)
}

async fn far(
    channel: tonic::transport::Channel,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let response = channel.oneshot(request).await.map_err(unreachable)?;
    if http_body::Body::is_end_stream(response.body()) {
        return Ok(response);
    }
    Ok(response.map(|body| {
        let never = Box::pin(std::future::pending());
        Body::new(Bounded::new(body, never, Says::Error).translating(broken_off))
    }))
}
