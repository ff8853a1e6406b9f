//! The gRPC service: messages in, values inside, messages out. A malformed item does not cost the
//! others of its batch their answer.

use std::sync::Arc;

use api::access::request_caller;
use api::station::{
    Connect, Disconnect, Kickout, MailAck, MailPageRequest, OnlineMembers, Reassert, ReceiptItem,
    RefreshToken, ResumeSession, Revoke,
};
use api::station::{SendAnswer, SyncCall};
use api::status::{from_refusal, from_refusal_as};
use api::v1;
use api::v1::station_service_server::StationService;
use protocol::access::Caller;
use protocol::presence::BoatLife;
use protocol::revocation::PageStart;
use protocol::session::Submit;
use protocol::ticket::TicketError;
use protocol::{Code, Refusal, UserId};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::accept::SendAcceptor;
use crate::read::Reader;
use crate::read::mail::MailReader;
use crate::receipts::Receipts;
use crate::session::Admissions;
use crate::session::tickets::{Proof, TicketDoor};

/// Dependencies of the gRPC service.
pub(crate) struct Station {
    pub(crate) admissions: Admissions,
    pub(crate) accept: SendAcceptor,
    pub(crate) receipts: Arc<Receipts>,
    pub(crate) mail: MailReader,
    pub(crate) reader: Arc<Reader>,
    pub(crate) tickets: Arc<TicketDoor>,
    pub(crate) batch_items_max: usize,
    /// Calls in flight, which the end of the station waits for.
    pub(crate) calls: TaskTracker,
}

