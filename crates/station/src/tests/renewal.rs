//! Sessions that go on with a new token, and clients that go on at another boat.

use std::time::Duration;

use api::station::{Admission, Connect, ReassertOutcome, RefreshToken};
use api::v1;
use protocol::mailbox::ReassertAnswer;
use protocol::ticket::{RESUME_LIFE, ResumeTicket};
use protocol::{Code, Platform, Refusal};
use tokio::time::sleep;

use super::tickets::{HeldTicket, Strict, refresh_request, strict};
use super::world::*;
use crate::auth::Claims;

const HOUR: Duration = Duration::from_secs(3600);

impl Strict {
    /// Signs in at another boat without a token.
    async fn resume(
        &self,
        number: i64,
        device_number: i64,
        ticket: ResumeTicket,
    ) -> Result<Admission, Code> {
        let connect = Connect {
            token: String::new(),
            resume: Some(ticket),
            device: device(&format!("phone-{device_number}")),
            ..self.world.connect_request(number, Platform::Ios, 77)
        };
        let request = v1::ConnectRequest::from(&connect);
        let answer = self.client("boat-2").connect(request).await;
        let admission: Result<Admission, Refusal> =
            (answer.expect("answered").into_inner().try_into()).expect("whole");
        admission.map_err(|refusal| refusal.code)
    }

    async fn resume_ticket(&self, holder: &HeldTicket) -> ResumeTicket {
        let tickets = self.resume_tickets("boat-1", &[holder]).await;
        tickets.expect("answered")[0].expect("a ticket")
    }

    async fn refresh_as(&self, holder: &HeldTicket, claims: Claims) -> Result<HeldTicket, Code> {
        let refresh = RefreshToken {
            issued_at: Some(BEGIN),
            ..refresh_request(holder, Platform::Ios, sign(&claims))
        };
        let outcome = self.refresh("boat-1", &refresh).await.expect("answered");
        let refreshment = outcome.map_err(|refusal| refusal.code)?;
        assert_eq!(refreshment.expires_at.millis() / 1000, claims.exp);
        Ok(HeldTicket {
            ticket: refreshment.ticket,
            ..holder.clone()
        })
    }

    fn claims(&self, number: i64, life: Duration) -> Claims {
        Claims::new(user(number), self.world.backends.clock.now(), life)
    }
}

// Threat 3: the ticket is of the new token from then on.
#[tokio::test(start_paused = true)]
async fn a_session_goes_on_with_a_new_token() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    sleep(HOUR / 5).await;
    let new_holder = strict.refresh_as(&holder, strict.claims(1, HOUR)).await;
    let new_holder = new_holder.expect("taken");
    // The first token lasts an hour, and its tickets no longer.
    sleep(HOUR / 5 * 4).await;
    let answer = strict.reassert("boat-1", &holder).await.expect("answered");
    assert_eq!(answer.outcome, ReassertOutcome::Unproved);
    let answer = strict
        .reassert("boat-1", &new_holder)
        .await
        .expect("answered");
    let expected = ReassertAnswer::Known { mail_waits: false };
    assert_eq!(answer.outcome, ReassertOutcome::Answer(expected));
}

#[tokio::test(start_paused = true)]
async fn a_token_of_another_user_device_or_time_is_not_taken() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    let other = strict.refresh_as(&holder, strict.claims(2, HOUR)).await;
    assert_eq!(other.expect_err("another user"), Code::Unauthenticated);
    let claims = strict.claims(1, HOUR).for_platform(Platform::Web);
    let other = strict.refresh_as(&holder, claims).await;
    assert_eq!(other.expect_err("another platform"), Code::Unauthenticated);
    let claims = strict.claims(1, HOUR).for_device(&device("tablet"));
    let other = strict.refresh_as(&holder, claims).await;
    assert_eq!(other.expect_err("another device"), Code::Unauthenticated);
    let mut claims = strict.claims(1, HOUR);
    claims.iat -= 10;
    let older = strict.refresh_as(&holder, claims).await;
    assert_eq!(older.expect_err("older"), Code::InvalidArgument);
    sleep(HOUR / 10).await;
    let good = strict.refresh_as(&holder, strict.claims(1, HOUR)).await;
    assert!(good.is_ok());
}

// Threat 12. No provider is asked.
#[tokio::test(start_paused = true)]
async fn a_client_goes_on_at_another_boat_without_a_token() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    let ticket = strict.resume_ticket(&holder).await;
    let other_device = strict.resume(1, 2, ticket).await;
    assert_eq!(other_device.expect_err("forged"), Code::Unauthenticated);
    let admission = strict.resume(1, 1, ticket).await.expect("admitted");
    assert_eq!(admission.user, user(1));
    // A session like any other, whose ticket is of its own boat, and ends with the token.
    let new_holder = HeldTicket {
        number: 77,
        ticket: admission.ticket,
    };
    assert!(new_holder.ticket.is_some() && new_holder.ticket != holder.ticket);
    // The user is the ticket's, however the call is made.
    let second_admission = strict.resume(2, 1, ticket).await.expect("its own device");
    assert_eq!(second_admission.user, user(1));
    sleep(RESUME_LIFE).await;
    let late = strict.resume(1, 1, ticket).await;
    assert_eq!(late.expect_err("late"), Code::TokenExpired);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_user_refreshes_no_token() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    let claims = strict.claims(1, HOUR);
    sleep(Duration::from_secs(1)).await;
    strict.world.revoke(1, 0).await.expect("written");
    let outcome = strict.refresh_as(&holder, claims).await;
    assert_eq!(outcome.expect_err("revoked"), Code::Unauthenticated);
    sleep(Duration::from_secs(1)).await;
    let younger = strict.refresh_as(&holder, strict.claims(1, HOUR)).await;
    assert!(younger.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_revoked_user_resumes_nowhere() {
    let strict = strict().await;
    let holder = strict.sign_in("boat-1", 1).await;
    let ticket = strict.resume_ticket(&holder).await;
    sleep(Duration::from_secs(1)).await;
    strict.world.revoke(1, 0).await.expect("written");
    let outcome = strict.resume(1, 1, ticket).await;
    assert_eq!(outcome.expect_err("revoked"), Code::Unauthenticated);
}
