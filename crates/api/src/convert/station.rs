//! Questions of boats to a station, and its answers.

use std::time::Duration;

use bytes::Bytes;
use protocol::frame::Accepted;
use protocol::mailbox::{MailCursor, ReassertAnswer};
use protocol::revocation::{PageStart, UserRevocation};
use protocol::session::{Page, PageItem};
use protocol::ticket::{ResumeTicket, Ticket};
use protocol::{Code, DeviceId, GroupId, MessageId, Refusal, SessionId, Timestamp, UserId};

use super::{by_value, field, invalid, life, list, message_ids, optional_platform};
use super::{optional_time, optional_user, platform, platform_number, present};
use super::{resume_bytes, resume_ticket, shown_resume_ticket, token};
use crate::station::{
    Admission, Connect, Disconnect, Kickout, MailAck, MailPageRequest, OnlineMembers,
    OnlineSession, OnlineUser, Reassert, ReassertOutcome, Reasserted, ReceiptItem, RefreshToken,
    Refreshment, ResumeSession, Revoke, RevokedPage, SendAnswer, SyncCall,
};
use crate::v1;
use crate::v1::connect_response::Result as ConnectResult;
use crate::v1::reassert_result::Outcome;
use crate::v1::refresh_response::Result as RefreshResult;

impl TryFrom<v1::ConnectRequest> for Connect {
    type Error = Refusal;

    fn try_from(wire: v1::ConnectRequest) -> Result<Self, Refusal> {
        Ok(Connect {
            session: field("connect.session", SessionId::new(wire.session))?,
            life: life(wire.life)?,
            token: token(wire.token)?,
            resume: shown_resume_ticket(&wire.resume_ticket)?,
            device: field("connect.device", DeviceId::new(&wire.device))?,
            platform: platform("connect.platform", wire.platform)?,
            peer: wire.peer,
            marker: (wire.marker != 0).then_some(wire.marker),
        })
    }
}

impl From<&Connect> for v1::ConnectRequest {
    fn from(connect: &Connect) -> Self {
        v1::ConnectRequest {
            session: connect.session.get(),
            life: Some((&connect.life).into()),
            token: connect.token.clone(),
            device: connect.device.as_str().to_owned(),
            platform: platform_number(connect.platform),
            peer: connect.peer.clone(),
            marker: connect.marker.unwrap_or(0),
            resume_ticket: resume_bytes(connect.resume.as_ref()),
        }
    }
}

impl TryFrom<v1::Admission> for Admission {
    type Error = Refusal;

    fn try_from(wire: v1::Admission) -> Result<Self, Refusal> {
        Ok(Admission {
            user: field("admission.user", UserId::new(wire.user))?,
            login: wire.login,
            marker: wire.marker,
            is_recovered: wire.recovered,
            mail_waits: wire.mail_waits,
            cluster: wire.cluster,
            server_time: Timestamp::from_millis(wire.server_time),
            expires_at: Timestamp::from_millis(wire.expires_at),
            is_degraded: wire.degraded,
            issued_at: optional_time(wire.issued_at),
            ticket: ticket("admission.ticket", &wire.ticket)?,
        })
    }
}

impl From<Admission> for v1::Admission {
    fn from(admission: Admission) -> Self {
        v1::Admission {
            user: admission.user.get(),
            login: admission.login,
            marker: admission.marker,
            recovered: admission.is_recovered,
            mail_waits: admission.mail_waits,
            cluster: admission.cluster,
            server_time: admission.server_time.millis(),
            expires_at: admission.expires_at.millis(),
            degraded: admission.is_degraded,
            issued_at: admission.issued_at.map_or(0, Timestamp::millis),
            ticket: ticket_bytes(admission.ticket.as_ref()),
        }
    }
}

impl TryFrom<v1::ConnectResponse> for Result<Admission, Refusal> {
    type Error = Refusal;

