//! Tickets of sessions: a boat speaks for sessions that signed in with it, and for nobody else.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use api::station::{
    Admission, Disconnect, MailAck, MailPageRequest, Reassert, ReassertOutcome, Reasserted,
    RefreshToken, Refreshment, ResumeSession, SyncCall,
};
use api::v1;
use api::v1::station_service_client::StationServiceClient;
use backend::hook::Fault;
use proptest::prelude::*;
use protocol::access::{Caller, Role};
use protocol::frame::{SyncQuery, SyncRequest};
use protocol::mailbox::ReassertAnswer;
use protocol::presence::SessionKey;
use protocol::receipt::ReceiptKind;
use protocol::ticket::{KeyFile, LIFE, ResumeTicket, Ticket};
use protocol::{Code, Platform, Refusal, Timestamp};
use tempfile::TempDir;
use tokio::time::sleep;
use tonic::Status;

use super::receipts::receipt_item;
use super::world::*;
use crate::{Config, tickets};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the interval at which a station reads its key file again.
const RELOAD_WAIT: Duration = Duration::from_secs(11);

/// A station that requires tickets, and the file with their keys.
pub(super) struct Strict {
    pub(super) world: World,
    keys: PathBuf,
    _dir: TempDir,
}

pub(super) async fn strict() -> Strict {
    with_keys(true).await
}

pub(super) async fn with_keys(is_required: bool) -> Strict {
    let dir = tempfile::tempdir().expect("a folder");
    let keys = dir.path().join("keys");
    std::fs::write(&keys, KeyFile::new(1, [7; 32]).to_text()).expect("written");
    let config = Config {
        tickets: tickets::Config {
            keys_file: Some(keys.clone()),
            required: is_required,
        },
        ..Config::default()
    };
    Strict {
        world: world_with(config).await,
        keys,
        _dir: dir,
    }
}

/// A session as its boat knows it.
#[derive(Clone, Debug)]
pub(super) struct HeldTicket {
    pub(super) number: i64,
    pub(super) ticket: Option<Ticket>,
}

/// Calls that a boat makes for a session, and that show its ticket.
pub(super) const CALLS: [&str; 9] = [
    "Disconnect",
    "MailAck",
    "MailPage",
    "Reassert",
    "Receipts",
    "Refresh",
    "ResumeTickets",
    "SendBatch",
    "Sync",
];

impl Strict {
    pub(super) fn client(&self, boat: &str) -> Client {
        self.client_as(Some(Caller::new(Role::Boat, boat)))
    }

    /// `None`: a caller that shows no certificate.
    pub(super) fn client_as(&self, caller: Option<Caller>) -> Client {
        let world = &self.world;
        let connector = world.connector.clone();
        let connector = match caller {
            Some(caller) => connector.with_caller(caller),
            None => connector,
        };
        let address = &world.station.instance().address;
        StationServiceClient::new(connector.channel(Role::Station, address))
    }

    async fn admit(&self, boat: &str, number: i64) -> Admission {
        let connect = self.world.connect_request(number, Platform::Ios, number);
        let request = v1::ConnectRequest::from(&connect);
        let answer = self.client(boat).connect(request).await;
        let admission: Result<Admission, Refusal> =
            (answer.expect("answered").into_inner().try_into()).expect("whole");
        admission.expect("admitted")
    }

    pub(super) async fn sign_in(&self, boat: &str, number: i64) -> HeldTicket {
        let ticket = self.admit(boat, number).await.ticket;
        assert!(ticket.is_some());
        HeldTicket { number, ticket }
    }

    fn key(&self, holder: &HeldTicket) -> SessionKey {
        self.world.key(holder.number, holder.number)
    }

    fn item(&self, holder: &HeldTicket, number: u8) -> v1::SendItem {
        let mut item = item(holder.number, send(9, number, "a"));
        item.ticket = holder.ticket;
        (&item).into()
    }

