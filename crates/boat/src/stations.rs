//! Calls to stations: which one is asked, and what becomes of a failure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::station::{
    Connect, MailAck, MailPageRequest, Reassert, Reasserted, ReceiptItem, SendAnswer, SendItem,
    SyncCall,
};
use api::status::to_refusal;
use api::transport::{Channel, Connector};
use api::v1;
use api::v1::station_service_client::StationServiceClient;
use backend::discovery::{Instance, Roster};
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use protocol::frame::{Accepted, Acked, SyncRequest};
use protocol::presence::{BoatLife, SessionKey};
use protocol::session::{Admission, Page, PageItem};
use protocol::{Code, Refusal, SessionId, UserId};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Response, Status};

use crate::Config;
use crate::metrics::Metrics;

type Client = StationServiceClient<Channel>;

/// The stations that are registered, and a channel to each that was needed.
pub(crate) struct Stations {
    roster: watch::Receiver<Roster>,
    connector: Connector,
    timeout: Duration,
    lanes: u64,
    /// Boats spread over stations in different ways.
    name: String,
    channels: Mutex<BTreeMap<String, Channel>>,
    born: Instant,
    /// When a station answered last, in milliseconds since `born`.
    heard: AtomicU64,
}

impl Stations {
    pub(crate) fn new(
        roster: watch::Receiver<Roster>,
        connector: Connector,
        config: &Config,
    ) -> Stations {
        Stations {
            roster,
            connector,
            timeout: config.station_timeout,
            lanes: config.lanes.max(1) as u64,
            name: config.name.clone(),
            channels: Mutex::default(),
            born: Instant::now(),
            heard: AtomicU64::new(0),
        }
    }

    /// The lane of a session: all its calls go the same way.
    pub(crate) fn lane_of(&self, session: SessionId) -> usize {
        ((session.get() as u64 >> 6) % self.lanes) as usize
    }