    /// The outer error: the answer itself is malformed. The inner one: the session is not admitted.
    fn try_from(wire: v1::ConnectResponse) -> Result<Self, Refusal> {
        Ok(match present("connect's result", wire.result)? {
            ConnectResult::Admission(admission) => Ok(admission.try_into()?),
            ConnectResult::Refusal(refusal) => Err(refusal.try_into()?),
        })
    }
}

impl From<Result<Admission, Refusal>> for v1::ConnectResponse {
    fn from(result: Result<Admission, Refusal>) -> Self {
        let result = match result {
            Ok(admission) => ConnectResult::Admission(admission.into()),
            Err(refusal) => ConnectResult::Refusal(refusal.into()),
        };
        v1::ConnectResponse {
            result: Some(result),
        }
    }
}

/// Ticket; `None` for no bytes.
pub(super) fn ticket(name: &str, bytes: &[u8]) -> Result<Option<Ticket>, Refusal> {
    match bytes {
        [] => Ok(None),
        bytes => match bytes.try_into() {
            Ok(bytes) => Ok(Some(Ticket::from_bytes(bytes))),
            Err(_) => Err(invalid(format!("{name} has {} bytes", bytes.len()))),
        },
    }
}

pub(super) fn ticket_bytes(ticket: Option<&Ticket>) -> Bytes {
    ticket.map_or_else(Bytes::new, |ticket| {
        Bytes::copy_from_slice(ticket.as_bytes())
    })
}

impl TryFrom<v1::RefreshRequest> for RefreshToken {
    type Error = Refusal;

    fn try_from(wire: v1::RefreshRequest) -> Result<Self, Refusal> {
        Ok(RefreshToken {
            user: field("refresh.user", UserId::new(wire.user))?,
            session: field("refresh.session", SessionId::new(wire.session))?,
            platform: platform("refresh.platform", wire.platform)?,
            device: field("refresh.device", DeviceId::new(&wire.device))?,
            token: token(wire.token)?,
            issued_at: optional_time(wire.issued_at),
            ticket: ticket("refresh.ticket", &wire.ticket)?,
        })
    }
}

impl From<&RefreshToken> for v1::RefreshRequest {
    fn from(refresh: &RefreshToken) -> Self {
        v1::RefreshRequest {
            user: refresh.user.get(),
            session: refresh.session.get(),
            platform: platform_number(refresh.platform),
            device: refresh.device.as_str().to_owned(),
            token: refresh.token.clone(),
            issued_at: refresh.issued_at.map_or(0, Timestamp::millis),
            ticket: ticket_bytes(refresh.ticket.as_ref()),
        }
    }
}

impl TryFrom<v1::RefreshResponse> for Result<Refreshment, Refusal> {
    type Error = Refusal;

    /// The outer error: the answer itself is malformed. The inner one: the token is refused.
    fn try_from(wire: v1::RefreshResponse) -> Result<Self, Refusal> {
        Ok(match present("refresh's result", wire.result)? {
            RefreshResult::Refreshment(wire) => Ok(Refreshment {
                expires_at: Timestamp::from_millis(wire.expires_at),
                issued_at: Timestamp::from_millis(wire.issued_at),
                ticket: ticket("refreshment.ticket", &wire.ticket)?,
            }),
            RefreshResult::Refusal(refusal) => Err(refusal.try_into()?),
        })
    }
}

impl From<Result<Refreshment, Refusal>> for v1::RefreshResponse {
    fn from(result: Result<Refreshment, Refusal>) -> Self {
        let result = match result {
            Ok(refreshment) => RefreshResult::Refreshment(v1::Refreshment {
                expires_at: refreshment.expires_at.millis(),
                issued_at: refreshment.issued_at.millis(),
                ticket: ticket_bytes(refreshment.ticket.as_ref()),
            }),
            Err(refusal) => RefreshResult::Refusal(refusal.into()),
        };
        v1::RefreshResponse {
            result: Some(result),
        }
    }
}

impl TryFrom<v1::ResumeSession> for ResumeSession {
    type Error = Refusal;

