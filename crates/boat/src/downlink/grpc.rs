//! gRPC service of a boat: calls of carriers and stations.

use std::pin::Pin;
use std::sync::Arc;

use api::boat::{DrainCommand, NoticeBatch};
use api::status::from_refusal;
use api::v1;
use api::v1::boat_service_server::{BoatService, BoatServiceServer};
use protocol::{Code, Refusal};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::{DeliverService, Downlink};
use crate::leaving::Leaving;

/// The gRPC side of a boat.
pub(crate) fn routes(downlink: Arc<Downlink>, leaving: Arc<Leaving>) -> Routes {
    Routes::new(BoatServiceServer::new(Service { downlink, leaving }))
}

struct Service {
    downlink: Arc<Downlink>,
    leaving: Arc<Leaving>,
}

#[tonic::async_trait]
impl BoatService for Service {
    type DeliverStream = Pin<Box<DeliverService>>;

    async fn deliver(
        &self,
        request: Request<Streaming<v1::DeliverBatch>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let service = DeliverService::new(Arc::clone(&self.downlink), request.into_inner());
        Ok(Response::new(Box::pin(service)))
    }

    async fn notice(
        &self,
        request: Request<v1::NoticeRequest>,
    ) -> Result<Response<v1::NoticeResponse>, Status> {
        let batch = NoticeBatch::try_from(request.into_inner())
            .map_err(|refusal| from_refusal(&refusal))?;
        let is_mine = self.downlink.status.is_mine(&batch.life);
        let missing = (batch.notices.into_iter())
            .filter_map(|notice| {
                let session = notice.session;
                (!is_mine || !self.downlink.notify(notice)).then(|| session.get())
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
        let alive = life.is_some_and(|life| self.downlink.status.is_mine(&life));
        Ok(Response::new(v1::ProbeResponse { alive }))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        let command = DrainCommand::try_from(request.into_inner())
            .map_err(|refusal| from_refusal(&refusal))?;
        if !self.downlink.status.is_mine(&command.life) {
            let text = "another boat is at this address now; look it up again";
            return Err(from_refusal(&Refusal::new(Code::NotFound, text)));
        }
        if let Some(order) = command.order {
            let result = self.leaving.order(order);
            result.map_err(|refusal| from_refusal(&refusal))?;
        }
        let progress = self.leaving.progress(command.order).await;
        Ok(Response::new(progress.into()))
    }
}