    /// For how long no station has answered.
    pub(crate) fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(heard)
    }

    pub(crate) async fn connect(&self, connect: &Connect) -> Result<Admission, Refusal> {
        let mut client = self.client(self.lane_of(connect.session))?;
        let answer = client.connect(v1::ConnectRequest::from(connect)).await;
        let wire = self.judge("connect", answer)?;
        let admission = Result::<api::station::Admission, Refusal>::try_from(wire)
            .map_err(|refusal| broken("connect", &refusal))??;
        Ok(Admission {
            user: admission.user,
            marker: admission.marker,
            recovered: admission.recovered,
            mail_waits: admission.mail_waits,
            cluster: admission.cluster,
            server_time: admission.server_time,
            expires_at: admission.expires_at,
        })
    }

    /// One answer for each item, in order; a missing one is the caller's to notice.
    pub(crate) async fn send_batch(
        &self,
        lane: usize,
        life: &BoatLife,
        items: &[SendItem],
    ) -> Result<Vec<Result<Accepted, Refusal>>, Refusal> {
        let mut client = self.client(lane)?;
        let request = v1::SendBatchRequest {
            life: Some(life.into()),
            items: items.iter().map(v1::SendItem::from).collect(),
        };
        let wire = self.judge("send_batch", client.send_batch(request).await)?;
        let answers = wire.answers.into_iter().map(|answer| {
            match SendAnswer::try_from(answer).map_err(|refusal| broken("send_batch", &refusal))? {
                SendAnswer::Accepted(accepted) => Ok(accepted),
                SendAnswer::Refused { refusal, .. } => Err(refusal),
            }
        });
        Ok(answers.collect())
    }

    /// One answer for each item, in order.
    pub(crate) async fn receipts(
        &self,
        lane: usize,
        items: &[ReceiptItem],
    ) -> Result<Vec<Result<Acked, Refusal>>, Refusal> {
        let mut client = self.client(lane)?;
        let request = v1::ReceiptsRequest {
            items: items.iter().map(v1::ReceiptItem::from).collect(),
        };
        let wire = self.judge("receipts", client.receipts(request).await)?;
        let answers = (wire.answers.into_iter())
            .map(|answer| Acked::try_from(answer).map_err(|refusal| broken("receipts", &refusal)));
        Ok(answers.collect())
    }

    pub(crate) async fn mail_page(
        &self,
        session: SessionId,
        request: MailPageRequest,
    ) -> Result<Page, Refusal> {
        let mut client = self.client(self.lane_of(session))?;
        let answer = client.mail_page(v1::MailPageRequest::from(request)).await;
        let page: api::station::MailPage = self
            .judge("mail_page", answer)?
            .try_into()
            .map_err(|refusal| broken("mail_page", &refusal))?;
        Ok(Page {
            mails: (page.mails.into_iter())
                .map(|mail| PageItem {
                    id: mail.id,
                    frame: mail.frame,
                })
                .collect(),
            next: page.next,
        })
    }

    pub(crate) async fn mail_ack(&self, lane: usize, items: &[MailAck]) -> Result<(), Refusal> {
        let mut client = self.client(lane)?;
        let request = v1::MailAckRequest {
            items: items.iter().map(v1::MailAckItem::from).collect(),
        };
        self.judge("mail_ack", client.mail_ack(request).await)?;
        Ok(())
    }

    /// The page as the complete frame for the client: what the station says is passed on as it is.
    pub(crate) async fn sync(
        &self,
        session: SessionId,
        user: UserId,
        request: SyncRequest,
    ) -> Result<Bytes, Refusal> {
        let mut client = self.client(self.lane_of(session))?;
        let call = SyncCall {
            user,
            session,
            request,
        };
        let page = self.judge("sync", client.sync(v1::SyncCall::from(&call)).await)?;
        let frame = v1::ServerFrame {
            frame: Some(v1::server_frame::Frame::Page(page)),
        };
        Ok(frame.encode_to_vec().into())
    }

    pub(crate) async fn disconnect(
        &self,
        lane: usize,
        sessions: &[SessionKey],
    ) -> Result<(), Refusal> {
        let mut client = self.client(lane)?;
        let request = v1::DisconnectRequest {
            sessions: sessions.iter().map(v1::SessionKey::from).collect(),
        };
        self.judge("disconnect", client.disconnect(request).await)?;
        Ok(())
    }

    /// One answer for each session, in order.
    pub(crate) async fn reassert(
        &self,
        lane: usize,
        sessions: &[Reassert],
    ) -> Result<Vec<Reasserted>, Refusal> {
        let mut client = self.client(lane)?;
        let request = v1::ReassertRequest {
            sessions: sessions.iter().map(v1::ReassertSession::from).collect(),
        };
        let wire = self.judge("reassert", client.reassert(request).await)?;
        let answers = wire.results.into_iter().map(Reasserted::try_from);
        let answers: Result<Vec<_>, _> = answers.collect();
        answers.map_err(|refusal| broken("reassert", &refusal))
    }

    /// Asks nothing, only whether a station answers.
    pub(crate) async fn probe(&self) -> Result<(), Refusal> {
        let mut client = self.client(0)?;
        let request = v1::OnlineRequest { users: Vec::new() };
        self.judge("probe", client.online(request).await)?;
        Ok(())
    }

    /// The station of a lane: the same as long as it is registered.
    fn client(&self, lane: usize) -> Result<Client, Refusal> {
        let roster = self.roster.borrow();
        let station = (roster.iter()).max_by_key(|station| self.affinity(station, lane));
        let Some(station) = station else {
            return Err(
                Refusal::new(Code::Unavailable, "no station is registered; try again")
                    .retry_after(Duration::from_secs(1)),
            );
        };
        let mut channels = self.channels.lock();
        if !channels.contains_key(&station.address) {
            channels.retain(|address, _| roster.iter().any(|known| known.address == *address));
        }
        let channel = (channels.entry(station.address.clone())).or_insert_with_key(|address| {
            let channel = self.connector.channel(address);
            channel.with_unary_timeout(self.timeout)
        });
        Ok(Client::new(channel.clone()))
    }

    /// Rendezvous hashing: a station that comes or goes moves only its own share of the lanes.
    fn affinity(&self, station: &Instance, lane: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.name, station.life.boat.as_str(), lane).hash(&mut hasher);
        hasher.finish()
    }

    fn judge<T>(
        &self,
        call: &'static str,
        answer: Result<Response<T>, Status>,
    ) -> Result<T, Refusal> {
        let unheard = matches!(
            answer.as_ref().map_err(Status::code),
            Err(tonic::Code::Unavailable | tonic::Code::DeadlineExceeded)
        );
        if !unheard {
            let now = self.born.elapsed().as_millis() as u64;
            self.heard.store(now, Ordering::Relaxed);
        }
        match answer {
            Ok(answer) => {
                Metrics::called(call, "ok");
                Ok(answer.into_inner())
            }
            Err(status) => {
                let refusal = to_refusal(&status);
                Metrics::called(call, refusal.code.name());
                tracing::debug!(call, code = refusal.code.name(), text = %refusal.text, "a station refused");
                Err(refusal)
            }
        }
    }
}

/// A station said something that cannot be: not the client's fault, and another may do better.
fn broken(call: &'static str, refusal: &Refusal) -> Refusal {
    Refusal::new(
        Code::Unavailable,
        format!(
            "a station's answer to {call} cannot be read: {}",
            refusal.text
        ),
    )
}
