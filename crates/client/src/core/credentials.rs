//! Proofs that a client shows: its token, renewed before it ends, and the ticket of a boat that left.

use protocol::frame::{ClientFrame, Refresh, Welcome};
use protocol::ticket::{REFRESH_PAUSE, RESUME_LIFE, ResumeTicket, falls_back, refresh_in};
use protocol::{Code, Refusal, Timestamp};

use super::{Action, Out};

pub(super) struct Credentials {
    token: String,
    /// The driver can get another one.
    renews: bool,
    /// The token has ended, or is not taken: another one comes before the next hello.
    is_stale: bool,
    /// The source gave it last, and no station has taken it yet.
    is_untried: bool,
    is_fetching: bool,
    /// A new token was sent, and not answered yet.
    is_refreshing: bool,
    /// The boat at hand knows of refreshes: an older one would end the connection.
    takes_refreshes: bool,
    /// With the time until which it may be good.
    resume: Option<(ResumeTicket, Timestamp)>,
    /// The hello bore the ticket.
    has_resumed: bool,
    refresh_at: Option<Timestamp>,
    /// The server's time at the last welcome, and ours.
    clocks: (Timestamp, Timestamp),
    /// Any random number: clients that came at a time do not refresh at a time.
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

    /// Has a token fetched where the next hello needs one. False: it needs none.
    pub(super) fn fetch_if_needed(&mut self, now: Timestamp, out: &mut Out) -> bool {
        self.resume = self.resume.filter(|(_, until)| now < *until);
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

    /// Token and ticket of a hello, one of them.
    pub(super) fn present(&mut self, now: Timestamp) -> (String, Option<ResumeTicket>) {
        self.resume = self.resume.filter(|(_, until)| now < *until);
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
        // Unguessable, and another one each time.
        self.jitter = welcome.session.get() as u64;
        if let Some(expires_at) = welcome.expires_at {
            self.plan(expires_at, now);
        }
    }

    /// The server takes the new token, which ends then.
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

    /// An error that answers no question: perhaps the new token's.
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

    /// The reason of an end, as it is for this client: one that has another proof, or can get one, comes again.
    pub(super) fn handle_disconnected(&mut self, why: Refusal) -> Refusal {
        (self.refresh_at, self.takes_refreshes) = (None, false);
        if std::mem::take(&mut self.is_refreshing) {
            // The answer is lost, and may have been no: if the next hello's is, another token may still help.
            self.is_untried = false;
        }
        if std::mem::take(&mut self.has_resumed) && falls_back(why.code) {
            self.resume = None;
            return Refusal::new(Code::Reconnect, why.text);
        }
        // A new token may help where its key is gone, too; one that was just fetched says that none will.
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

    /// The answer to `FetchToken`: sent at once where a session lives.
    pub(super) fn handle_token(&mut self, token: String, is_live: bool, out: &mut Out) {
        (self.token, self.is_stale, self.is_fetching) = (token, false, false);
        self.is_untried = true;
        if is_live && self.takes_refreshes {
            self.is_refreshing = true;
            let token = self.token.clone();
            out.transmit(ClientFrame::Refresh(Refresh { token }));
        }
    }

    /// The other answer to `FetchToken`.
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
