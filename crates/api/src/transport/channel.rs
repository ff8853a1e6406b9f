//! Channel to one server.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::access::Role;
use protocol::pause::between;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Endpoint;
use tower::ServiceExt;

use super::body::{BoundedBody, StatusSource};
use super::call::{
    broken_off, call_timeout, is_streaming, read_by, tie_to_reader, unreachable, within,
};
use super::gate::Passage;
use super::identity::Dialer;
use super::in_process::InProcessSlot;
use super::{Config, Identity};
use crate::access::Peer;

/// A clonable service that every generated client takes. Errors are [`Status`]es.
#[derive(Clone)]
pub struct Channel {
    address: Arc<str>,
    path: Path,
    unary_timeout: Duration,
}

/// Channel to a name of this process.
#[derive(Clone)]
pub(super) struct Near {
    pub(super) slot: Arc<InProcessSlot>,
    pub(super) peer: Peer,
    pub(super) gate: Option<Passage>,
}

#[derive(Clone)]
pub(super) enum Path {
    Near(Near),
    Far(tonic::transport::Channel),
    Proved(Arc<RenewedChannel>),
    Nowhere(&'static str),
}

const NO_ADDRESS: &str =
    "not a service address: use inproc:<name>, http://host:port or https://host:port";
const NO_IDENTITY: &str = "https needs a certificate of this process: section identity has none";

impl Path {
    pub(super) fn far(
        address: &str,
        config: &Config,
        identity: Option<&Arc<dyn Identity>>,
        role: Role,
    ) -> Path {
        let (host, is_secure) = match address.split_once("://") {
            Some(("http", host)) => (host, identity.is_some_and(|it| it.required())),
            Some(("https", host)) => (host, true),
            _ => return Path::Nowhere(NO_ADDRESS),
        };
        // Our own dialer speaks TLS, not the library's.
        let Ok(endpoint) = Endpoint::from_shared(format!("http://{host}")) else {
            return Path::Nowhere(NO_ADDRESS);
        };
        let endpoint = endpoint
            .tcp_nodelay(true)
            .connect_timeout(config.connect_timeout)
            .http2_keep_alive_interval(config.keepalive_interval)
            .keep_alive_timeout(config.keepalive_timeout)
            .keep_alive_while_idle(true);
        match identity {
            _ if !is_secure => Path::Far(endpoint.connect_lazy()),
            Some(identity) => {
                let dialer = Dialer::new(Arc::clone(identity), role, config.connection_age);
                let age = spread(config.connection_age);
                Path::Proved(Arc::new(RenewedChannel::new(endpoint, dialer, age)))
            }
            None => Path::Nowhere(NO_IDENTITY),
        }
    }
}

/// Connections to one server, each for a limited time. The caller leaves the old one: if a server
/// ended it, calls on their way to it would fail.
pub(super) struct RenewedChannel {
    endpoint: Endpoint,
    dialer: Dialer,
    age: Duration,
    current: Mutex<(tonic::transport::Channel, Instant)>,
}

impl RenewedChannel {
    fn new(endpoint: Endpoint, dialer: Dialer, age: Duration) -> RenewedChannel {
        let channel = endpoint.connect_with_connector_lazy(dialer.clone());
        RenewedChannel {
            endpoint,
            dialer,
            age,
            current: Mutex::new((channel, Instant::now())),
        }
    }

    /// Returns the present connection, or a new one if it is old.
    fn channel(&self) -> tonic::transport::Channel {
        let mut current = self.current.lock();
        if current.1.elapsed() >= self.age {
            let dialer = self.dialer.clone();
            let channel = self.endpoint.connect_with_connector_lazy(dialer);
            *current = (channel, Instant::now());
        }
        current.0.clone()
    }
}

/// Spreads an age by ten percent: processes that began together do not all reconnect in one moment.
fn spread(age: Duration) -> Duration {
    let random = RandomState::new().hash_one(());
    between(age - age / 10, age + age / 10, random)
}

impl Path {
    fn send(
        &self,
        request: http::Request<Body>,
    ) -> impl Future<Output = Result<http::Response<Body>, Status>> + Send + 'static {
        let path = self.clone();
        async move {
            match path {
                Path::Near(near) => match &near.gate {
                    None => near.call(request).await,
                    Some(gate) => gate.call(near.call(request)).await,
                },
                Path::Far(channel) => far(channel, request).await,
                Path::Proved(renewed_channel) => far(renewed_channel.channel(), request).await,
                Path::Nowhere(reason) => Err(Status::unavailable(reason)),
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

    /// Address as it was given to the connector.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Limits unary calls of this clone that set no deadline of their own.
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
        let is_stream = is_streaming(request.uri().path());
        let timeout = call_timeout(request.headers_mut(), is_stream, self.unary_timeout);
        crate::trace::put_on_call(request.headers_mut());
        if !is_stream {
            return Box::pin(within(timeout, self.path.send(request)));
        }
        let (request, reader) = tie_to_reader(request);
        Box::pin(within(timeout, read_by(reader, self.path.send(request))))
    }
}

impl Near {
    async fn call(&self, mut request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let Some(server) = self.slot.get() else {
            return Err(Status::unavailable(
                "no service of this name in this process",
            ));
        };
        // Extensions would not cross a network.
        request.extensions_mut().clear();
        Ok(server.answer(request, &self.peer).await)
    }
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
        let never_ends = Box::pin(std::future::pending());
        Body::new(BoundedBody::new(body, never_ends, StatusSource::Error).translating(broken_off))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_ten_percent_at_most() {
        let hour = Duration::from_secs(3600);
        let ages: Vec<Duration> = (0..1000).map(|_| spread(hour)).collect();
        let (least, most) = (ages.iter().min(), ages.iter().max());
        let (least, most) = (least.expect("ages"), most.expect("ages"));
        assert!(*least >= hour.mul_f64(0.9) && *most <= hour.mul_f64(1.1001));
        assert!(*least < hour.mul_f64(0.95) && *most > hour.mul_f64(1.05));
        assert_eq!(Config::default().connection_age, hour);
    }
}
