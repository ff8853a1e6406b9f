//! Signs users out: logs the operation, revokes the tokens, then kicks the sessions registered now.
//! Sessions that begin in between end with the revocation.

mod steps;

use std::sync::Arc;

use api::station::{Kickout, Revoke};
use api::status::{carries_refusal, to_refusal};
use api::transport::{Channel, Connector};
use api::v1::station_service_client::StationServiceClient;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use backend::clock::Entropy;
use backend::discovery::{Registry, Role as Service};
use protocol::access::Role;
use protocol::revocation::Revocation;
use protocol::{Code, Platform, Refusal, Timestamp, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Code as Grpc, Response, Status};

pub use self::steps::ANSWER_TIMEOUT;
pub(crate) use self::steps::STATION_TIMEOUT;
use self::steps::{LOG_TIMEOUT, MAX_CONCURRENT_SIGN_OUTS, STEP_TIMEOUT, asks_another};
use crate::answer::{Time, utc};
use crate::port::desk::{Answer, Desk, failed};
use crate::port::operators::Operator;
use crate::port::refusal::DeskRefusal;

type Client = StationServiceClient<Channel>;

/// Sessions for an operator to end, and the reason.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KickQuestion {
    /// Only sessions of this platform.
    pub platform: Option<String>,
    /// Also refuses tokens issued before now, on every platform.
    pub revoke: bool,
    /// Reason for the log of operations, at most 1,024 bytes; the user does not see it.
    #[serde(alias = "reason")]
    pub why: String,
}

/// Result of a kick.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct KickAnswer {
    /// Sessions about to end.
    pub sessions: u32,
    /// Time before which issued tokens are refused, by the clock of the station that wrote it down.
    pub revoked_before: Option<Time>,
}

impl KickAnswer {
    fn words(&self) -> String {
        let tokens = self.revoked_before.map_or_else(String::new, |cutoff| {
            let cutoff = utc(cutoff);
            format!(", and tokens that were issued before {cutoff} are refused")
        });
        format!("{} sessions end{tokens}", self.sessions)
    }
}

/// A checked request.
struct KickRequest {
    user: UserId,
    platform: Option<Platform>,
    revoke: bool,
    reason: String,
    by: String,
}

impl KickRequest {
    fn read(
        desk: &Desk,
        by: String,
        user: &str,
        question: KickQuestion,
    ) -> Result<KickRequest, DeskRefusal> {
        let platform = question.platform.as_deref();
        let order = KickRequest {
            user: readable("user", user)?,
            platform: platform
                .map(|name| readable("platform", name))
                .transpose()?,
            revoke: question.revoke,
            reason: question.why,
            by,
        };
        if order.platform.is_some() && order.revoke {
            let text =
                "tokens cover all platforms: revoke without a platform, or kick one platform";
            return Err(DeskRefusal::new(StatusCode::BAD_REQUEST, text));
        }
        // Refused as a station would, before anything is written or done.
        let now = desk.clock.now();
        let revocation = Revocation {
            user: order.user,
            before: now,
            reason: order.reason.clone(),
            by: order.by.clone(),
            at: now,
        };
        revocation.check().map_err(refused)?;
        Ok(order)
    }
}

pub(super) async fn kick(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(user): Path<String>,
    Json(question): Json<KickQuestion>,
) -> Answer<KickAnswer> {
    operator.may_sign_out(&question.why)?;
    let order = KickRequest::read(&desk, operator.name, &user, question)?;
    let permit = desk.stations.places.clone().try_acquire_owned();
    let permit = permit.map_err(|_| {
        let text = format!(
            "{MAX_CONCURRENT_SIGN_OUTS} sign-outs are already running here: try again in a moment"
        );
        DeskRefusal::new(StatusCode::TOO_MANY_REQUESTS, text)
    })?;
    // A request that breaks off must leave nothing half done.
    let steps = tokio::spawn(async move {
        let _permit = permit;
        sign_out(&desk, &order).await
    });
    let answer = steps.await.map_err(|_| {
        let text = "the sign-out was interrupted by a bug or a shutdown; try again";
        DeskRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    })?;
    answer.map(Json)
}

/// Runs all steps, each within its time.
async fn sign_out(desk: &Desk, order: &KickRequest) -> Result<KickAnswer, DeskRefusal> {
    // Approximate time, until a station has answered.
    let approximate_time = order.revoke.then(|| desk.clock.now());
    write_down(desk, order, approximate_time, None).await?;
    let answer = revoke_and_kick(desk, order).await;
    let (cutoff, outcome) = match &answer {
        Ok(answer) => (answer.revoked_before, answer.words()),
        Err(refusal) => (None, refusal.error.message.clone()),
    };
    let cutoff = cutoff.map(Time::at);
    if let Err(refusal) = write_down(desk, order, cutoff, Some(outcome)).await {
        let reason = refusal.error.message;
        tracing::warn!(user = %order.user, reason, "cannot record the outcome of a kick in the operations log");
    }
    answer
}

async fn write_down(
    desk: &Desk,
    order: &KickRequest,
    cutoff: Option<Timestamp>,
    outcome: Option<String>,
) -> Result<(), DeskRefusal> {
    let target = (order.user, order.platform);
    let entry = (desk.letters).log_sign_out(&order.by, target, cutoff, &order.reason, outcome);
    append_to_log(entry).await
}

/// Writes an entry of the log of operations, within its time.
pub(super) async fn append_to_log<E: Into<anyhow::Error>>(
    write: impl Future<Output = Result<(), E>>,
) -> Result<(), DeskRefusal> {
    match timeout(LOG_TIMEOUT, write).await {
        Ok(write) => write.map_err(|error| failed(error.into())),
        Err(_) => {
            let text = format!("no answer from the operations log within {LOG_TIMEOUT:?}");
            Err(refused(away(text)))
        }
    }
}