    fn try_from(wire: v1::ResumeSession) -> Result<Self, Refusal> {
        Ok(ResumeSession {
            user: field("resume.user", UserId::new(wire.user))?,
            session: field("resume.session", SessionId::new(wire.session))?,
            platform: platform("resume.platform", wire.platform)?,
            device: field("resume.device", DeviceId::new(&wire.device))?,
            ticket: ticket("resume.ticket", &wire.ticket)?,
        })
    }
}

impl From<&ResumeSession> for v1::ResumeSession {
    fn from(session: &ResumeSession) -> Self {
        v1::ResumeSession {
            user: session.user.get(),
            session: session.session.get(),
            platform: platform_number(session.platform),
            device: session.device.as_str().to_owned(),
            ticket: ticket_bytes(session.ticket.as_ref()),
        }
    }
}

impl From<Vec<Option<ResumeTicket>>> for v1::ResumeTicketsResponse {
    fn from(tickets: Vec<Option<ResumeTicket>>) -> Self {
        let tickets = tickets.iter().map(|ticket| resume_bytes(ticket.as_ref()));
        v1::ResumeTicketsResponse {
            tickets: tickets.collect(),
        }
    }
}

impl TryFrom<v1::ResumeTicketsResponse> for Vec<Option<ResumeTicket>> {
    type Error = Refusal;

    fn try_from(wire: v1::ResumeTicketsResponse) -> Result<Self, Refusal> {
        let tickets = wire.tickets.iter();
        Ok(tickets.map(|bytes| resume_ticket(bytes)).collect())
    }
}

impl TryFrom<v1::DisconnectRequest> for Vec<Disconnect> {
    type Error = Refusal;

    fn try_from(wire: v1::DisconnectRequest) -> Result<Self, Refusal> {
        let has_each = [0, wire.sessions.len()].contains(&wire.tickets.len());
        if !has_each {
            let text = format!(
                "{} sessions and {} tickets",
                wire.sessions.len(),
                wire.tickets.len()
            );
            return Err(Refusal::new(Code::Malformed, text));
        }
        let mut tickets = wire.tickets.into_iter();
        let disconnects = wire.sessions.into_iter().map(|key| {
            let bytes = tickets.next().unwrap_or_default();
            Ok(Disconnect {
                key: key.try_into()?,
                ticket: ticket("disconnect.tickets", &bytes)?,
            })
        });
        disconnects.collect()
    }
}

impl From<&[Disconnect]> for v1::DisconnectRequest {
    fn from(disconnects: &[Disconnect]) -> Self {
        let tickets = disconnects
            .iter()
            .map(|one| ticket_bytes(one.ticket.as_ref()));
        v1::DisconnectRequest {
            sessions: disconnects.iter().map(|one| (&one.key).into()).collect(),
            tickets: tickets.collect(),
        }
    }
}

impl From<Vec<Disconnect>> for v1::DisconnectRequest {
    fn from(disconnects: Vec<Disconnect>) -> Self {
        disconnects.as_slice().into()
    }
}

impl TryFrom<v1::ReassertSession> for Reassert {
    type Error = Refusal;

    fn try_from(wire: v1::ReassertSession) -> Result<Self, Refusal> {
        Ok(Reassert {
            key: present("reassert.key", wire.key)?.try_into()?,
            platform: platform("reassert.platform", wire.platform)?,
            device: field("reassert.device", DeviceId::new(&wire.device))?,
            login: (wire.login != 0).then_some(wire.login),
            issued_at: optional_time(wire.issued_at),
            ticket: ticket("reassert.ticket", &wire.ticket)?,
        })
    }
}

impl From<&Reassert> for v1::ReassertSession {
    fn from(reassert: &Reassert) -> Self {
        v1::ReassertSession {
            key: Some((&reassert.key).into()),
            platform: platform_number(reassert.platform),
            device: reassert.device.as_str().to_owned(),
            login: reassert.login.unwrap_or(0),
            issued_at: reassert.issued_at.map_or(0, Timestamp::millis),
            ticket: ticket_bytes(reassert.ticket.as_ref()),
        }
    }
}

