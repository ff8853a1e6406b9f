//! The server's side of a call, near or far: ends calls when the server goes, and turns a panic of
//! a handler into a status for its caller.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::service::Routes;

use super::body::{BoundedBody, StatusSource};
use super::call::is_streaming;
use super::standard;
use crate::access::{Peer, permit};
use crate::trace;

/// Status of a call in flight whose server goes.
pub(super) fn gone() -> Status {
    Status::unavailable("the server has stopped: the call may or may not have been done")
}

pub(super) fn panicked() -> Status {
    Status::internal("bug: the handler panicked, see the server's log")
}

/// Services of one server, until the server ends.
#[derive(Clone, Debug)]
pub(super) struct InProcessServer {
    routes: Routes,
    end_token: CancellationToken,
    /// Once cancelled, no new calls are taken, and streams of gRPC's own services end.
    close_token: CancellationToken,
    /// Whether callers must have proved who they are.
    wants_proof: bool,
}

impl InProcessServer {
    pub(super) fn new(routes: Routes) -> InProcessServer {
        InProcessServer {
            routes: routes.prepare(),
            end_token: CancellationToken::new(),
            close_token: CancellationToken::new(),
            wants_proof: false,
        }
    }

    /// Refuses calls without a caller, wherever they come from: every listener of this kind
    /// requires certificates.
    pub(super) fn requiring_proof(mut self, wants_proof: bool) -> InProcessServer {
        self.wants_proof = wants_proof;
        self
    }

    /// Takes no new calls once `close_token` is cancelled.
    pub(super) fn closing(mut self, close_token: CancellationToken) -> InProcessServer {
        self.close_token = close_token;
        self
    }

    /// Ends all calls in flight with `UNAVAILABLE`.
    pub(super) fn end(&self) {
        self.end_token.cancel();
    }

    pub(super) fn gone(&self) -> &CancellationToken {
        &self.end_token
    }

    /// Answers a call. Cancel safe: the handler is dropped with the future. Reads nothing of a call
    /// before its caller may make it.
    pub(super) async fn answer(
        &self,
        mut request: http::Request<Body>,
        peer: &Peer,
    ) -> http::Response<Body> {
        if let Err(status) = self.permit(request.uri().path(), peer) {
            tracing::warn!(status = status.message(), "call refused");
            return status.into_http();
        }
        if let Some(caller) = &peer.0 {
            request.extensions_mut().insert(caller.clone());
        }
        let path = request.uri().path();
        if standard::is_streaming(path) {
            self.answer_stream(request, &self.close_token).await
        } else if is_streaming(path) {
            self.answer_stream(request, &self.end_token).await
        } else {
            self.handle(request).await
        }
    }

    fn permit(&self, path: &str, peer: &Peer) -> Result<(), Status> {
        if self.wants_proof && peer.0.is_none() {
            let text = "the caller has no certificate, and identity.required is set here";
            return Err(Status::unauthenticated(text));
        }
        permit(path, peer.0.as_ref())
    }

    async fn handle(&self, request: http::Request<Body>) -> http::Response<Body> {
        let mut routes = self.routes.clone();
        let trace = trace::call_trace(request.headers());
        let call = async move { routes.call(request).await };
        let handler = trace::within(trace, AssertUnwindSafe(call).catch_unwind());
        tokio::select! {
            biased;
            result = handler => match result {
                Ok(Ok(response)) => response,
                Err(_) => panicked().into_http(),
            },
            () = self.end_token.cancelled() => gone().into_http(),
        }
    }

    /// Answers a streaming call. Its requests end for their reader, who may live in a task of its
    /// own, once nobody reads the answers any longer or the server's `end` has come; the answers
    /// end with that as well.
    async fn answer_stream(
        &self,
        request: http::Request<Body>,
        end: &CancellationToken,
    ) -> http::Response<Body> {
        let cancellation = end.child_token();
        let reader = cancellation.clone().drop_guard();
        let request = request.map(|body| {
            let request_end = Box::pin(async move {
                cancellation.cancelled().await;
                Status::cancelled("the call has ended")
            });
            Body::new(BoundedBody::new(body, request_end, StatusSource::Error))
        });
        let response = self.handle(request).await;
        let server = end.clone();
        response.map(|body| {
            let response_end = Box::pin(async move {
                server.cancelled().await;
                gone()
            });
            Body::new(BoundedBody::new(body, response_end, StatusSource::Trailers).read_by(reader))
        })
    }
}

impl Service<http::Request<Body>> for InProcessServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let server = self.clone();
        let peer = request.extensions().get::<Peer>();
        let peer = peer.cloned().unwrap_or_default();
        Box::pin(async move { Ok(server.answer(request, &peer).await) })
    }
}

/// A name of this process, and its present server, if any.
#[derive(Debug, Default)]
pub(super) struct InProcessSlot {
    server: RwLock<Option<Arc<InProcessServer>>>,
}

impl InProcessSlot {
    pub(super) fn get(&self) -> Option<Arc<InProcessServer>> {
        self.server.read().clone()
    }

    /// Serves the name with `server`, and ends the previous server.
    pub(super) fn put(&self, server: Arc<InProcessServer>) {
        let previous = self.server.write().replace(server);
        if let Some(previous) = previous {
            previous.end();
        }
    }

    /// Removes `server`, if it is still the one that serves.
    pub(super) fn take(&self, server: &Arc<InProcessServer>) {
        let mut current = self.server.write();
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(now, server)) {
            *current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::access::{Caller, Role};
    use tonic::Code;

    use super::*;

    /// Code of a call that comes with this peer, or with none.
    async fn code(server: &InProcessServer, peer: Option<Peer>) -> Code {
        let path = "/packetboat.v1.StationService/Kickout";
        let mut request = http::Request::new(Body::empty());
        *request.uri_mut() = path.parse().expect("a path");
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        let answer = server.clone().call(request).await.expect("an answer");
        let status = Status::from_header_map(answer.headers());
        status.map_or(Code::Unknown, |status| status.code())
    }

    // A connection without its peer counted as one of a network without identities, which may call
    // everything.
    #[tokio::test]
    async fn where_proof_is_required_a_call_without_a_caller_is_refused() {
        let desk = || Some(Peer(Some(Caller::new(Role::Desk, "a"))));
        let strict = InProcessServer::new(Routes::default()).requiring_proof(true);
        for peer in [None, Some(Peer::default())] {
            assert_eq!(code(&strict, peer).await, Code::Unauthenticated);
        }
        // Permitted, but no service of this server.
        assert_eq!(code(&strict, desk()).await, Code::Unimplemented);
        let lenient = InProcessServer::new(Routes::default());
        for peer in [None, Some(Peer::default()), desk()] {
            assert_eq!(code(&lenient, peer).await, Code::Unimplemented);
        }
    }
}