    async fn send(
        &self,
        boat: &str,
        items: Vec<v1::SendItem>,
    ) -> Result<Vec<Option<Code>>, Status> {
        let request = v1::SendBatchRequest {
            life: Some((&self.world.life).into()),
            items,
        };
        let answers = self.client(boat).send_batch(request).await?.into_inner();
        let code = |answer: v1::SendAnswer| {
            let refusal = Refusal::try_from(answer.refusal?).expect("whole");
            Some(refusal.code)
        };
        Ok(answers.answers.into_iter().map(code).collect())
    }

    pub(super) async fn reassert(
        &self,
        boat: &str,
        holder: &HeldTicket,
    ) -> Result<Reasserted, Status> {
        self.reassert_since(boat, holder, None).await
    }

    async fn reassert_since(
        &self,
        boat: &str,
        holder: &HeldTicket,
        issued_at: Option<Timestamp>,
    ) -> Result<Reasserted, Status> {
        let answers = self.reassert_all(boat, &[holder], issued_at).await?;
        Ok(answers.into_iter().next().expect("one"))
    }

    async fn reassert_all(
        &self,
        boat: &str,
        holders: &[&HeldTicket],
        issued_at: Option<Timestamp>,
    ) -> Result<Vec<Reasserted>, Status> {
        let session = |holder: &&HeldTicket| Reassert {
            key: self.key(holder),
            platform: Platform::Ios,
            device: device(&format!("phone-{}", holder.number)),
            login: None,
            issued_at,
            ticket: holder.ticket,
        };
        let sessions = holders.iter().map(session);
        let request = v1::ReassertRequest {
            sessions: sessions.map(|session| (&session).into()).collect(),
        };
        let answer = self.client(boat).reassert(request).await?.into_inner();
        let results = answer.results.into_iter().map(Reasserted::try_from);
        Ok(results.map(|result| result.expect("known")).collect())
    }

    /// Makes a call for a session. Returns the code if this session alone is refused.
    pub(super) async fn call(
        &self,
        name: &str,
        boat: &str,
        holder: &HeldTicket,
    ) -> Result<Option<Code>, Status> {
        let mut client = self.client(boat);
        let (user_id, ticket) = (user(holder.number), holder.ticket);
        let to_code = |answer: Result<(), Status>| match answer {
            Ok(()) => Ok(None),
            Err(status) if status.code() == tonic::Code::PermissionDenied => Err(status),
            Err(status) => Ok(Some(refusal_code(&status))),
        };
        match name {
            "SendBatch" => {
                let answers = self.send(boat, vec![self.item(holder, 1)]).await?;
                Ok(answers[0])
            }
            "Receipts" => {
                let entry = self.world.placed(holder.number, 9, 1, "a");
                let mut receipt = receipt_item(holder.number, ReceiptKind::Received, &[&entry]);
                receipt.ticket = ticket;
                let request = v1::ReceiptsRequest {
                    items: vec![(&receipt).into()],
                };
                let answers = client.receipts(request).await?.into_inner().answers;
                let first_refusal = answers[0]
                    .refused
                    .first()
                    .and_then(|one| one.refusal.clone());
                let code =
                    first_refusal.map(|refusal| Refusal::try_from(refusal).expect("whole").code);
                // Nobody wrote this message.
                Ok(code.filter(|code| *code == Code::Unavailable))
            }
            "MailPage" => {
                let request = MailPageRequest {
                    user: user_id,
                    platform: Platform::Ios,
                    cursor: None,
                    limit: 9,
                    session: Some(session(holder.number)),
                    ticket,
                };
                let page = client.mail_page(v1::MailPageRequest::from(request)).await;
                to_code(page.map(drop))
            }
            "MailAck" => {
                let ack = MailAck {
                    user: user_id,
                    platform: Platform::Ios,
                    session: session(holder.number),
                    ids: vec![self.world.placed(9, holder.number, 1, "a").message.id],
                    ticket,
                };
                let request = v1::MailAckRequest {
                    items: vec![(&ack).into()],
                };
                to_code(client.mail_ack(request).await.map(drop))
            }
            "Sync" => to_code(self.sync_call(boat, holder).await),
            "Reassert" => {
                let answer = self.reassert(boat, holder).await?;
                Ok((answer.outcome == ReassertOutcome::Unproved).then_some(Code::Unavailable))
            }
            "Disconnect" => {
                let disconnect = Disconnect {
                    key: self.key(holder),
                    ticket,
                };
                let request = v1::DisconnectRequest::from(vec![disconnect]);
                to_code(client.disconnect(request).await.map(drop))
            }
            "Refresh" => {
                let token = self.world.token(holder.number);
                let refresh = refresh_request(holder, Platform::Ios, token);
                let answer = self.refresh(boat, &refresh).await;
                to_code(answer.map(drop))
            }
            "ResumeTickets" => {
                let tickets = self.resume_tickets(boat, &[holder]).await?;
                Ok(tickets[0].is_none().then_some(Code::Unavailable))
            }
            _ => panic!("{name} is no call for a session"),
        }
    }

