//! The door: gRPC in, values inside, gRPC out. One item that is malformed does not cost the others of
//! its batch their answer.

use std::sync::Arc;

use api::station::{
    Connect, Kickout, MailAck, MailPageRequest, OnlineMembers, Reassert, ReceiptItem, Revoke,
};
use api::station::{SendAnswer, SendItem, SyncCall};
use api::status::from_refusal;
use api::v1;
use api::v1::station_service_server::StationService;
use protocol::presence::{BoatLife, SessionKey};
use protocol::revocation::PageStart;
use protocol::{Code, Refusal, UserId};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::accept::Accept;
use crate::admission::Admissions;
use crate::mail::MailRoom;
use crate::receipts::Receipts;
use crate::sync::Lookup;

/// What the gRPC service stands on.
pub(crate) struct Station {
    pub(crate) admissions: Admissions,
    pub(crate) accept: Accept,
    pub(crate) receipts: Receipts,
    pub(crate) mail: MailRoom,
    pub(crate) lookup: Lookup,
    pub(crate) batch_items_max: usize,
    /// Calls in flight, which the end of the station waits for.
    pub(crate) calls: TaskTracker,
}

/// The gRPC server.
#[derive(Clone)]
pub(crate) struct Door(pub(crate) Arc<Station>);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl StationService for Door {
    async fn connect(&self, request: Request<v1::ConnectRequest>) -> Answer<v1::ConnectResponse> {
        let _call = self.0.calls.token();
        let answer = match Connect::try_from(request.into_inner()) {
            Ok(connect) => self.0.admissions.connect(connect).await,
            Err(refusal) => Err(refusal),
        };
        Ok(Response::new(answer.into()))
    }

    async fn disconnect(
        &self,
        request: Request<v1::DisconnectRequest>,
    ) -> Answer<v1::DisconnectResponse> {
        let _call = self.0.calls.token();
        let sessions: Vec<SessionKey> = self.all(request.into_inner().sessions)?;
        let unanswered = answer(self.0.admissions.disconnect(sessions).await)?;
        Ok(Response::new(v1::DisconnectResponse {
            unanswered: places(unanswered),
        }))
    }

    async fn reassert(
        &self,
        request: Request<v1::ReassertRequest>,
    ) -> Answer<v1::ReassertResponse> {
        let _call = self.0.calls.token();
        let sessions: Vec<Reassert> = self.all(request.into_inner().sessions)?;
        let results = self.0.admissions.reassert(sessions).await;
        Ok(Response::new(v1::ReassertResponse {
            results: results.into_iter().map(v1::ReassertResult::from).collect(),
        }))
    }

    async fn send_batch(
        &self,
        request: Request<v1::SendBatchRequest>,
    ) -> Answer<v1::SendBatchResponse> {
        let _call = self.0.calls.token();
        let request = request.into_inner();
        self.within(request.items.len())?;
        let life = request.life.ok_or_else(|| missing("life"))?;
        let life: BoatLife = answer(life.try_into())?;
        let (items, answers) = read_sends(request.items);
        let send_ids: Vec<protocol::SendId> = items.iter().map(|item| item.send.send_id).collect();
        let outcomes = self.0.accept.accept(&life, items).await;
        let answered = send_ids
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
            answers: merge(answers, answered),
        }))
    }

    async fn receipts(
        &self,
        request: Request<v1::ReceiptsRequest>,
    ) -> Answer<v1::ReceiptsResponse> {
        let _call = self.0.calls.token();
        let items = request.into_inner().items;
        self.within(items.len())?;
        let (items, answers) = read_receipts(items);
        let recorded = self.0.receipts.record(items).await;
        let recorded = recorded.iter().map(v1::AckAnswer::from);
        Ok(Response::new(v1::ReceiptsResponse {
            answers: merge(answers, recorded),
        }))
    }

    async fn mail_page(
        &self,
        request: Request<v1::MailPageRequest>,
    ) -> Answer<v1::MailPageResponse> {
        let _call = self.0.calls.token();
        let request: MailPageRequest = answer(request.into_inner().try_into())?;
        let page = answer(self.0.mail.page(request).await)?;
        Ok(Response::new(page.into()))
    }

    async fn mail_ack(&self, request: Request<v1::MailAckRequest>) -> Answer<v1::MailAckResponse> {
        let _call = self.0.calls.token();
        let acks: Vec<MailAck> = self.all(request.into_inner().items)?;
        let unanswered = answer(self.0.mail.acknowledge(acks).await)?;
        Ok(Response::new(v1::MailAckResponse {
            unanswered: places(unanswered),
        }))
    }

    async fn sync(&self, request: Request<v1::SyncCall>) -> Answer<v1::SyncPage> {
        let _call = self.0.calls.token();
        let call: SyncCall = answer(request.into_inner().try_into())?;
        let user = call.user;
        let page = answer(self.0.lookup.answer(call).await)?;
        Ok(Response::new(v1::SyncPage::from(&page).owned_by(user)))
    }

    async fn online(&self, request: Request<v1::OnlineRequest>) -> Answer<v1::OnlineResponse> {
        let _call = self.0.calls.token();
        let users = request.into_inner().users;
        self.within(users.len())?;
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
        let OnlineMembers { group, after } = answer(page)?;
        let (limit, admissions) = (self.0.batch_items_max, &self.0.admissions);
        let (users, next) = answer(admissions.online_members(group, after, limit).await)?;
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
        let before = answer(self.0.admissions.revocations.revoke(revoke).await)?;
        Ok(Response::new(v1::RevokeResponse {
            before: before.millis(),
        }))
    }

    async fn revoked(&self, request: Request<v1::RevokedRequest>) -> Answer<v1::RevokedResponse> {
        let _call = self.0.calls.token();
        let from: PageStart = answer(request.into_inner().try_into())?;
        let page = self.0.admissions.revocations.page(from);
        Ok(Response::new(page.into()))
    }
}

