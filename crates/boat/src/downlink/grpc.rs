//! gRPC service of a boat: calls of carriers and stations.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::boat::{DrainCommand, DrainOrder, DrainProgress, NoticeBatch};
use api::status::from_refusal;
use api::v1;
use api::v1::boat_service_server::{BoatService, BoatServiceServer};
use protocol::{Code, Refusal};
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::boat::{Boat, Phase};
use crate::downlink::deliver_streams::DeliverService;

/// Time for an order to take effect.
const ORDER_TIMEOUT: Duration = Duration::from_secs(1);

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
        let service = DeliverService::new(Arc::clone(&self.0), request.into_inner());
        Ok(Response::new(Box::pin(service)))
    }

    async fn notice(
        &self,
        request: Request<v1::NoticeRequest>,
    ) -> Result<Response<v1::NoticeResponse>, Status> {
        let batch = NoticeBatch::try_from(request.into_inner())
            .map_err(|refusal| from_refusal(&refusal))?;
        let is_mine = self.0.is_mine(&batch.life);
        let missing = (batch.notices.into_iter())
            .filter_map(|notice| {
                let session = notice.session;
                (!is_mine || !self.0.notify(notice)).then(|| session.get())
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
        let result = self.0.order_drain(&command);
        result.map_err(|refusal| from_refusal(&refusal))?;
        let progress = self.0.drain_progress(command.order).await;
        Ok(Response::new(progress.into()))
    }
}

impl Boat {
    fn order_drain(&self, command: &DrainCommand) -> Result<(), Refusal> {
        if !self.is_mine(&command.life) {
            let text = "another boat is at this address now; look it up again";
            return Err(Refusal::new(Code::NotFound, text));
        }
        let Some(order) = command.order else {
            return Ok(());
        };
        if self.is_leaving() {
            let text = "this boat is shutting down (SIGTERM): its drain cannot be cancelled";
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
        let _ = timeout(ORDER_TIMEOUT, phases.wait_for(begins)).await;
        DrainProgress {
            state: self.load().state,
            connections: self.connections.len() as u64,
            waits: self.is_waiting_for_room(),
        }
    }
}
