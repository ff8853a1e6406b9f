//! gRPC service of a boat: calls of carriers and stations.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::boat::{
    DeliverBatch, DrainCommand, DrainOrder, DrainProgress, Notice, NoticeBatch, NoticeKind,
};
use api::status::from_refusal;
use api::v1;
use api::v1::boat_service_server::{BoatService, BoatServiceServer};
use futures_util::Stream;
use protocol::delivery::Push;
use protocol::session::Outcome;
use protocol::{Code, Refusal};
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use tracing::warn;

use crate::boat::{Boat, Phase, Shortage};
use crate::deliver_streams::DeliverStream;

/// Batches taken from a stream before its outcomes get a turn.
const BATCHES_A_TURN: usize = 16;

/// Time for an order to take effect.
const ORDER_WITHIN: Duration = Duration::from_secs(1);

/// The gRPC side of a boat.
pub(crate) fn routes(boat: Arc<Boat>) -> Routes {
    Routes::new(BoatServiceServer::new(Service(boat)))
}

struct Service(Arc<Boat>);

#[tonic::async_trait]
impl BoatService for Service {
    type DeliverStream = Pin<Box<DeliverService>>;

    async fn deliver(
        &self,
        request: Request<Streaming<v1::DeliverBatch>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        Ok(Response::new(Box::pin(DeliverService {
            source: self.0.sources.open(),
            boat: Arc::clone(&self.0),
            batches: Some(request.into_inner()),
        })))
    }

    async fn notice(
        &self,
        request: Request<v1::NoticeRequest>,
    ) -> Result<Response<v1::NoticeResponse>, Status> {
        let batch = NoticeBatch::try_from(request.into_inner())
            .map_err(|refusal| from_refusal(&refusal))?;
        let mine = self.0.is_mine(&batch.life);
        let missing = (batch.notices.into_iter())
            .filter_map(|notice| {
                let session = notice.session;
                (!mine || !self.0.notify(notice)).then(|| session.get())
            })
            .collect();
        Ok(Response::new(v1::NoticeResponse { missing }))
    }

    async fn probe(
        &self,
        request: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        let life = request
            .into_inner()
            .life
            .map(protocol::presence::BoatLife::try_from);
        let life = life.transpose().map_err(|refusal| from_refusal(&refusal))?;
        let alive = life.is_some_and(|life| self.0.is_mine(&life));
        Ok(Response::new(v1::ProbeResponse { alive }))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        let command = DrainCommand::try_from(request.into_inner())
            .map_err(|refusal| from_refusal(&refusal))?;
        let ordered = self.0.order_drain(&command);
        ordered.map_err(|refusal| from_refusal(&refusal))?;
        let progress = self.0.drain_progress(command.order).await;
        Ok(Response::new(progress.into()))
    }
}

impl Boat {
    fn order_drain(&self, command: &DrainCommand) -> Result<(), Refusal> {
        if !self.is_mine(&command.life) {
            let text = "another boat is at this address by now; look again";
            return Err(Refusal::new(Code::NotFound, text));
        }
        let Some(order) = command.order else {
            return Ok(());
        };
        if self.is_leaving() {
            let text = "this boat ends (SIGTERM): it drains, and that cannot be cancelled";
            return Err(Refusal::new(Code::Forbidden, text));
        }
        // A repeated order changes nothing.
        (self.drain_orders).send_if_modified(|last| std::mem::replace(last, order) != order);
        Ok(())
    }

    /// Progress, once the order has taken effect.
    async fn drain_progress(&self, order: Option<DrainOrder>) -> DrainProgress {
        let begins = |phase: &Phase| match order {
            None => true,
            Some(DrainOrder::Drain { .. }) => *phase != Phase::Serving,
            Some(DrainOrder::Cancel) => *phase == Phase::Serving,
        };
        let mut phases = self.phases();
        let _ = timeout(ORDER_WITHIN, phases.wait_for(begins)).await;
        DrainProgress {
            state: self.load().state,
            connections: self.connections.len() as u64,
            waits: self.waits(),
        }
    }

    /// False: no such session here.
    fn notify(&self, notice: Notice) -> bool {
        let Some(connection) = self.connections.get(notice.session) else {
            return false;
        };
        connection.update(|session| {
            if session.is_closed() {
                return false;
            }
            match notice.kind {
                NoticeKind::Frame(frame) => session.notice(frame, self.now()),
                NoticeKind::Hint => session.hint(),
                NoticeKind::Close(refusal) => session.close(refusal, self.now()),
            }
            true
        })
    }

    /// False: no such session here.
    fn push(&self, source: u32, push: Push) -> bool {
        let Some(connection) = self.connections.get(push.session) else {
            return false;
        };
        let room = self.limits.outgoing_bytes_max as usize / 2;
        connection.update(|session| {
            // The loop has polled the last outcomes: a push accepted now would never get one.
            if session.is_closed() {
                return false;
            }
            // Under memory shortage half of the usual limit is enough.
            if self.is_short_of(Shortage::Memory) && session.outgoing() >= room {
                session.refuse_push(source, &push);
            } else {
                session.push(source, push, self.now());
            }
            true
        })
    }
}

/// Stream of a carrier: batches in, outcomes out. Its end loses nothing: pushes in flight still
/// reach the clients, and the carrier's own deadlines decide.
pub(crate) struct DeliverService {
    boat: Arc<Boat>,
    source: DeliverStream,
    /// `None` once the carrier has closed its side.
    batches: Option<Streaming<v1::DeliverBatch>>,
}

impl DeliverService {
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
            warn!(text = %refusal.text, "a carrier's batch cannot be read");
            from_refusal(&refusal)
        })?;
        let mine = self.boat.is_mine(&batch.life);
        for push in batch.pushes {
            let number = push.token.number();
            if let Some(trace) = self.boat.tracer.spans().sampled(push.trace) {
                self.source.trace(number, trace, push.message);
            }
            if !mine || !self.boat.push(self.source.id(), push) {
                let outcome = Outcome::NoSession;
                self.boat.metrics.outcome(outcome).increment(1);
                self.source.resolve(number, outcome);
            }
        }
        if mine {
            for notice in batch.notices {
                self.boat.notify(notice);
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
        self.boat.sources.close(&self.source);
    }
}