/// The gRPC server.
#[derive(Clone)]
pub(crate) struct StationGrpc(pub(crate) Arc<Station>);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl StationService for StationGrpc {
    async fn connect(&self, request: Request<v1::ConnectRequest>) -> Answer<v1::ConnectResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let answer = match Connect::try_from(request.into_inner()) {
            Ok(connect) => self.0.admissions.connect(connect, boat.as_ref()).await,
            Err(refusal) => Err(refusal),
        };
        Ok(Response::new(answer.into()))
    }

    async fn disconnect(
        &self,
        request: Request<v1::DisconnectRequest>,
    ) -> Answer<v1::DisconnectResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let request = request.into_inner();
        self.check_batch_size(request.sessions.len())?;
        let sessions: Vec<Disconnect> = answer(request.try_into())?;
        // A late ticket is good enough to end a session; a session without proof is found gone by
        // the next push to it.
        let proven = self.with_proof(sessions, |one| {
            let renewal = self.0.tickets.renew(one, boat.as_ref());
            renewal.map(drop)
        })?;
        let (indices, sessions): (Vec<_>, Vec<_>) = (proven.into_iter())
            .map(|(index, one)| (index, one.key))
            .unzip();
        let failed_indices = answer(self.0.admissions.disconnect(sessions).await)?;
        let failed_indices = failed_indices
            .into_iter()
            .map(|index| indices[index])
            .collect();
        Ok(Response::new(v1::DisconnectResponse {
            unanswered: wire_indices(failed_indices),
        }))
    }

    async fn reassert(
        &self,
        request: Request<v1::ReassertRequest>,
    ) -> Answer<v1::ReassertResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let sessions: Vec<Reassert> = self.parse_all(request.into_inner().sessions)?;
        let results = self.0.admissions.reassert(sessions, boat.as_ref()).await;
        Ok(Response::new(v1::ReassertResponse {
            results: results.into_iter().map(v1::ReassertResult::from).collect(),
        }))
    }

    async fn refresh(&self, request: Request<v1::RefreshRequest>) -> Answer<v1::RefreshResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let refresh: RefreshToken = answer(request.into_inner().try_into())?;
        self.prove(&refresh, boat.as_ref())?;
        let outcome = self.0.admissions.refresh(refresh, boat.as_ref()).await;
        Ok(Response::new(outcome.into()))
    }

    async fn resume_tickets(
        &self,
        request: Request<v1::ResumeTicketsRequest>,
    ) -> Answer<v1::ResumeTicketsResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let sessions: Vec<ResumeSession> = self.parse_all(request.into_inner().sessions)?;
        let tickets = (self.0.admissions).resume_tickets(&sessions, boat.as_ref());
        check_no_forgery(tickets.is_err())?;
        Ok(Response::new(tickets.unwrap_or_default().into()))
    }

    async fn send_batch(
        &self,
        request: Request<v1::SendBatchRequest>,
    ) -> Answer<v1::SendBatchResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let request = request.into_inner();
        self.check_batch_size(request.items.len())?;
        let life = request.life.ok_or_else(|| missing("life"))?;
        let life: BoatLife = answer(life.try_into())?;
        let check = |item: &Submit| self.0.tickets.check(item, boat.as_ref());
        let (items, answers) = sort(request.items, check, refusing_send)?;
        let send_ids: Vec<protocol::SendId> = items.iter().map(|item| item.send.send_id).collect();
        let outcomes = self.0.accept.accept(&life, items).await;
        let send_answers = send_ids
            .into_iter()
            .zip(outcomes)
            .map(|(send_id, outcome)| {
                let answer = match outcome {
                    Ok(accepted) => SendAnswer::Accepted(accepted),
                    Err(refusal) => SendAnswer::Refused { send_id, refusal },
                };
                v1::SendAnswer::from(answer)
            });
        Ok(Response::new(v1::SendBatchResponse {
            answers: merge(answers, send_answers),
        }))
    }

    async fn receipts(
        &self,
        request: Request<v1::ReceiptsRequest>,
    ) -> Answer<v1::ReceiptsResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let items = request.into_inner().items;
        self.check_batch_size(items.len())?;
        let check = |item: &ReceiptItem| self.0.tickets.check(item, boat.as_ref());
        let (items, answers) = sort(items, check, refusing_ack)?;
        let ack_answers = self.0.receipts.record(items).await;
        let ack_answers = ack_answers.iter().map(v1::AckAnswer::from);
        Ok(Response::new(v1::ReceiptsResponse {
            answers: merge(answers, ack_answers),
        }))
    }

    async fn mail_page(
        &self,
        request: Request<v1::MailPageRequest>,
    ) -> Answer<v1::MailPageResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let request: MailPageRequest = answer(request.into_inner().try_into())?;
        self.prove(&request, boat.as_ref())?;
        let page = answer(self.0.mail.page(request).await)?;
        Ok(Response::new(page.into()))
    }

    async fn mail_ack(&self, request: Request<v1::MailAckRequest>) -> Answer<v1::MailAckResponse> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let acks: Vec<MailAck> = self.parse_all(request.into_inner().items)?;
        // Mail that no ticket proves acknowledged stays, and comes again.
        let proven = self.with_proof(acks, |ack| self.0.tickets.check(ack, boat.as_ref()))?;
        let (indices, acks): (Vec<_>, Vec<_>) = proven.into_iter().unzip();
        let failed_indices = answer(self.0.mail.acknowledge(acks).await)?;
        let failed_indices = failed_indices
            .into_iter()
            .map(|index| indices[index])
            .collect();
        Ok(Response::new(v1::MailAckResponse {
            unanswered: wire_indices(failed_indices),
        }))
    }

    async fn sync(&self, request: Request<v1::SyncCall>) -> Answer<v1::SyncPage> {
        let _call = self.0.calls.token();
        let boat = request_caller(&request);
        let call: SyncCall = answer(request.into_inner().try_into())?;
        self.prove(&call, boat.as_ref())?;
        let user = call.user;
        let page = answer(self.0.reader.answer(call).await)?;
        Ok(Response::new(v1::SyncPage::from(&page).owned_by(user)))
    }

    async fn online(&self, request: Request<v1::OnlineRequest>) -> Answer<v1::OnlineResponse> {
        let _call = self.0.calls.token();
        let users = request.into_inner().users;
        self.check_batch_size(users.len())?;
        let users: Result<Vec<UserId>, _> = users.into_iter().map(UserId::new).collect();
        let users = users.map_err(|error| {
            from_refusal(&Refusal::new(Code::InvalidArgument, error.to_string()))
        })?;
        let online = answer(self.0.admissions.online(users).await)?;
        Ok(Response::new(v1::OnlineResponse {
            users: online.iter().map(v1::OnlineUser::from).collect(),
        }))
    }

    async fn online_members(
        &self,
        request: Request<v1::OnlineMembersRequest>,
    ) -> Answer<v1::OnlineMembersResponse> {
        let _call = self.0.calls.token();
        let page = OnlineMembers::try_from(request.into_inner());
        let OnlineMembers { group, cursor } = answer(page)?;
        let (limit, admissions) = (self.0.batch_items_max, &self.0.admissions);
        let (users, next) = answer(admissions.online_members(group, cursor, limit).await)?;
        Ok(Response::new(v1::OnlineMembersResponse {
            users: users.iter().map(v1::OnlineUser::from).collect(),
            next: next.map_or(0, UserId::get),
        }))
    }

    async fn kickout(&self, request: Request<v1::KickoutRequest>) -> Answer<v1::KickoutResponse> {
        let _call = self.0.calls.token();
        let kickout: Kickout = answer(request.into_inner().try_into())?;
        let sessions = answer(self.0.admissions.kick_out(kickout).await)?;
        Ok(Response::new(v1::KickoutResponse {
            sessions: u32::try_from(sessions).unwrap_or(u32::MAX),
        }))
    }

    async fn revoke(&self, request: Request<v1::RevokeRequest>) -> Answer<v1::RevokeResponse> {
        let _call = self.0.calls.token();
        let revoke: Revoke = answer(request.into_inner().try_into())?;
        let revoked_before = answer(self.0.admissions.revocations.revoke(revoke).await)?;
        Ok(Response::new(v1::RevokeResponse {
            before: revoked_before.millis(),
        }))
    }

    async fn revoked(&self, request: Request<v1::RevokedRequest>) -> Answer<v1::RevokedResponse> {
        let _call = self.0.calls.token();
        let from: PageStart = answer(request.into_inner().try_into())?;
        let page = self.0.admissions.revocations.page(from);
        Ok(Response::new(page.into()))
    }
}

