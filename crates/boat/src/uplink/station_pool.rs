//! Calls to stations: picks the station, and handles failures.
//!
//! The calls of a lane go to one station. An unreachable station rests, and the next in the lane's
//! order takes over: it gets the failed call once more, as far as time and budget allow, and the
//! calls that follow.

mod breaker;
mod failover;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::station::{
    Connect, Disconnect, MailAck, MailPageRequest, Reassert, Reasserted, ReceiptItem, RefreshToken,
    Refreshment, ResumeSession, RevokedPage, SendAnswer, SyncCall,
};
use api::status::{carries_refusal, to_refusal};
use api::transport::{Channel, Connector};
use api::v1;
use api::v1::station_service_client::StationServiceClient;
use backend::discovery::{Directory, Instance};
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use protocol::access::Role;
use protocol::frame::{Accepted, Acked};
use protocol::presence::BoatLife;
use protocol::revocation::PageStart;
use protocol::session::{Admission, Page, Submit};
use protocol::ticket::{ResumeTicket, Ticket};
use protocol::{Code, Refusal, SessionId, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::{Code as Grpc, Response, Status};
use tower::retry::budget::{Budget as _, TpsBudget};

use self::breaker::Breakers;
use self::failover::Again;
use crate::Config;
use crate::metrics::UplinkMetrics;

/// Retries are at most this share of the calls of the last seconds (T-ST2) …
const RETRIES_SHARE: f32 = 0.2;
/// … and, however few calls there are, this many for each second of the window, all of which may
/// come at once.
const RETRIES_ALWAYS: u32 = 5;
const BUDGET_WINDOW: Duration = Duration::from_secs(10);

type Client = StationServiceClient<Channel>;

/// A session that a station has admitted.
pub(crate) struct AdmittedSession {
    pub(crate) admission: Admission,
    pub(crate) is_registered: bool,
    /// Number of its login; zero if it is not registered.
    pub(crate) login: u64,
    /// Issue time of its token, if the station reports it.
    pub(crate) issued_at: Option<Timestamp>,
    pub(crate) ticket: Option<Ticket>,
}

/// Calls a station; the call is named after its method.
macro_rules! ask {
    ($stations:ident, $call:ident, $lane:expr, $request:expr) => {
        $stations.call(
            stringify!($call),
            $lane,
            $request,
            |mut station, request| async move { station.$call(request).await },
        )
    };
}

/// The registered stations, and a channel to each that was used.
pub(crate) struct StationPool {
    directory: watch::Receiver<Directory>,
    connector: Connector,
    timeout: Duration,
    lanes: u64,
    /// Name of this boat: each boat spreads over stations in its own order.
    name: String,
    channels: Mutex<BTreeMap<String, Channel>>,
    breakers: Mutex<Breakers>,
    /// Retry budget: small, lest the stations that are left get twice the load.
    budget: TpsBudget,
    created_at: Instant,
    /// Time of the last answer of any station, in milliseconds since `created_at`.
    last_answer_ms: AtomicU64,
}

impl StationPool {
    pub(crate) fn new(
        directory: watch::Receiver<Directory>,
        connector: Connector,
        config: &Config,
    ) -> StationPool {
        StationPool {
            directory,
            connector,
            timeout: config.station_timeout,
            lanes: config.lanes as u64,
            name: config.name.clone(),
            channels: Mutex::default(),
            breakers: Mutex::default(),
            budget: TpsBudget::new(BUDGET_WINDOW, RETRIES_ALWAYS, RETRIES_SHARE),
            created_at: Instant::now(),
            last_answer_ms: AtomicU64::new(0),
        }
    }

    /// The lane of a session: all its calls go the same way.
    pub(crate) fn session_lane(&self, session: SessionId) -> usize {
        ((session.get() as u64 >> 6) % self.lanes) as usize
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.created_at.elapsed()
    }

    /// Time since any station answered.
    pub(crate) fn silence(&self) -> Duration {
        let last_answer = Duration::from_millis(self.last_answer_ms.load(Ordering::Relaxed));
        self.created_at.elapsed().saturating_sub(last_answer)
    }

    pub(crate) async fn connect(&self, connect: &Connect) -> Result<AdmittedSession, Refusal> {
        let lane = self.session_lane(connect.session);
        let request = v1::ConnectRequest::from(connect);
        let wire = ask!(self, connect, lane, request).await?;
        let admission = Result::<api::station::Admission, Refusal>::try_from(wire)
            .map_err(|refusal| unreadable_answer("connect", &refusal))??;
        let (is_registered, issued_at) = (!admission.is_degraded, admission.issued_at);
        let (login, ticket) = (admission.login, admission.ticket);
        let admission = Admission {
            user: admission.user,
            marker: admission.marker,
            recovered: admission.is_recovered,
            mail_waits: admission.mail_waits,
            cluster: admission.cluster,
            server_time: admission.server_time,
            expires_at: admission.expires_at,
        };
        Ok(AdmittedSession {
            admission,
            is_registered,
            login,
            issued_at,
            ticket,
        })
    }

    /// Returns one answer for each item, in order; the caller checks for missing ones.
    pub(crate) async fn send_batch(
        &self,
        lane: usize,
        life: &BoatLife,
        items: &[Submit],
    ) -> Result<Vec<Result<Accepted, Refusal>>, Refusal> {
        let request = v1::SendBatchRequest {
            life: Some(life.into()),
            items: items.iter().map(v1::SendItem::from).collect(),
        };
        let wire = ask!(self, send_batch, lane, request).await?;
        let answers = wire.answers.into_iter().map(|answer| {
            match SendAnswer::try_from(answer)
                .map_err(|refusal| unreadable_answer("send_batch", &refusal))?
            {
                SendAnswer::Accepted(accepted) => Ok(accepted),
                SendAnswer::Refused { refusal, .. } => Err(refusal),
            }
        });
        Ok(answers.collect())
    }

    /// Returns one answer for each item, in order.
    pub(crate) async fn receipts(
        &self,
        lane: usize,
        items: &[ReceiptItem],
    ) -> Result<Vec<Result<Acked, Refusal>>, Refusal> {
        let request = v1::ReceiptsRequest {
            items: items.iter().map(v1::ReceiptItem::from).collect(),
        };
        let wire = ask!(self, receipts, lane, request).await?;
        let answers = (wire.answers.into_iter()).map(|answer| {
            Acked::try_from(answer).map_err(|refusal| unreadable_answer("receipts", &refusal))
        });
        Ok(answers.collect())
    }

    pub(crate) async fn mail_page(
        &self,
        session: SessionId,
        request: MailPageRequest,
    ) -> Result<Page, Refusal> {
        let request = v1::MailPageRequest::from(request);
        let wire = ask!(self, mail_page, self.session_lane(session), request).await?;
        wire.try_into()
            .map_err(|refusal| unreadable_answer("mail_page", &refusal))
    }

    /// Returns the indices of items that were not answered.
    pub(crate) async fn mail_ack(
        &self,
        lane: usize,
        items: &[MailAck],
    ) -> Result<Vec<u32>, Refusal> {
        let request = v1::MailAckRequest {
            items: items.iter().map(v1::MailAckItem::from).collect(),
        };
        let response = ask!(self, mail_ack, lane, request).await?;
        Ok(response.unanswered)
    }

    /// Returns the page as the complete frame for the client. Fields of the answer that this boat
    /// does not know are dropped: boats are upgraded first.
    pub(crate) async fn sync(&self, call: &SyncCall) -> Result<Bytes, Refusal> {
        let request = v1::SyncCall::from(call);
        let page = ask!(self, sync, self.session_lane(call.session), request).await?;
        let frame = v1::ServerFrame {
            frame: Some(v1::server_frame::Frame::Page(page)),
            ..v1::ServerFrame::default()
        };
        Ok(frame.encode_to_vec().into())
    }

    pub(crate) async fn disconnect(
        &self,
        lane: usize,
        sessions: &[Disconnect],
    ) -> Result<Vec<u32>, Refusal> {
        let request = v1::DisconnectRequest::from(sessions);
        let response = ask!(self, disconnect, lane, request).await?;
        Ok(response.unanswered)
    }

    /// Returns one answer for each session, in order.
    pub(crate) async fn reassert(
        &self,
        lane: usize,
        sessions: &[Reassert],
    ) -> Result<Vec<Reasserted>, Refusal> {
        let request = v1::ReassertRequest {
            sessions: sessions.iter().map(v1::ReassertSession::from).collect(),
        };
        let wire = ask!(self, reassert, lane, request).await?;
        let answers = wire.results.into_iter().map(Reasserted::try_from);
        let answers: Result<Vec<_>, _> = answers.collect();
        answers.map_err(|refusal| unreadable_answer("reassert", &refusal))
    }

    pub(crate) async fn refresh(&self, refresh: &RefreshToken) -> Result<Refreshment, Refusal> {
        let request = v1::RefreshRequest::from(refresh);
        let wire = ask!(self, refresh, self.session_lane(refresh.session), request).await?;
        Result::<Refreshment, Refusal>::try_from(wire)
            .map_err(|refusal| unreadable_answer("refresh", &refusal))?
    }

    /// Returns one ticket for each session, in order.
    pub(crate) async fn resume_tickets(
        &self,
        lane: usize,
        sessions: &[ResumeSession],
    ) -> Result<Vec<Option<ResumeTicket>>, Refusal> {
        let request = v1::ResumeTicketsRequest {
            sessions: sessions.iter().map(v1::ResumeSession::from).collect(),
        };
        let wire = ask!(self, resume_tickets, lane, request).await?;
        wire.try_into()
            .map_err(|refusal| unreadable_answer("resume_tickets", &refusal))
    }

    /// Users whose tokens were revoked, from `from` on.
    pub(crate) async fn revoked(
        &self,
        lane: usize,
        from: PageStart,
    ) -> Result<RevokedPage, Refusal> {
        let request = v1::RevokedRequest::from(from);
        let wire = ask!(self, revoked, lane, request).await?;
        wire.try_into()
            .map_err(|refusal| unreadable_answer("revoked", &refusal))
    }

    /// Checks only whether a station answers.
    pub(crate) async fn probe(&self) -> Result<(), Refusal> {
        let nobody = v1::OnlineRequest { users: Vec::new() };
        ask!(self, online, 0, nobody).await.map(drop)
    }

    /// Calls the station of a lane, and the next one if that is unreachable.
    async fn call<Q: Again, A, F>(
        &self,
        call: &'static str,
        lane: usize,
        request: Q,
        ask: impl Fn(Client, Q) -> F,
    ) -> Result<A, Refusal>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.budget.deposit();
        let started_at = Instant::now();
        let (first, next) = self.lane_stations(lane)?;
        // Cloned only if there is another station to ask.
        let alternate = next.and_then(|next| Some((next, request.repeat_request()?)));
        let mut answer = self.note_answer(&first, ask(self.client(&first), request).await);
        if let Err(status) = &answer
            && cannot_be_reached(status)
            && let Some((next, request)) = alternate
            // The caller has not waited long yet.
            && started_at.elapsed() < self.timeout / 2
            && self.budget.withdraw()
        {
            tracing::debug!(call, station = first, %status, "retrying at another station");
            UplinkMetrics::record_failover(call);
            let time_left = self.timeout.saturating_sub(started_at.elapsed());
            let second_answer = timeout(time_left, ask(self.client(&next), request)).await;
            let late_error = |_| Err(Status::deadline_exceeded("the second station was late"));
            answer = self.note_answer(&next, second_answer.unwrap_or_else(late_error));
        }
        match answer {
            Ok(answer) => {
                UplinkMetrics::record_call(call, "ok");
                Ok(answer.into_inner())
            }
            Err(status) => {
                let refusal = to_refusal(&status);
                UplinkMetrics::record_call(call, refusal.code.name());
                tracing::debug!(call, code = refusal.code.name(), text = %refusal.text, "refused by a station");
                Err(refusal)
            }
        }
    }

    /// Records whether a station was reachable.
    fn note_answer<T>(&self, station: &str, answer: Result<T, Status>) -> Result<T, Status> {
        match &answer {
            Err(status) if cannot_be_reached(status) => {
                self.breakers.lock().record_unreachable(station, self.now());
            }
            Err(status) if !is_answer(status) => {
                self.breakers.lock().record_silence(station, self.now());
            }
            Ok(_) | Err(_) => {
                self.breakers.lock().record_answer(station);
                let now = self.created_at.elapsed().as_millis() as u64;
                self.last_answer_ms.store(now, Ordering::Relaxed);
            }
        }
        answer
    }

    /// The station of a lane, stable while it is registered and reachable, and the one to ask after
    /// it. Resting stations come last.
    fn lane_stations(&self, lane: usize) -> Result<(String, Option<String>), Refusal> {
        let now = self.now();
        let directory = self.directory.borrow();
        let mut breakers = self.breakers.lock();
        let mut stations: Vec<&Instance> = directory.iter().collect();
        stations.sort_by_cached_key(|station| {
            let affinity = Reverse(self.affinity(station, lane));
            (breakers.is_resting(&station.address, now), affinity)
        });
        let mut stations = stations.into_iter().map(|station| &station.address);
        let Some(first) = stations.next() else {
            return Err(
                Refusal::new(Code::Unavailable, "no station is registered; try again")
                    .retry_after(Duration::from_secs(1)),
            );
        };
        breakers.record_trial(first, now);
        Ok((first.clone(), stations.next().cloned()))
    }

    fn client(&self, address: &str) -> Client {
        let mut channels = self.channels.lock();
        if !channels.contains_key(address) {
            let directory = self.directory.borrow();
            let is_registered =
                |address: &str| directory.iter().any(|station| station.address == address);
            channels.retain(|address, _| is_registered(address));
            self.breakers.lock().retain(is_registered);
        }
        let channel = (channels.entry(address.to_owned())).or_insert_with_key(|address| {
            let channel = self.connector.channel(Role::Station, address);
            channel.with_unary_timeout(self.timeout)
        });
        Client::new(channel.clone())
    }

    /// Rendezvous hashing: a station that comes or goes moves only its own share of the lanes.
    fn affinity(&self, station: &Instance, lane: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.name, station.life.boat.as_str(), lane).hash(&mut hasher);
        hasher.finish()
    }
}

/// Whether a station gave this status, rather than the transport.
fn is_answer(status: &Status) -> bool {
    let is_silence = matches!(status.code(), Grpc::Unavailable | Grpc::DeadlineExceeded);
    !is_silence || carries_refusal(status)
}

/// Whether the call did not get through, as far as the caller can see.
fn cannot_be_reached(status: &Status) -> bool {
    status.code() == Grpc::Unavailable && !carries_refusal(status)
}

/// Refusal for a nonsensical answer of a station: not the client's fault, and another station may
/// do better.
fn unreadable_answer(call: &'static str, refusal: &Refusal) -> Refusal {
    Refusal::new(
        Code::Unavailable,
        format!(
            "cannot decode a station's answer to {call}: {}",
            refusal.text
        ),
    )
}
