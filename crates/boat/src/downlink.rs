//! Calls of carriers and stations: pushes and notices to the sessions of this boat.

pub(crate) mod deliver_streams;
pub(crate) mod grpc;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::boat::{DeliverBatch, Notice, NoticeKind};
use api::status::from_refusal;
use api::v1;
use futures_util::Stream;
use protocol::delivery::Push;
use protocol::session;
use tonic::{Status, Streaming};
use tracing::warn;

use self::deliver_streams::{DeliverStream, DeliverStreams};
use crate::Config;
use crate::connection::connections::Connections;
use crate::status::{BoatStatus, Shortage};

/// Batches taken from a stream before its outcomes get a turn.
const BATCHES_A_TURN: usize = 16;

pub(crate) struct Downlink {
    connections: Arc<Connections>,
    status: Arc<BoatStatus>,
    streams: Arc<DeliverStreams>,
    /// Waiting bytes beyond which a session takes no push while memory is short: half of the usual
    /// limit is enough.
    shortage_bytes_max: usize,
}

impl Downlink {
    pub(crate) fn new(
        config: &Config,
        connections: Arc<Connections>,
        status: Arc<BoatStatus>,
        streams: Arc<DeliverStreams>,
    ) -> Arc<Downlink> {
        Arc::new(Downlink {
            connections,
            status,
            streams,
            shortage_bytes_max: config.session.outgoing_bytes_max as usize / 2,
        })
    }

    /// False: no such session here.
    pub(crate) fn notify(&self, notice: Notice) -> bool {
        let Some(connection) = self.connections.get(notice.session) else {
            return false;
        };
        connection.update(|session| {
            if session.is_closed() {
                return false;
            }
            match notice.kind {
                NoticeKind::Frame(frame) => session.notice(frame, self.connections.now()),
                NoticeKind::Hint => session.hint(),
                NoticeKind::Resync => session.resync(self.connections.now()),
                NoticeKind::Close(refusal) => session.close(refusal, self.connections.now()),
            }
            true
        })
    }

    /// False: no such session here.
    fn push(&self, source: u32, push: Push) -> bool {
        let Some(connection) = self.connections.get(push.session) else {
            return false;
        };
        connection.update(|session| {
            // The loop has polled the last outcomes: a push accepted now would never get one.
            if session.is_closed() {
                return false;
            }
            if self.status.is_short_of(Shortage::Memory)
                && session.waiting() >= self.shortage_bytes_max
            {
                session.refuse_push(source, &push);
            } else {
                session.push(source, push, self.connections.now());
            }
            true
        })
    }
}

/// Stream of a carrier: batches in, outcomes out. Its end loses nothing: pushes in flight still
/// reach the clients, and the carrier's own deadlines decide.
pub(crate) struct DeliverService {
    downlink: Arc<Downlink>,
    source: DeliverStream,
    /// `None` once the carrier has closed its side.
    batches: Option<Streaming<v1::DeliverBatch>>,
}

impl DeliverService {
    pub(crate) fn new(
        downlink: Arc<Downlink>,
        batches: Streaming<v1::DeliverBatch>,
    ) -> DeliverService {
        DeliverService {
            source: downlink.streams.open(),
            downlink,
            batches: Some(batches),
        }
    }

    /// Takes received batches; an error ends the stream.
    fn poll_batches(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        for _ in 0..BATCHES_A_TURN {
            let Some(batches) = &mut self.batches else {
                return Ok(());
            };
            match Pin::new(batches).poll_next(cx) {
                Poll::Ready(Some(Ok(batch))) => self.deliver(batch)?,
                Poll::Ready(Some(Err(_)) | None) => self.batches = None,
                Poll::Pending => return Ok(()),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn deliver(&self, batch: v1::DeliverBatch) -> Result<(), Status> {
        let batch = DeliverBatch::try_from(batch).map_err(|refusal| {
            warn!(text = %refusal.text, "cannot decode a batch from a carrier");
            from_refusal(&refusal)
        })?;
        let is_mine = self.downlink.status.is_mine(&batch.life);
        for push in batch.pushes {
            let number = push.token.number();
            if let Some(trace) = self.downlink.streams.spans().sampled(push.trace) {
                self.source.trace(number, trace, push.message);
            }
            if !is_mine || !self.downlink.push(self.source.id, push) {
                let outcome = session::Outcome::NoSession;
                self.downlink.streams.count(outcome);
                self.source.resolve(number, outcome);
            }
        }
        if is_mine {
            for notice in batch.notices {
                self.downlink.notify(notice);
            }
        }
        Ok(())
    }
}

impl Stream for DeliverService {
    type Item = Result<v1::OutcomeBatch, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Err(status) = this.poll_batches(cx) {
            this.batches = None;
            return Poll::Ready(Some(Err(status)));
        }
        match this.source.poll_outcomes(cx) {
            Poll::Ready(outcomes) => Poll::Ready(Some(Ok(v1::OutcomeBatch {
                outcomes: outcomes.into_iter().map(v1::Outcome::from).collect(),
            }))),
            Poll::Pending if this.batches.is_none() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for DeliverService {
    fn drop(&mut self) {
        self.downlink.streams.close(&self.source);
    }
}