    pub(super) async fn refresh(
        &self,
        boat: &str,
        refresh: &RefreshToken,
    ) -> Result<Result<Refreshment, Refusal>, Status> {
        let request = v1::RefreshRequest::from(refresh);
        let answer = self.client(boat).refresh(request).await?.into_inner();
        Ok(answer.try_into().expect("whole"))
    }

    pub(super) async fn resume_tickets(
        &self,
        boat: &str,
        holders: &[&HeldTicket],
    ) -> Result<Vec<Option<ResumeTicket>>, Status> {
        let session = |holder: &&HeldTicket| ResumeSession {
            user: user(holder.number),
            session: session(holder.number),
            platform: Platform::Ios,
            device: device(&format!("phone-{}", holder.number)),
            ticket: holder.ticket,
        };
        let sessions = holders.iter().map(session).map(v1::ResumeSession::from);
        let request = v1::ResumeTicketsRequest {
            sessions: sessions.collect(),
        };
        let answer = self.client(boat).resume_tickets(request).await?;
        Ok(answer.into_inner().try_into().expect("whole"))
    }

    async fn sync_call(&self, boat: &str, holder: &HeldTicket) -> Result<(), Status> {
        let call = SyncCall {
            user: user(holder.number),
            session: session(holder.number),
            request: SyncRequest {
                request: 1,
                query: SyncQuery::Unread { after: None },
            },
            ticket: holder.ticket,
        };
        let answer = self.client(boat).sync(v1::SyncCall::from(&call)).await;
        answer.map(drop)
    }

    async fn is_online(&self, number: i64) -> bool {
        !self.world.online(&[number]).await[0].is_empty()
    }
}

pub(super) fn refresh_request(
    holder: &HeldTicket,
    platform: Platform,
    token: String,
) -> RefreshToken {
    RefreshToken {
        user: user(holder.number),
        session: session(holder.number),
        platform,
        device: device(&format!("phone-{}", holder.number)),
        token,
        issued_at: None,
        ticket: holder.ticket,
    }
}

/// An assertion ends the session alone, which then signs in again.
fn is_refused_as_lie(call: &str, answer: Result<Option<Code>, Status>) {
    match call {
        "Reassert" => assert_eq!(answer.expect(call), Some(Code::Unavailable)),
        _ => {
            let status = answer.expect_err(call);
            assert_eq!(status.code(), tonic::Code::PermissionDenied, "{call}");
        }
    }
}