impl TryFrom<v1::ReassertResult> for Reasserted {
    type Error = Refusal;

    fn try_from(wire: v1::ReassertResult) -> Result<Self, Refusal> {
        let mail_waits = wire.mail_waits;
        let outcome = match Outcome::try_from(wire.outcome) {
            Ok(Outcome::Known) => ReassertOutcome::Answer(ReassertAnswer::Known { mail_waits }),
            Ok(Outcome::Restored) => ReassertOutcome::Answer(ReassertAnswer::Restored {
                marker: wire.marker,
                mail_waits,
            }),
            Ok(Outcome::Displaced) => ReassertOutcome::Answer(ReassertAnswer::Displaced),
            Ok(Outcome::Replaced) => ReassertOutcome::Answer(ReassertAnswer::Replaced),
            Ok(Outcome::Unavailable) => ReassertOutcome::Unavailable,
            Ok(Outcome::Revoked) => ReassertOutcome::Revoked,
            Ok(Outcome::Unproved) => ReassertOutcome::Unproved,
            Ok(Outcome::Unspecified) | Err(_) => {
                return Err(invalid(format!(
                    "reassert outcome {} is unknown",
                    wire.outcome
                )));
            }
        };
        Ok(Reasserted {
            outcome,
            ticket: ticket("reassert.ticket", &wire.ticket)?,
        })
    }
}

impl From<Reasserted> for v1::ReassertResult {
    fn from(answer: Reasserted) -> Self {
        let (outcome, marker, mail_waits) = match answer.outcome {
            ReassertOutcome::Answer(ReassertAnswer::Known { mail_waits }) => {
                (Outcome::Known, 0, mail_waits)
            }
            ReassertOutcome::Answer(ReassertAnswer::Restored { marker, mail_waits }) => {
                (Outcome::Restored, marker, mail_waits)
            }
            ReassertOutcome::Answer(ReassertAnswer::Displaced) => (Outcome::Displaced, 0, false),
            ReassertOutcome::Answer(ReassertAnswer::Replaced) => (Outcome::Replaced, 0, false),
            ReassertOutcome::Unavailable => (Outcome::Unavailable, 0, false),
            ReassertOutcome::Revoked => (Outcome::Revoked, 0, false),
            ReassertOutcome::Unproved => (Outcome::Unproved, 0, false),
        };
        v1::ReassertResult {
            outcome: outcome.into(),
            marker,
            mail_waits,
            ticket: ticket_bytes(answer.ticket.as_ref()),
        }
    }
}

impl TryFrom<v1::SendAnswer> for SendAnswer {
    type Error = Refusal;

    fn try_from(wire: v1::SendAnswer) -> Result<Self, Refusal> {
        let send_id = field("send_answer.send_id", wire.send_id.parse())?;
        Ok(match wire.refusal {
            Some(refusal) => SendAnswer::Refused {
                send_id,
                refusal: refusal.try_into()?,
            },
            None => SendAnswer::Accepted(Accepted {
                send_id,
                id: field("send_answer.msg_id", MessageId::new(wire.msg_id))?,
                accepted_at: Timestamp::from_millis(wire.tm),
            }),
        })
    }
}

impl From<SendAnswer> for v1::SendAnswer {
    fn from(answer: SendAnswer) -> Self {
        match answer {
            SendAnswer::Accepted(accepted) => accepted.into(),
            SendAnswer::Refused { send_id, refusal } => v1::SendAnswer {
                send_id: send_id.to_string(),
                refusal: Some(refusal.into()),
                ..v1::SendAnswer::default()
            },
        }
    }
}

impl TryFrom<v1::ReceiptItem> for ReceiptItem {
    type Error = Refusal;