impl StationGrpc {
    /// Reads a batch whose items have no answers of their own: a malformed item refuses it as a
    /// whole.
    fn parse_all<W, T>(&self, items: Vec<W>) -> Result<Vec<T>, Status>
    where
        T: TryFrom<W, Error = Refusal>,
    {
        self.check_batch_size(items.len())?;
        answer(items.into_iter().map(T::try_from).collect())
    }

    /// Checks the proof of a call for one session. The status code names a lie; the refusal in it
    /// makes the session sign in again.
    fn prove(&self, item: &impl Proof, boat: Option<&Caller>) -> Result<(), Status> {
        self.0.tickets.check(item, boat).map_err(|error| {
            let refusal = error.refusal();
            match error {
                TicketError::Forged => from_refusal_as(tonic::Code::PermissionDenied, &refusal),
                _ => from_refusal(&refusal),
            }
        })
    }

    /// Items of a batch with good tickets, each with its index.
    ///
    /// # Errors
    /// No ticket is good, and one is forged.
    fn with_proof<T>(
        &self,
        items: Vec<T>,
        check: impl Fn(&T) -> Result<(), TicketError>,
    ) -> Result<Vec<(usize, T)>, Status> {
        let (mut proven, mut has_forgery) = (Vec::with_capacity(items.len()), false);
        for (index, item) in items.into_iter().enumerate() {
            match check(&item) {
                Ok(()) => proven.push((index, item)),
                Err(error) => has_forgery |= error == TicketError::Forged,
            }
        }
        check_no_forgery(has_forgery && proven.is_empty())?;
        Ok(proven)
    }