// A new method is for a session, for a token, or for no boat at all.
#[test]
fn every_method_is_judged() {
    let proto = include_str!("../../../../proto/packetboat/v1/station.proto");
    let methods = proto.lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix("rpc ")?.split_once('(')?;
        Some(name.to_owned())
    });
    let methods: BTreeSet<String> = methods.collect();
    let other_methods = [
        // For all boats, by a token.
        "Connect",
        "Revoked",
        // For no boat: the table of calls refuses them.
        "Kickout",
        "Online",
        "OnlineMembers",
        "Revoke",
    ];
    let known_methods = CALLS.into_iter().chain(other_methods).map(str::to_owned);
    assert_eq!(methods, known_methods.collect());
}

// Threat 1: a boat whose certificate was stolen speaks for its own clients alone, whatever it
// calls.
#[tokio::test(start_paused = true)]
async fn a_boat_speaks_for_its_own_clients_alone() {
    for call in CALLS {
        let strict = strict().await;
        let own = strict.sign_in("boat-1", 1).await;
        let other = strict.sign_in("boat-2", 2).await;
        let without_ticket = HeldTicket {
            ticket: None,
            ..other.clone()
        };
        let with_other_ticket = HeldTicket {
            ticket: own.ticket,
            ..other.clone()
        };
        // Another's ticket, and its own ticket for another.
        for wrong in [&other, &with_other_ticket] {
            let answer = strict.call(call, "boat-1", wrong).await;
            is_refused_as_lie(call, answer);
        }
        let answer = strict
            .call(call, "boat-1", &without_ticket)
            .await
            .expect(call);
        let is_silent = ["Disconnect", "MailAck"].contains(&call);
        let expected = (!is_silent).then_some(Code::Unavailable);
        assert_eq!(answer, expected, "{call}");
        assert!(strict.is_online(2).await, "{call}");
        assert!(strict.world.log().await.is_empty(), "{call}");

        let answer = strict.call(call, "boat-1", &own).await.expect(call);
        assert_eq!(answer, None, "{call}");
        let answer = strict.call(call, "boat-2", &other).await.expect(call);
        assert_eq!(answer, None, "{call}");
    }
}

// Keys that differ between stations make tickets of honest boats forged: their neighbours in a call
// go on, and the next assertion makes the session sign in again.
#[tokio::test(start_paused = true)]
async fn one_wrong_ticket_costs_nobody_else_anything() {
    let strict = strict().await;
    let own = strict.sign_in("boat-1", 1).await;
    let other = strict.sign_in("boat-2", 2).await;
    let none = HeldTicket {
        ticket: None,
        ..other.clone()
    };
    for (number, wrong) in [(2, &other), (3, &none)] {
        let items = vec![strict.item(wrong, 1), strict.item(&own, number)];
        let answers = strict.send("boat-1", items).await.expect("answered");
        assert_eq!(answers, [Some(Code::Unavailable), None]);
    }
    assert_eq!(strict.world.messages().await.len(), 2);
    // The client's answer to a page is no refusal for good.
    let answer = strict.sync_call("boat-1", &other).await;
    let refusal = api::status::to_refusal(&answer.expect_err("forged"));
    assert_eq!(refusal.code, Code::Unavailable);
}

// The boat was away for long, and the user is elsewhere meanwhile.
#[tokio::test(start_paused = true)]
async fn a_late_session_throws_no_newer_one_out() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    let connect = strict.world.connect_request(1, Platform::Ios, 99);
    let request = v1::ConnectRequest::from(&connect);
    strict
        .client("boat-2")
        .connect(request)
        .await
        .expect("admitted");
    sleep(LIFE).await;
    let answer = strict.reassert("boat-1", &holder).await.expect("answered");
    let expected = ReassertOutcome::Answer(ReassertAnswer::Displaced);
    assert_eq!(answer.outcome, expected);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_ended_is_renewed_while_its_session_lives() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    sleep(LIFE - SECOND).await;
    assert_eq!(
        strict
            .call("SendBatch", "boat-1", &holder)
            .await
            .expect("answered"),
        None
    );
    let fresh = strict.reassert("boat-1", &holder).await.expect("answered");
    assert!(fresh.ticket.is_some() && fresh.ticket != holder.ticket);
    sleep(SECOND * 2).await;
    for call in ["SendBatch", "Receipts", "MailPage", "Sync"] {
        let answer = strict.call(call, "boat-1", &holder).await.expect(call);
        assert_eq!(answer, Some(Code::Unavailable), "{call}");
    }
    let renewal = strict.reassert("boat-1", &holder).await.expect("answered");
    let expected = ReassertAnswer::Known { mail_waits: false };
    assert_eq!(renewal.outcome, ReassertOutcome::Answer(expected));
    let holder = HeldTicket {
        ticket: renewal.ticket,
        ..holder
    };
    assert_eq!(
        strict
            .call("Sync", "boat-1", &holder)
            .await
            .expect("answered"),
        None
    );
}