    fn try_from(wire: v1::ReceiptItem) -> Result<Self, Refusal> {
        Ok(ReceiptItem {
            user: field("receipt_item.user", UserId::new(wire.user))?,
            session: field("receipt_item.session", SessionId::new(wire.session))?,
            ack: present("receipt_item.ack", wire.ack)?.try_into()?,
            ticket: ticket("receipt_item.ticket", &wire.ticket)?,
        })
    }
}

impl From<&ReceiptItem> for v1::ReceiptItem {
    fn from(item: &ReceiptItem) -> Self {
        v1::ReceiptItem {
            user: item.user.get(),
            session: item.session.get(),
            ack: Some((&item.ack).into()),
            ticket: ticket_bytes(item.ticket.as_ref()),
        }
    }
}

/// Cursor; `None` if both are zero.
fn cursor(name: &str, millis: i64, id: i64) -> Result<Option<MailCursor>, Refusal> {
    if (millis, id) == (0, 0) {
        return Ok(None);
    }
    Ok(Some(MailCursor {
        accepted_at: Timestamp::from_millis(millis),
        id: field(name, MessageId::new(id))?,
    }))
}

fn cursor_fields(cursor: Option<MailCursor>) -> (i64, i64) {
    cursor.map_or((0, 0), |at| (at.accepted_at.millis(), at.id.get()))
}

impl TryFrom<v1::MailPageRequest> for MailPageRequest {
    type Error = Refusal;

    fn try_from(wire: v1::MailPageRequest) -> Result<Self, Refusal> {
        Ok(MailPageRequest {
            user: field("mail_page.user", UserId::new(wire.user))?,
            platform: platform("mail_page.platform", wire.platform)?,
            cursor: cursor("mail_page.after_id", wire.after_ms, wire.after_id)?,
            limit: wire.limit,
            session: match wire.session {
                0 => None,
                session => Some(field("mail_page.session", SessionId::new(session))?),
            },
            ticket: ticket("mail_page.ticket", &wire.ticket)?,
        })
    }
}

impl From<MailPageRequest> for v1::MailPageRequest {
    fn from(request: MailPageRequest) -> Self {
        let (after_ms, after_id) = cursor_fields(request.cursor);
        v1::MailPageRequest {
            user: request.user.get(),
            platform: platform_number(request.platform),
            after_ms,
            after_id,
            limit: request.limit,
            session: request.session.map_or(0, SessionId::get),
            ticket: ticket_bytes(request.ticket.as_ref()),
        }
    }
}

impl TryFrom<v1::MailPageResponse> for Page {
    type Error = Refusal;

    fn try_from(wire: v1::MailPageResponse) -> Result<Self, Refusal> {
        let next = if wire.more {
            cursor("mail_page.next_id", wire.next_ms, wire.next_id)?
        } else {
            None
        };
        if wire.more && next.is_none() {
            let text = "mail_page says that there is more, but not where to continue";
            return Err(Refusal::new(Code::Malformed, text));
        }
        Ok(Page {
            mails: list("mail_page.mails", wire.mails, usize::MAX)?,
            next,
        })
    }
}

impl From<Page> for v1::MailPageResponse {
    fn from(page: Page) -> Self {
        let (next_ms, next_id) = cursor_fields(page.next);
        v1::MailPageResponse {
            mails: page.mails.into_iter().map(v1::MailItem::from).collect(),
            more: page.next.is_some(),
            next_ms,
            next_id,
        }
    }
}

impl TryFrom<v1::MailItem> for PageItem {
    type Error = Refusal;

    fn try_from(wire: v1::MailItem) -> Result<Self, Refusal> {
        Ok(PageItem {
            id: field("mail.msg_id", MessageId::new(wire.msg_id))?,
            frame: wire.frame,
        })
    }
}

impl From<PageItem> for v1::MailItem {
    fn from(item: PageItem) -> Self {
        v1::MailItem {
            msg_id: item.id.get(),
            frame: item.frame,
        }
    }
}

impl TryFrom<v1::MailAckItem> for MailAck {
    type Error = Refusal;