/// Waits for an answer of discovery, within its time.
pub(super) async fn ask_discovery<A>(
    query: impl Future<Output = backend::Result<A>>,
) -> Result<A, DeskRefusal> {
    match timeout(STATION_TIMEOUT, query).await {
        Ok(answer) => answer.map_err(|error| refused(away(format!("{error}: {}", error.source)))),
        Err(_) => {
            let text = format!("no answer from discovery in {STATION_TIMEOUT:?}");
            Err(refused(away(text)))
        }
    }
}

async fn revoke_and_kick(desk: &Desk, order: &KickRequest) -> Result<KickAnswer, DeskRefusal> {
    let cutoff = if order.revoke {
        Some(revoke(desk, order).await?)
    } else {
        None
    };
    let sessions = kick_sessions(desk, order).await;
    let sessions = sessions.map_err(|refusal| match cutoff {
        None => refusal,
        Some(_) => refusal.and("; the tokens are revoked, and sessions end within a minute"),
    })?;
    Ok(KickAnswer {
        sessions,
        revoked_before: cutoff,
    })
}

/// Revokes tokens, and returns the time before which they are refused: by the clock of the station,
/// which may be ahead of this desk.
async fn revoke(desk: &Desk, order: &KickRequest) -> Result<Time, DeskRefusal> {
    let revoke = Revoke {
        user: order.user,
        issued_before: None,
        reason: order.reason.clone(),
        by: order.by.clone(),
    };
    let answer = desk.stations.ask(|mut station: Client| {
        let request = api::v1::RevokeRequest::from(&revoke);
        async move { station.revoke(request).await }
    });
    answer.await.map(|reply| Time::from_ms(reply.before))
}

async fn kick_sessions(desk: &Desk, order: &KickRequest) -> Result<u32, DeskRefusal> {
    let kickout = Kickout {
        user: order.user,
        platform: order.platform,
        text: "signed out by an operator".to_owned(),
    };
    let answer = desk.stations.ask(|mut station: Client| {
        let request = api::v1::KickoutRequest::from(&kickout);
        async move { station.kickout(request).await }
    });
    answer.await.map(|reply| reply.sessions)
}

/// Client of stations for a desk; each of its calls may be repeated.
pub(super) struct Stations {
    registry: Arc<dyn Registry>,
    connector: Connector,
    entropy: Arc<dyn Entropy>,
    /// Permits for users that are being signed out.
    places: Arc<Semaphore>,
}

impl Stations {
    pub(super) fn new(
        registry: Arc<dyn Registry>,
        connector: Connector,
        entropy: Arc<dyn Entropy>,
    ) -> Stations {
        Stations {
            registry,
            connector,
            entropy,
            places: Arc::new(Semaphore::new(MAX_CONCURRENT_SIGN_OUTS)),
        }
    }

    /// Asks stations in turn, from a random one on, and returns the first answer.
    async fn ask<A, F>(&self, ask: impl Fn(Client) -> F) -> Result<A, DeskRefusal>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let end = Instant::now() + STEP_TIMEOUT;
        let station_watch = ask_discovery(self.registry.watch(Service::Station)).await?;
        let stations = station_watch.borrow().clone();
        let first = self.entropy.next() % stations.len().max(1) as u64;
        let (earlier_stations, from) = stations.split_at(first as usize);
        let mut reason = away("no station is registered; try again".to_owned());
        for station in from.iter().chain(earlier_stations) {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let client = Client::new(self.connector.channel(Role::Station, &station.address));
            reason = match timeout_at(end.min(now + STATION_TIMEOUT), ask(client)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if is_of_another_role(&status) => {
                    return Err(elsewhere("sign users out", &status));
                }
                Ok(Err(status)) => to_refusal(&status),
                Err(_) => away(format!("no answer from a station in {STATION_TIMEOUT:?}")),
            };
            if !asks_another(reason.code) {
                break;
            }
        }
        Err(refused(reason))
    }
}

pub(super) fn away(text: String) -> Refusal {
    Refusal::new(Code::Unavailable, text)
}

/// Whether the table of calls refused this process, rather than the station its request.
pub(super) fn is_of_another_role(status: &Status) -> bool {
    status.code() == Grpc::PermissionDenied && !carries_refusal(status)
}

pub(super) fn elsewhere(action: &str, status: &Status) -> DeskRefusal {
    let text = format!(
        "this process may not {action}, as its certificate was refused: use the admin port of a \
         station (--admin or PACKETBOAT_ADMIN). {}",
        status.message()
    );
    DeskRefusal::new(StatusCode::FORBIDDEN, text)
}

fn readable<T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &str,
    text: &str,
) -> Result<T, DeskRefusal> {
    text.parse().map_err(|error| {
        let text = format!("{text:?} is not a {name}: {error}");
        DeskRefusal::new(StatusCode::BAD_REQUEST, text)
    })
}

pub(super) fn refused(refusal: Refusal) -> DeskRefusal {
    let status = match refusal.code {
        Code::InvalidArgument | Code::TooLarge => StatusCode::BAD_REQUEST,
        Code::Forbidden => StatusCode::CONFLICT,
        Code::NotFound => StatusCode::NOT_FOUND,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    // `forbidden` would say that the operator lacks a role.
    if status == StatusCode::CONFLICT {
        return DeskRefusal::new(status, refusal.text);
    }
    DeskRefusal::of(status, &refusal)
}

#[cfg(test)]
mod tests;