// A boat that was away for long cannot bring back sessions that the mailbox does not have.
#[tokio::test(start_paused = true)]
async fn a_late_ticket_proves_nothing_where_its_session_is_gone() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    let outcome = strict.call("Disconnect", "boat-1", &holder).await;
    assert_eq!(outcome.expect("answered"), None);
    let reassertion = strict.reassert("boat-1", &holder).await.expect("answered");
    assert!(matches!(
        reassertion.outcome,
        ReassertOutcome::Answer(ReassertAnswer::Restored { .. })
    ));
    assert_eq!(
        strict
            .call("Disconnect", "boat-1", &holder)
            .await
            .expect("answered"),
        None
    );
    sleep(LIFE).await;
    let late = strict.reassert("boat-1", &holder).await.expect("answered");
    assert_eq!(late, ReassertOutcome::Unproved.into());
    assert!(!strict.is_online(1).await);
}

#[tokio::test(start_paused = true)]
async fn a_late_ticket_keeps_back_nobody_elses_assertion() {
    let strict = strict().await;
    let late = strict.sign_in("boat-1", 1).await;
    sleep(LIFE).await;
    let prompt = strict.sign_in("boat-1", 2).await;
    let sessions = MAILBOX.named("sessions");
    strict.world.faults.begin(sessions, Fault::Hang);
    let answers = strict.reassert_all("boat-1", &[&late, &prompt], None).await;
    let answers = answers.expect("answered");
    assert_eq!(answers[0], ReassertOutcome::Unavailable.into());
    let expected = ReassertAnswer::Known { mail_waits: false };
    assert_eq!(answers[1].outcome, ReassertOutcome::Answer(expected));
    assert!(answers[1].ticket.is_some());
}

// T-R1: nobody is kept from sending by a mailbox that is away.
#[tokio::test(start_paused = true)]
async fn a_ticket_is_renewed_while_the_mailbox_is_away() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    strict.world.faults.begin(MAILBOX, Fault::Hang);
    sleep(LIFE / 2).await;
    let renewal = strict.reassert("boat-1", &holder).await.expect("answered");
    assert_eq!(renewal.outcome, ReassertOutcome::Unavailable);
    let ticket = renewal.ticket.expect("a new one");
    sleep(LIFE / 2 + SECOND).await;
    let late = strict.reassert("boat-1", &holder).await.expect("answered");
    assert_eq!(late, ReassertOutcome::Unavailable.into(), "it may be there");
    let holder = HeldTicket {
        ticket: Some(ticket),
        ..holder
    };
    assert_eq!(
        strict
            .call("SendBatch", "boat-1", &holder)
            .await
            .expect("answered"),
        None
    );
}

// The ticket says when the token was issued, whatever the boat says.
#[tokio::test(start_paused = true)]
async fn a_revoked_token_renews_nothing() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    sleep(SECOND).await;
    let request = v1::RevokeRequest {
        user: 1,
        ..v1::RevokeRequest::default()
    };
    (strict.world.client.clone().revoke(request).await).expect("written");
    let issued_at = Some(BEGIN + SECOND * 60);
    let answer = strict.reassert_since("boat-1", &holder, issued_at).await;
    assert_eq!(answer.expect("answered"), ReassertOutcome::Revoked.into());
}

