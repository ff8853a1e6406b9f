//! Sessions that go on: with a new token, or at another boat without one.

use api::station::{Connect, RefreshToken, Refreshment, ResumeSession};
use metrics::counter;
use protocol::access::Caller;
use protocol::ticket::{ResumeTicket, SignIn, TicketError, TokenOf, check_refresh};
use protocol::{Refusal, SessionId, Timestamp};

use super::Admissions;
use super::tickets::boat_name;
use crate::auth::Client;

impl Admissions {
    /// Checks the proof that a client brings: a token, or the resume ticket of a boat that it had
    /// to leave, which costs no provider and no signature.
    pub(crate) async fn prove(&self, connect: &Connect, now: Timestamp) -> Result<SignIn, Refusal> {
        let sign_in = match &connect.resume {
            Some(ticket) => {
                let resumption = self
                    .tickets
                    .resume(ticket, connect.platform, &connect.device);
                SignIn {
                    session: connect.session,
                    ..resumption.map_err(TicketError::resume_refusal)?
                }
            }
            None => {
                let client = Client {
                    platform: connect.platform,
                    device: &connect.device,
                    address: &connect.peer,
                };
                let token = &connect.token;
                self.sign_in(token, &client, connect.session, now).await?
            }
        };
        self.revocations.check(sign_in.user, sign_in.issued_at)?;
        Ok(sign_in)
    }

    /// Sign-in that a token proves for a session of this client.
    async fn sign_in(
        &self,
        token: &str,
        client: &Client<'_>,
        session: SessionId,
        now: Timestamp,
    ) -> Result<SignIn, Refusal> {
        let identity = self.authenticator.authenticate(token, client, now).await?;
        identity.permits(client.platform, client.device)?;
        Ok(SignIn {
            user: identity.user,
            session,
            platform: client.platform,
            issued_at: identity.issued_at,
            ends_at: identity.expires_at,
        })
    }

    /// Checks the new token of a session whose ticket was good.
    pub(crate) async fn refresh(
        &self,
        refresh: RefreshToken,
        boat: Option<&Caller>,
    ) -> Result<Refreshment, Refusal> {
        let outcome = self.check_token(&refresh, boat).await;
        let result = match &outcome {
            Ok(_) => "refreshed",
            Err(refusal) => refusal.code.name(),
        };
        counter!("station_tokens_refreshed_total", "result" => result).increment(1);
        outcome
    }

    async fn check_token(
        &self,
        refresh: &RefreshToken,
        boat: Option<&Caller>,
    ) -> Result<Refreshment, Refusal> {
        let now = self.backends.clock.now();
        let client = Client {
            platform: refresh.platform,
            device: &refresh.device,
            address: "",
        };
        let token = &refresh.token;
        let sign_in = self.sign_in(token, &client, refresh.session, now).await?;
        let session = TokenOf {
            user: refresh.user,
            issued_at: refresh.issued_at,
        };
        let next = TokenOf {
            user: sign_in.user,
            issued_at: Some(sign_in.issued_at),
        };
        check_refresh(session, next)?;
        self.revocations.check(sign_in.user, sign_in.issued_at)?;
        Ok(Refreshment {
            expires_at: sign_in.ends_at,
            issued_at: sign_in.issued_at,
            ticket: self.tickets.sign(&sign_in, boat_name(boat)),
        })
    }

    /// Makes tickets for clients that are about to leave their boat; one per session, in order.
    ///
    /// # Errors
    /// No session is proved, and a ticket is forged.
    pub(crate) fn resume_tickets(
        &self,
        sessions: &[ResumeSession],
        boat: Option<&Caller>,
    ) -> Result<Vec<Option<ResumeTicket>>, TicketError> {
        let mut forgery = None;
        let offer = |session: &ResumeSession| {
            let outcome = self.tickets.offer_resume(session, &session.device, boat);
            outcome.unwrap_or_else(|error| {
                forgery = Some(error);
                None
            })
        };
        let tickets: Vec<_> = sessions.iter().map(offer).collect();
        match forgery.filter(|_| tickets.iter().all(Option::is_none)) {
            Some(error) => Err(error),
            None => Ok(tickets),
        }
    }
}
