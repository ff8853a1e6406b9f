//! Signing users out: written into the log of operations, then the tokens revoked, then the sessions kicked that are
//! registered now. What comes in between ends with the revocation.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Kickout, Revoke};
use api::status::{carries_refusal, to_refusal};
use api::transport::{Channel, Connector};
use api::v1::station_service_client::StationServiceClient;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use backend::discovery::{Registry, Role as Service};
use protocol::access::Role;
use protocol::{Code, Platform, Refusal, Timestamp, UserId};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tonic::{Response, Status};

use super::desk::{Answer, Desk, Refused, failed};
use super::operators::Operator;

/// Time for one station to answer, and for discovery to name them.
const PATIENCE: Duration = Duration::from_secs(5);
/// Stations that are asked, one after the other.
const STATIONS: usize = 3;

type Client = StationServiceClient<Channel>;

/// Sessions that an operator ends, and why.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KickQuestion {
    /// Only those of this platform.
    pub platform: Option<String>,
    /// And the tokens of before are refused, whatever their platform.
    pub revoke: bool,
    /// For the log of operations; the user does not see it.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kicked {
    /// Sessions that are to end.
    pub sessions: u32,
    /// Tokens that were issued before this are refused; milliseconds since 1970.
    pub revoked_before: Option<i64>,
}

pub(super) async fn kick(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(user): Path<String>,
    Json(question): Json<KickQuestion>,
) -> Answer<Kicked> {
    operator.may_sign_out(&question.reason)?;
    let user: UserId = readable("user", &user)?;
    let platform: Option<Platform> = (question.platform.as_deref())
        .map(|name| readable("platform", name))
        .transpose()?;
    if platform.is_some() && question.revoke {
        let text = "tokens are of all platforms: revoke without a platform, or kick one platform\n";
        return Err((StatusCode::BAD_REQUEST, text.to_owned()));
    }
    let before = question.revoke.then(|| desk.clock.now());
    let (by, why) = (operator.name.as_str(), question.reason.as_str());
    let written = desk
        .letters
        .signed_out(by, (user, platform), before, why)
        .await;
    written.map_err(|error| failed(error.into()))?;
    if let Some(before) = before {
        revoke(&desk, user, before, (by, why)).await?;
    }
    let sessions = kick_sessions(&desk, user, platform).await;
    let sessions = sessions.map_err(|(status, text)| match before {
        None => (status, text),
        Some(_) => {
            let text = format!("{text}; the tokens are revoked, and sessions end within a minute");
            (status, text)
        }
    })?;
    Ok(Json(Kicked {
        sessions,
        revoked_before: before.map(Timestamp::millis),
    }))
}

async fn revoke(
    desk: &Desk,
    user: UserId,
    before: Timestamp,
    (by, why): (&str, &str),
) -> Result<(), Refused> {
    let revoke = Revoke {
        user,
        before: Some(before),
        reason: why.to_owned(),
        by: by.to_owned(),
    };
    let asked = desk.stations.ask(|mut station: Client| {
        let request = api::v1::RevokeRequest::from(&revoke);
        async move { station.revoke(request).await }
    });
    asked.await.map(drop).map_err(refused)
}

async fn kick_sessions(
    desk: &Desk,
    user: UserId,
    platform: Option<Platform>,
) -> Result<u32, Refused> {
    let kickout = Kickout {
        user,
        platform,
        text: "signed out by an operator".to_owned(),
    };
    let asked = desk.stations.ask(|mut station: Client| {
        let request = api::v1::KickoutRequest::from(&kickout);
        async move { station.kickout(request).await }
    });
    let kicked = asked.await.map_err(refused)?;
    Ok(kicked.sessions)
}

/// Stations as a desk asks them; whatever it asks may be repeated.
pub(super) struct Stations {
    pub(super) registry: Arc<dyn Registry>,
    pub(super) connector: Connector,
}

impl Stations {
    /// The answer of the first that can be reached.
    async fn ask<A, F>(&self, ask: impl Fn(Client) -> F) -> Result<A, Refusal>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let away = |text: String| Refusal::new(Code::Unavailable, text);
        let watch = timeout(PATIENCE, self.registry.watch(Service::Station)).await;
        let watch = watch.map_err(|_| away(format!("discovery gave no answer in {PATIENCE:?}")))?;
        let roster = watch.map_err(|error| away(format!("{error}: {}", error.source)))?;
        let stations = roster.borrow().clone();
        let mut why = away("no station is registered; try again".to_owned());
        for station in stations.iter().take(STATIONS) {
            let client = Client::new(self.connector.channel(Role::Station, &station.address));
            match timeout(PATIENCE, ask(client)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if carries_refusal(&status) => return Err(to_refusal(&status)),
                Ok(Err(status)) => why = to_refusal(&status),
                Err(_) => why = away(format!("a station gave no answer in {PATIENCE:?}")),
            }
        }
        Err(why)
    }
}

fn readable<T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &str,
    text: &str,
) -> Result<T, Refused> {
    text.parse().map_err(|error| {
        let text = format!("{text:?} is no {name}: {error}\n");
        (StatusCode::BAD_REQUEST, text)
    })
}

fn refused(refusal: Refusal) -> Refused {
    let status = match refusal.code {
        Code::InvalidArgument | Code::TooLarge => StatusCode::BAD_REQUEST,
        Code::Forbidden => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, refusal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::operators::{Operators, Role};
    use crate::compose::Seams;
    use crate::compose::embedded::Config;

    fn desk() -> State<Arc<Desk>> {
        let seams = Seams::in_memory(&Config::default()).expect("stores in memory");
        let station = station::Config::default();
        State(Arc::new(Desk::new(&seams, &station, Operators::default())))
    }

    async fn asked(operator: Operator, user: &str, question: KickQuestion) -> StatusCode {
        let answer = kick(
            desk(),
            Extension(operator),
            Path(user.to_owned()),
            Json(question),
        );
        answer.await.expect_err("refused").0
    }

    fn because(reason: &str) -> KickQuestion {
        KickQuestion {
            reason: reason.to_owned(),
            ..KickQuestion::default()
        }
    }

    #[tokio::test]
    async fn a_kick_needs_its_role_and_a_reason() {
        let viewer = || Operator::with("ann", &[Role::View, Role::Repair]);
        let may = || Operator::with("bob", &[Role::View, Role::SignOut]);
        let theft = || because("a phone was stolen");
        assert_eq!(asked(viewer(), "7", theft()).await, StatusCode::FORBIDDEN);
        for (user, question) in [
            ("7", because(" ")),
            ("-7", theft()),
            (
                "7",
                KickQuestion {
                    platform: Some("fax".to_owned()),
                    ..theft()
                },
            ),
            (
                "7",
                KickQuestion {
                    platform: Some("ios".to_owned()),
                    revoke: true,
                    ..theft()
                },
            ),
        ] {
            let status = asked(may(), user, question.clone()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{user} {question:?}");
        }
        // Nobody is there to do it.
        let status = asked(may(), "7", theft()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