#[tokio::test(start_paused = true)]
async fn key_rotation_refuses_nobody_and_ignores_a_bad_file() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    let mut keys = KeyFile::new(1, [7; 32]);
    let write = |keys: &KeyFile| std::fs::write(&strict.keys, keys.to_text()).expect("written");
    let is_good =
        async |holder: &HeldTicket| strict.call("Sync", "boat-1", holder).await.expect("no lie");

    keys.add([8; 32]).expect("room");
    write(&keys);
    sleep(RELOAD_WAIT).await;
    assert_eq!(is_good(&holder).await, None);
    keys.promote();
    write(&keys);
    sleep(RELOAD_WAIT).await;
    assert_eq!(is_good(&holder).await, None);
    let renewal = strict.reassert("boat-1", &holder).await.expect("answered");
    let renewal = HeldTicket {
        ticket: renewal.ticket,
        ..holder.clone()
    };
    assert_eq!(is_good(&renewal).await, None);
    keys.retire();
    write(&keys);
    sleep(RELOAD_WAIT).await;
    assert_eq!(is_good(&renewal).await, None);
    assert_eq!(is_good(&holder).await, Some(Code::Unavailable));
    // The session has to sign in again.
    let answer = strict.reassert("boat-1", &holder).await.expect("answered");
    assert_eq!(answer, ReassertOutcome::Unproved.into());

    std::fs::write(&strict.keys, "no keys").expect("written");
    sleep(RELOAD_WAIT).await;
    assert_eq!(is_good(&renewal).await, None);
}

#[tokio::test(start_paused = true)]
async fn while_tickets_are_not_required_only_a_lie_is_refused() {
    let strict = with_keys(false).await;
    let own = strict.sign_in("boat-1", 1).await;
    let other = strict.sign_in("boat-2", 2).await;
    let without_ticket = HeldTicket {
        ticket: None,
        ..own.clone()
    };
    for call in CALLS {
        let answer = strict.call(call, "boat-1", &other).await;
        is_refused_as_lie(call, answer);
        let answer = strict
            .call(call, "boat-1", &without_ticket)
            .await
            .expect(call);
        // A session that is not proved is no ground for another proof.
        let expected = (call == "ResumeTickets").then_some(Code::Unavailable);
        assert_eq!(answer, expected, "{call}");
    }
}

// Nothing that a boat makes up is a ticket.
#[test]
fn a_ticket_of_any_bytes_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let strict = runtime.block_on(strict());
    let other = runtime.block_on(strict.sign_in("boat-2", 2));
    let bytes = prop_oneof![
        any::<[u8; 32]>(),
        // Bytes with the number of the key in use.
        any::<[u8; 32]>().prop_map(|mut bytes| {
            bytes[0] = 1;
            bytes
        }),
    ];
    let any_call = (proptest::sample::select(&CALLS[..]), bytes);
    proptest!(ProptestConfig::with_cases(256), |((call, bytes) in any_call)| {
        let wrong = HeldTicket { ticket: Some(Ticket::from_bytes(bytes)), ..other.clone() };
        let answer = runtime.block_on(strict.call(call, "boat-1", &wrong));
        let is_silent = ["Disconnect", "MailAck"].contains(&call);
        match answer {
            Err(status) => prop_assert_eq!(status.code(), tonic::Code::PermissionDenied),
            Ok(None) => prop_assert!(is_silent, "{call} was done"),
            Ok(Some(code)) => prop_assert_eq!(code, Code::Unavailable),
        }
        prop_assert!(runtime.block_on(strict.is_online(2)));
    });
    assert!(runtime.block_on(strict.world.log()).is_empty());
}
