//! Debug output of messages with a token or a body: names and ids, never content.

use std::fmt;

use protocol::Hidden;

use crate::v1::{
    Admission, AuthenticateRequest, ConnectRequest, Delivery, DisconnectRequest, Hello,
    MailAckItem, MailItem, MailPageRequest, MsgChat, ReassertResult, ReassertSession, ReceiptItem,
    Refresh, RefreshRequest, Refreshment, ResumeSession, ResumeTicketsResponse, SendItem,
    ServerFrame, SyncCall,
};

/// Shows these fields of a message, and the length of its ticket.
macro_rules! hides_ticket {
    ($($message:ident: $($field:ident),+;)+) => {
        $(impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message))
                    $(.field(stringify!($field), &self.$field))+
                    .field("ticket", &Hidden::of(&self.ticket))
                    .finish_non_exhaustive()
            }
        })+
    };
}

hides_ticket! {
    Admission: user, login, marker, recovered, mail_waits, expires_at, degraded, issued_at;
    ReassertSession: key, platform, device, issued_at;
    ReassertResult: outcome, marker, mail_waits;
    SendItem: session, user, device, platform, send;
    ReceiptItem: session, user, ack;
    MailPageRequest: session, user, platform, after_ms, after_id, limit;
    MailAckItem: session, user, platform, msg_ids;
    SyncCall: session, user, request;
    Refreshment: expires_at, issued_at;
    ResumeSession: user, session, platform, device;
}

impl fmt::Debug for Refresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refresh")
            .field("token", &Hidden::of(&self.token))
            .finish()
    }
}

impl fmt::Debug for RefreshRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefreshRequest")
            .field("user", &self.user)
            .field("session", &self.session)
            .field("token", &Hidden::of(&self.token))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ResumeTicketsResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResumeTicketsResponse")
            .field("tickets", &self.tickets.len())
            .finish()
    }
}

impl fmt::Debug for ServerFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerFrame")
            .field("frame", &self.frame)
            .field("resume_ticket", &Hidden::of(&self.resume_ticket))
            .finish()
    }
}

impl fmt::Debug for DisconnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DisconnectRequest")
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("version", &self.version)
            .field("token", &Hidden::of(&self.token))
            .field("device", &self.device)
            .field("platform", &self.platform)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("session", &self.session)
            .field("life", &self.life)
            .field("token", &Hidden::of(&self.token))
            .field("device", &self.device)
            .field("platform", &self.platform)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest")
            .field("token", &Hidden::of(&self.token))
            .field("platform", &self.platform)
            .field("device", &self.device)
            .field("address", &self.address)
            .finish()
    }
}

impl fmt::Debug for MsgChat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MsgChat")
            .field("msg_id", &self.msg_id)
            .field("from_id", &self.from_id)
            .field("to_id", &self.to_id)
            .field("send_id", &self.send_id)
            .field("data", &Hidden::of(&self.data))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MailItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MailItem")
            .field("msg_id", &self.msg_id)
            .field("frame", &Hidden::of(&self.frame))
            .finish()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("session", &self.session)
            .field("msg_id", &self.msg_id)
            .field("frame", &Hidden::of(&self.frame))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_and_a_body_are_not_shown() {
        let hello = Hello {
            token: "hunter2".into(),
            ..Hello::default()
        };
        let connect = ConnectRequest {
            token: "hunter2".into(),
            ..ConnectRequest::default()
        };
        let message = MsgChat {
            data: "hunter2".into(),
            ..MsgChat::default()
        };
        let refresh = RefreshRequest {
            token: "hunter2".into(),
            ..RefreshRequest::default()
        };
        let frame = ServerFrame {
            resume_ticket: "hunter2".into(),
            ..ServerFrame::default()
        };
        let mail = MailItem {
            frame: "hunter2".into(),
            ..MailItem::default()
        };
        let delivery = Delivery {
            frame: "hunter2".into(),
            ..Delivery::default()
        };
        for output in [
            format!("{hello:?}"),
            format!("{connect:?}"),
            format!("{refresh:?}"),
            format!("{frame:?}"),
            format!("{message:?}"),
            format!("{mail:?}"),
            format!("{delivery:?}"),
        ] {
            assert!(!output.contains("hunter2"), "{output}");
            assert!(output.contains("(7 bytes)"), "{output}");
        }
    }
}