    fn try_from(wire: v1::MailAckItem) -> Result<Self, Refusal> {
        Ok(MailAck {
            user: field("mail_ack.user", UserId::new(wire.user))?,
            platform: platform("mail_ack.platform", wire.platform)?,
            session: field("mail_ack.session", SessionId::new(wire.session))?,
            ids: message_ids("mail_ack.msg_ids", wire.msg_ids)?,
            ticket: ticket("mail_ack.ticket", &wire.ticket)?,
        })
    }
}

impl From<&MailAck> for v1::MailAckItem {
    fn from(ack: &MailAck) -> Self {
        v1::MailAckItem {
            user: ack.user.get(),
            platform: platform_number(ack.platform),
            session: ack.session.get(),
            msg_ids: ack.ids.iter().map(|id| id.get()).collect(),
            ticket: ticket_bytes(ack.ticket.as_ref()),
        }
    }
}

impl TryFrom<v1::SyncCall> for SyncCall {
    type Error = Refusal;

    fn try_from(wire: v1::SyncCall) -> Result<Self, Refusal> {
        Ok(SyncCall {
            user: field("sync.user", UserId::new(wire.user))?,
            session: field("sync.session", SessionId::new(wire.session))?,
            request: present("sync.request", wire.request)?.try_into()?,
            ticket: ticket("sync.ticket", &wire.ticket)?,
        })
    }
}

impl From<&SyncCall> for v1::SyncCall {
    fn from(call: &SyncCall) -> Self {
        v1::SyncCall {
            user: call.user.get(),
            session: call.session.get(),
            request: Some((&call.request).into()),
            ticket: ticket_bytes(call.ticket.as_ref()),
        }
    }
}

impl TryFrom<v1::OnlineMembersRequest> for OnlineMembers {
    type Error = Refusal;

    fn try_from(wire: v1::OnlineMembersRequest) -> Result<Self, Refusal> {
        Ok(OnlineMembers {
            group: field("online.group", GroupId::new(wire.group))?,
            cursor: optional_user("online.after", wire.after)?,
        })
    }
}

impl From<OnlineMembers> for v1::OnlineMembersRequest {
    fn from(page: OnlineMembers) -> Self {
        v1::OnlineMembersRequest {
            group: page.group.get(),
            after: page.cursor.map_or(0, UserId::get),
        }
    }
}

impl TryFrom<v1::OnlineUser> for OnlineUser {
    type Error = Refusal;

    fn try_from(wire: v1::OnlineUser) -> Result<Self, Refusal> {
        let sessions = list("online.sessions", wire.sessions, usize::MAX)?;
        Ok(OnlineUser {
            user: field("online.user", UserId::new(wire.user))?,
            sessions: (!wire.unknown).then_some(sessions),
        })
    }
}

impl From<&OnlineUser> for v1::OnlineUser {
    fn from(online: &OnlineUser) -> Self {
        let sessions = online.sessions.iter().flatten();
        v1::OnlineUser {
            user: online.user.get(),
            sessions: sessions.map(v1::OnlineSession::from).collect(),
            unknown: online.sessions.is_none(),
        }
    }
}

impl TryFrom<v1::OnlineSession> for OnlineSession {
    type Error = Refusal;

    fn try_from(wire: v1::OnlineSession) -> Result<Self, Refusal> {
        Ok(OnlineSession {
            session: field("online.session", SessionId::new(wire.session))?,
            platform: platform("online.platform", wire.platform)?,
            life: life(wire.life)?,
        })
    }
}

impl From<&OnlineSession> for v1::OnlineSession {
    fn from(online: &OnlineSession) -> Self {
        v1::OnlineSession {
            session: online.session.get(),
            platform: platform_number(online.platform),
            life: Some((&online.life).into()),
        }
    }
}

impl TryFrom<v1::KickoutRequest> for Kickout {
    type Error = Refusal;

    fn try_from(wire: v1::KickoutRequest) -> Result<Self, Refusal> {
        Ok(Kickout {
            user: field("kickout.user", UserId::new(wire.user))?,
            platform: optional_platform("kickout.platform", wire.platform)?,
            text: wire.text,
        })
    }
}

