//! A body that may be ended from outside: by a deadline, or because a server or a caller is gone.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio_util::sync::DropGuard;
use tonic::Status;
use tonic::body::Body;

/// Resolves once the body must end, with its last status.
pub(super) type StreamEnd = Pin<Box<dyn Future<Output = Status> + Send>>;

/// Form of the last status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusSource {
    /// As an error of the body: for a reader in this process.
    Error,
    /// As trailers: also for a reader over the network.
    Trailers,
}

pub(super) struct BoundedBody {
    /// `None`: it has ended.
    inner: Option<Body>,
    ending: StreamEnd,
    status_source: StatusSource,
    /// Translates errors of the inner body.
    translate: fn(Status) -> Status,
    /// Signals that nobody reads this body any longer.
    reader: Option<DropGuard>,
}

impl BoundedBody {
    pub(super) fn new(inner: Body, ending: StreamEnd, status_source: StatusSource) -> BoundedBody {
        BoundedBody {
            inner: Some(inner),
            ending,
            status_source,
            translate: |status| status,
            reader: None,
        }
    }

    pub(super) fn translating(mut self, translate: fn(Status) -> Status) -> BoundedBody {
        self.translate = translate;
        self
    }

    pub(super) fn read_by(mut self, reader: DropGuard) -> BoundedBody {
        self.reader = Some(reader);
        self
    }

    fn end_with(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.inner = None;
        self.reader = None;
        let last_frame = match self.status_source {
            StatusSource::Error => Err(status),
            StatusSource::Trailers => {
                let mut trailers = http::HeaderMap::new();
                status
                    .add_header(&mut trailers)
                    .map(|()| Frame::trailers(trailers))
            }
        };
        Poll::Ready(Some(last_frame))
    }
}

impl http_body::Body for BoundedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.inner.is_none() {
            return Poll::Ready(None);
        }
        // First, so that a body that always has something ready cannot outlive its end.
        if let Poll::Ready(status) = this.ending.as_mut().poll(cx) {
            return this.end_with(status);
        }
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        match catch_unwind(AssertUnwindSafe(|| Pin::new(inner).poll_frame(cx))) {
            Ok(Poll::Ready(Some(Err(status)))) => {
                let status = (this.translate)(status);
                this.end_with(status)
            }
            Ok(Poll::Ready(None)) => {
                this.inner = None;
                this.reader = None;
                Poll::Ready(None)
            }
            Ok(frame) => frame,
            Err(_) => this.end_with(super::in_process::panicked()),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner
            .as_ref()
            .is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}