impl Door {
    /// Reads a batch whose items have no answers of their own: one that is malformed refuses it whole.
    fn all<W, T>(&self, items: Vec<W>) -> Result<Vec<T>, Status>
    where
        T: TryFrom<W, Error = Refusal>,
    {
        self.within(items.len())?;
        answer(items.into_iter().map(T::try_from).collect())
    }

    fn within(&self, items: usize) -> Result<(), Status> {
        let max = self.0.batch_items_max;
        if items <= max {
            return Ok(());
        }
        let text = format!("a batch of {items}, at most {max} are taken: send it in parts");
        Err(from_refusal(&Refusal::new(Code::TooLarge, text)))
    }
}

fn answer<T>(result: Result<T, Refusal>) -> Result<T, Status> {
    result.map_err(|refusal| from_refusal(&refusal))
}

/// Places of a batch as they are on the wire.
fn places(of: Vec<usize>) -> Vec<u32> {
    let places = of.into_iter();
    places.filter_map(|place| place.try_into().ok()).collect()
}

fn missing(what: &str) -> Status {
    from_refusal(&Refusal::new(Code::Malformed, format!("{what} is missing")))
}

/// The good items, and for every place the refusal of a bad one.
fn read_sends(wire: Vec<v1::SendItem>) -> (Vec<SendItem>, Vec<Option<v1::SendAnswer>>) {
    let mut good = Vec::with_capacity(wire.len());
    let answers = wire
        .into_iter()
        .map(|item| {
            let message = item.send.as_ref().and_then(|send| send.message.as_ref());
            let send_id = message.map(|message| message.send_id.clone());
            match SendItem::try_from(item) {
                Ok(item) => {
                    good.push(item);
                    None
                }
                Err(refusal) => Some(v1::SendAnswer {
                    send_id: send_id.unwrap_or_default(),
                    refusal: Some(refusal.into()),
                    ..v1::SendAnswer::default()
                }),
            }
        })
        .collect();
    (good, answers)
}

fn read_receipts(wire: Vec<v1::ReceiptItem>) -> (Vec<ReceiptItem>, Vec<Option<v1::AckAnswer>>) {
    let mut good = Vec::with_capacity(wire.len());
    let answers = wire
        .into_iter()
        .map(|item| {
            let (kind, ids) = named_by(&item);
            match ReceiptItem::try_from(item) {
                Ok(item) => {
                    good.push(item);
                    None
                }
                Err(refusal) => Some(refuse_ack(kind, ids, &refusal)),
            }
        })
        .collect();
    (good, answers)
}

fn named_by(item: &v1::ReceiptItem) -> (i32, Vec<i64>) {
    item.ack.as_ref().map_or((0, Vec::new()), |ack| {
        (ack.kind, ack.items.iter().map(|item| item.msg_id).collect())
    })
}

fn refuse_ack(kind: i32, ids: Vec<i64>, refusal: &Refusal) -> v1::AckAnswer {
    v1::AckAnswer {
        kind,
        msg_ids: Vec::new(),
        refused: ids
            .into_iter()
            .map(|msg_id| v1::AckRefused {
                msg_id,
                refusal: Some(refusal.into()),
            })
            .collect(),
    }
}

/// Puts the answers of the good items where no refusal stands.
fn merge<T>(answers: Vec<Option<T>>, good: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut good = good.into_iter();
    answers
        .into_iter()
        .filter_map(|answer| answer.or_else(|| good.next()))
        .collect()
}