impl From<&Kickout> for v1::KickoutRequest {
    fn from(kickout: &Kickout) -> Self {
        v1::KickoutRequest {
            user: kickout.user.get(),
            platform: kickout.platform.map_or(0, platform_number),
            text: kickout.text.clone(),
        }
    }
}

impl TryFrom<v1::RevokeRequest> for Revoke {
    type Error = Refusal;

    fn try_from(wire: v1::RevokeRequest) -> Result<Self, Refusal> {
        Ok(Revoke {
            user: field("revoke.user", UserId::new(wire.user))?,
            issued_before: optional_time(wire.before),
            reason: wire.reason,
            by: wire.by,
        })
    }
}

impl From<&Revoke> for v1::RevokeRequest {
    fn from(revoke: &Revoke) -> Self {
        v1::RevokeRequest {
            user: revoke.user.get(),
            before: revoke.issued_before.map_or(0, Timestamp::millis),
            reason: revoke.reason.clone(),
            by: revoke.by.clone(),
        }
    }
}

impl TryFrom<v1::RevokedRequest> for PageStart {
    type Error = Refusal;

    fn try_from(wire: v1::RevokedRequest) -> Result<Self, Refusal> {
        Ok(PageStart {
            start: Timestamp::from_millis(wire.since),
            cursor: optional_user("revoked.after_user", wire.after_user)?,
        })
    }
}

impl From<PageStart> for v1::RevokedRequest {
    fn from(start: PageStart) -> Self {
        v1::RevokedRequest {
            since: start.start.millis(),
            after_user: start.cursor.map_or(0, UserId::get),
        }
    }
}

impl TryFrom<v1::RevokedUser> for UserRevocation {
    type Error = Refusal;

    fn try_from(wire: v1::RevokedUser) -> Result<Self, Refusal> {
        Ok(UserRevocation {
            user: field("revoked.user", UserId::new(wire.user))?,
            before: Timestamp::from_millis(wire.before),
            at: Timestamp::from_millis(wire.at),
        })
    }
}

impl From<UserRevocation> for v1::RevokedUser {
    fn from(revocation: UserRevocation) -> Self {
        v1::RevokedUser {
            user: revocation.user.get(),
            before: revocation.before.millis(),
            at: revocation.at.millis(),
        }
    }
}

impl TryFrom<v1::RevokedResponse> for RevokedPage {
    type Error = Refusal;

    fn try_from(wire: v1::RevokedResponse) -> Result<Self, Refusal> {
        Ok(RevokedPage {
            users: list("revoked.users", wire.users, usize::MAX)?,
            more: wire.more,
            complete_until: Timestamp::from_millis(wire.complete_until),
            retention: match u64::try_from(wire.retention_ms) {
                Ok(millis) if millis > 0 => Some(Duration::from_millis(millis)),
                Ok(_) | Err(_) => None,
            },
        })
    }
}

impl From<RevokedPage> for v1::RevokedResponse {
    fn from(page: RevokedPage) -> Self {
        v1::RevokedResponse {
            users: page.users.into_iter().map(v1::RevokedUser::from).collect(),
            more: page.more,
            complete_until: page.complete_until.millis(),
            retention_ms: page.retention.map_or(0, |retention| {
                i64::try_from(retention.as_millis()).unwrap_or(i64::MAX)
            }),
        }
    }
}

by_value! {
    Connect => v1::ConnectRequest,
    Reassert => v1::ReassertSession,
    RefreshToken => v1::RefreshRequest,
    ResumeSession => v1::ResumeSession,
    ReceiptItem => v1::ReceiptItem,
    MailAck => v1::MailAckItem,
    SyncCall => v1::SyncCall,
    OnlineUser => v1::OnlineUser,
    OnlineSession => v1::OnlineSession,
    Kickout => v1::KickoutRequest,
    Revoke => v1::RevokeRequest,
}