    fn check_batch_size(&self, items: usize) -> Result<(), Status> {
        let max = self.0.batch_items_max;
        if items <= max {
            return Ok(());
        }
        let text = format!("a batch of {items} items; at most {max} are accepted: split it");
        Err(from_refusal(&Refusal::new(Code::TooLarge, text)))
    }
}

fn answer<T>(result: Result<T, Refusal>) -> Result<T, Status> {
    result.map_err(|refusal| from_refusal(&refusal))
}

/// Indices in a batch, as they are on the wire.
fn wire_indices(indices: Vec<usize>) -> Vec<u32> {
    let places = indices.into_iter();
    places.filter_map(|place| place.try_into().ok()).collect()
}

fn missing(field: &str) -> Status {
    from_refusal(&Refusal::new(
        Code::Malformed,
        format!("{field} is missing"),
    ))
}

/// Refuses a boat of which nothing is true; one wrong ticket among good ones costs these nothing.
fn check_no_forgery(has_forgery: bool) -> Result<(), Status> {
    if has_forgery {
        Err(Status::permission_denied(
            "the tickets of this call do not match its sessions, users or boat",
        ))
    } else {
        Ok(())
    }
}

/// Good items, and for every index the answer to a bad one.
type SortedItems<T, A> = (Vec<T>, Vec<Option<A>>);

/// Sorts the items of a batch that each have an answer of their own; `refusing` takes from a bad
/// one what its answer needs.
///
/// # Errors
/// No item is good, and a ticket is forged.
fn sort<W, T, A, R>(
    wire: Vec<W>,
    check: impl Fn(&T) -> Result<(), TicketError>,
    refusing: impl Fn(&W) -> R,
) -> Result<SortedItems<T, A>, Status>
where
    T: TryFrom<W, Error = Refusal>,
    R: FnOnce(Refusal) -> A,
{
    let mut good = Vec::with_capacity(wire.len());
    let mut answers = Vec::with_capacity(wire.len());
    let mut has_forgery = false;
    for item in wire {
        let refuse = refusing(&item);
        let outcome = T::try_from(item).and_then(|item| {
            check(&item).map_err(|error| {
                has_forgery |= error == TicketError::Forged;
                error.refusal()
            })?;
            good.push(item);
            Ok(())
        });
        answers.push(outcome.err().map(refuse));
    }
    check_no_forgery(has_forgery && good.is_empty())?;
    Ok((good, answers))
}

fn refusing_send(item: &v1::SendItem) -> impl FnOnce(Refusal) -> v1::SendAnswer + use<> {
    let message = item.send.as_ref().and_then(|send| send.message.as_ref());
    let send_id = message.map(|message| message.send_id.clone());
    |refusal| v1::SendAnswer {
        send_id: send_id.unwrap_or_default(),
        refusal: Some(refusal.into()),
        ..v1::SendAnswer::default()
    }
}

fn refusing_ack(item: &v1::ReceiptItem) -> impl FnOnce(Refusal) -> v1::AckAnswer + use<> {
    let (kind, ids): (i32, Vec<i64>) = item.ack.as_ref().map_or((0, Vec::new()), |ack| {
        (ack.kind, ack.items.iter().map(|item| item.msg_id).collect())
    });
    move |refusal| v1::AckAnswer {
        kind,
        msg_ids: Vec::new(),
        refused: ids
            .into_iter()
            .map(|msg_id| v1::AckRefused {
                msg_id,
                refusal: Some((&refusal).into()),
            })
            .collect(),
    }
}

/// Puts the answers of good items where there is no refusal.
fn merge<T>(answers: Vec<Option<T>>, good: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut good = good.into_iter();
    answers
        .into_iter()
        .filter_map(|answer| answer.or_else(|| good.next()))
        .collect()
}
