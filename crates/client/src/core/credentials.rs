//! Credentials of a client: its token, renewed before it ends, and the ticket of a boat that left.

use protocol::frame::{ClientFrame, Refresh, Welcome};
use protocol::ticket::{REFRESH_PAUSE, RESUME_LIFE, ResumeTicket, falls_back, refresh_in};
use protocol::{Code, Refusal, Timestamp};

use super::{Action, Out};

pub(super) struct Credentials {
    token: String,
    /// Whether the driver can get another token.
    renews: bool,
    /// The token has ended, or was refused: the next hello needs another one.
    is_stale: bool,
    /// The token is the latest of its source, and no station has accepted it yet.
    is_untried: bool,
    is_fetching: bool,
    /// A new token was sent and not answered yet.
    is_refreshing: bool,
    /// The connected boat knows refreshes; an older one would end the connection.
    takes_refreshes: bool,
    /// Ticket, and the time until which it may be valid.
    resume: Option<(ResumeTicket, Timestamp)>,
    /// The hello carried the ticket.
    has_resumed: bool,
    refresh_at: Option<Timestamp>,
    /// Server time at the last welcome, and ours.
    clocks: (Timestamp, Timestamp),
    /// Random number, so that clients that connected together do not refresh together.
    jitter: u64,
}

impl Credentials {
    pub(super) fn new(token: String, renews: bool) -> Credentials {
        Credentials {
            is_stale: renews && token.is_empty(),
            is_untried: false,
            token,
            renews,
            is_fetching: false,
            is_refreshing: false,
            takes_refreshes: false,
            resume: None,
            has_resumed: false,
            refresh_at: None,
            clocks: (Timestamp::ZERO, Timestamp::ZERO),
            jitter: 0,
        }
    }

    /// Requests a token if the next hello needs one. False: it needs none.
    pub(super) fn fetch_if_needed(&mut self, now: Timestamp, out: &mut Out) -> bool {
        self.resume = self.resume.filter(|(_, deadline)| now < *deadline);
        let is_needed = self.is_stale && self.resume.is_none();
        if is_needed {
            self.fetch(out);
        }
        is_needed
    }

    fn fetch(&mut self, out: &mut Out) {
        if !std::mem::replace(&mut self.is_fetching, true) {
            out.push(Action::FetchToken);
        }
    }

    /// Token or ticket for a hello: only one of them is set.
    pub(super) fn present(&mut self, now: Timestamp) -> (String, Option<ResumeTicket>) {
        self.resume = self.resume.filter(|(_, deadline)| now < *deadline);
        self.has_resumed = self.resume.is_some();
        match self.resume {
            Some((ticket, _)) => (String::new(), Some(ticket)),
            None => (self.token.clone(), None),
        }
    }

    pub(super) fn handle_welcome(&mut self, welcome: &Welcome, now: Timestamp) {
        if !std::mem::take(&mut self.has_resumed) {
            self.is_untried = false;
        }
        self.resume = None;
        self.clocks = (welcome.server_time, now);
        self.takes_refreshes = welcome.expires_at.is_some();
        // A session id cannot be guessed, and differs each time.
        self.jitter = welcome.session.get() as u64;
        if let Some(expires_at) = welcome.expires_at {
            self.plan(expires_at, now);
        }
    }

    /// Notes that the server accepted the new token, which ends at `expires_at`.
    pub(super) fn handle_refreshed(&mut self, expires_at: Timestamp, now: Timestamp) {
        (self.is_refreshing, self.is_untried) = (false, false);
        self.plan(expires_at, now);
    }

    fn plan(&mut self, expires_at: Timestamp, now: Timestamp) {
        let (server_time, at) = self.clocks;
        let remaining = expires_at.since(server_time + now.since(at));
        let refresh_at = now + refresh_in(remaining, self.jitter);
        self.refresh_at = self.renews.then_some(refresh_at);
    }

    /// Handles an error that answers no query: it may refuse the new token.
    pub(super) fn handle_error(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.is_refreshing) {
            self.is_stale = true;
            self.refresh_at = Some(now + REFRESH_PAUSE);
        }
    }

    pub(super) fn handle_closing(&mut self, resume: Option<ResumeTicket>, now: Timestamp) {
        if let Some(ticket) = resume {
            self.resume = Some((ticket, now + RESUME_LIFE));
        }
    }

    /// Reason for the end as it applies to this client: one with another credential, or a way to
    /// get one, reconnects.
    pub(super) fn handle_disconnected(&mut self, why: Refusal) -> Refusal {
        (self.refresh_at, self.takes_refreshes) = (None, false);
        if std::mem::take(&mut self.is_refreshing) {
            // The answer is lost, and may have been no: if the next hello is refused, another token
            // may still help.
            self.is_untried = false;
        }
        if std::mem::take(&mut self.has_resumed) && falls_back(why.code) {
            self.resume = None;
            return Refusal::new(Code::Reconnect, why.text);
        }
        // A new token may help even if the old one's key is gone; if a token just fetched is
        // refused, no other will help.
        let may_help = match why.code {
            Code::TokenExpired => true,
            Code::Unauthenticated => !self.is_untried,
            _ => false,
        };
        if self.renews && may_help {
            self.is_stale = true;
            return Refusal::new(Code::Reconnect, why.text);
        }
        why
    }

    /// Takes the answer to `FetchToken`; on a live session the token is sent at once.
    pub(super) fn handle_token(&mut self, token: String, is_live: bool, out: &mut Out) {
        (self.token, self.is_stale, self.is_fetching) = (token, false, false);
        self.is_untried = true;
        if is_live && self.takes_refreshes {
            self.is_refreshing = true;
            let token = self.token.clone();
            out.transmit(ClientFrame::Refresh(Refresh { token }));
        }
    }

    /// Handles a `FetchToken` that failed.
    pub(super) fn handle_no_token(&mut self, is_live: bool, now: Timestamp) {
        self.is_fetching = false;
        if is_live {
            self.refresh_at = Some(now + REFRESH_PAUSE);
        }
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.refresh_at
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp, out: &mut Out) {
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.refresh_at = None;
            self.fetch(out);
        }
    }
}
