//! The doctor over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use protocol::UserId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::{Checkup, Doctor, ProcessClock, RepairReport, UserReport};
use crate::port::desk::{Answer, failed};
use crate::port::operators::Operator;
use crate::port::refusal::DeskRefusal;

/// Longest wait of an examination for the one before it.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// Reason for a repair.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepairQuestion {
    /// The operator's reason; required if operators sign in.
    pub why: String,
}

pub(crate) async fn clock(State(doctor): State<Arc<Doctor>>) -> Json<ProcessClock> {
    Json(doctor.clock())
}

pub(crate) async fn checkup(State(doctor): State<Arc<Doctor>>) -> Answer<Checkup> {
    let _turn = doctor.turn().await?;
    Ok(Json(doctor.checkup().await))
}

pub(crate) async fn examine(
    State(doctor): State<Arc<Doctor>>,
    Path(user): Path<String>,
) -> Answer<UserReport> {
    let user = parse_user(&user)?;
    let _turn = doctor.turn().await?;
    doctor.examine(user).await.map(Json).ok_or_else(elsewhere)
}

pub(crate) async fn repair(
    State(doctor): State<Arc<Doctor>>,
    Extension(operator): Extension<Operator>,
    Path(user): Path<String>,
    Json(question): Json<RepairQuestion>,
) -> Answer<RepairReport> {
    operator.may_repair(&question.why)?;
    let user = parse_user(&user)?;
    let _turn = doctor.turn().await?;
    let report = doctor.repair(&operator.name, user, &question.why).await;
    report.map_err(failed)?.map(Json).ok_or_else(elsewhere)
}

impl Doctor {
    async fn turn(&self) -> Result<SemaphorePermit<'_>, DeskRefusal> {
        match timeout(TURN_WAIT, self.examination_slot.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => {
                let text = "another examination is running: try again in a moment";
                Err(DeskRefusal::new(StatusCode::TOO_MANY_REQUESTS, text))
            }
        }
    }
}

fn parse_user(text: &str) -> Result<UserId, DeskRefusal> {
    let user = text.parse();
    user.map_err(|error: String| {
        let text = format!("{text:?} is not a user id: {error}");
        DeskRefusal::new(StatusCode::BAD_REQUEST, text)
    })
}

fn elsewhere() -> DeskRefusal {
    let text =
        "this process has no access to the stores: use the admin port of a station or a carrier";
    DeskRefusal::new(StatusCode::NOT_FOUND, text)
}

#[cfg(test)]
mod tests {
    use backend::Backends;
    use protocol::bounds::Bounds;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::Access;
    use crate::in_memory::Environment;
    use crate::lifecycle::Phases;
    use crate::port::Desk;
    use crate::port::operators::{Operators, Role};
    use crate::{doctor, port};

    fn doctor_with(access: impl FnOnce(&Backends) -> Access) -> State<Arc<Doctor>> {
        let environment = Environment::in_memory().expect("stores in memory");
        let (backends, connector) = (&environment.backends, &environment.connector);
        let desk = Desk::new(backends, connector, Bounds::default(), Operators::default());
        State(Arc::new(Doctor::new(doctor::Parts {
            settings: doctor::DoctorSettings::default(),
            role: None,
            stores: doctor::Stores::Memory,
            access: access(backends),
            phases: Phases::default(),
            operators: Operators::default(),
            desk: Some(Arc::new(desk)),
            certificates: None,
        })))
    }

    fn seven() -> Path<String> {
        Path("7".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_repair_needs_its_role_and_a_reason() {
        let doctor = doctor_with(|backends| Access::from(backends));
        let ask = |operator: Operator, reason: &str| {
            let reason = reason.to_owned();
            let question = Json(RepairQuestion { why: reason });
            repair(doctor.clone(), Extension(operator), seven(), question)
        };
        let viewer = Operator::with("ann", &[Role::View, Role::Redrive, Role::Discard]);
        let refusal = ask(viewer, "a disk failed").await;
        assert_eq!(refusal.expect_err("no role").status, StatusCode::FORBIDDEN);
        let may = || Operator::with("bob", &[Role::View, Role::Repair]);
        let refusal = ask(may(), " ").await;
        assert_eq!(
            refusal.expect_err("no reason").status,
            StatusCode::BAD_REQUEST
        );
        let Json(report) = ask(may(), "a disk failed").await.expect("repaired");
        assert_eq!(report.steps, []);
    }

    #[tokio::test(start_paused = true)]
    async fn access_without_stores_names_who_has_them() {
        let doctor = doctor_with(|_| Access::default());
        let refusal = examine(doctor.clone(), seven()).await;
        let refusal = refusal.expect_err("it sees nothing");
        assert_eq!(refusal.status, StatusCode::NOT_FOUND);
        assert!(refusal.error.message.contains("station"), "{refusal:?}");
        let nobody = examine(doctor, Path("-1".to_owned())).await;
        let refusal = nobody.expect_err("no user");
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
    }

    /// A boat has no desk, but operators need to see its limits.
    #[tokio::test]
    async fn a_process_without_a_desk_answers_for_itself() {
        let State(doctor) = doctor_with(|_| Access::default());
        let config = port::Config {
            listen: ([127, 0, 0, 1], 0).into(),
            ..port::Config::default()
        };
        let parts = port::Parts {
            health: port::Health::silent(),
            desk: None,
            doctor: Some(doctor),
            certificates: None,
        };
        let stop = CancellationToken::new();
        let listen = ([127, 0, 0, 1], 0).into();
        let health = port::Health::silent();
        let probes = port::start_health(&port::HealthConfig { listen }, health, stop.clone());
        let probes = probes.expect("it binds");
        let port = port::start(&config, parts, stop.clone()).await;
        let port = port.expect("it binds");
        let call = async |port, host: &str, path: &str| {
            let mut stream = TcpStream::connect(port).await.expect("it listens");
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("asked");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("answered");
            answer
        };
        let from = async |host: &str, path: &str| call(port, host, &format!("/api/v1{path}")).await;
        let ask_local = async |path: &str| from("localhost", path).await;
        // The health port answers to any host name, and has no desk.
        assert!(
            call(probes, "10.0.0.7:9180", "/livez")
                .await
                .contains("live")
        );
        assert!(
            call(probes, "10.0.0.7:9180", "/readyz")
                .await
                .contains("503")
        );
        let none = call(probes, "localhost", "/api/v1/doctor").await;
        assert!(none.starts_with("HTTP/1.1 404"), "{none}");
        assert!(ask_local("/doctor").await.contains("open_files"));
        assert!(ask_local("/doctor").await.contains("no-store"));
        let foreign = from("evil.example", "/doctor").await;
        assert!(foreign.starts_with("HTTP/1.1 421"), "{foreign}");
        assert!(ask_local("/doctor/clock").await.contains(doctor::VERSION));
        assert!(ask_local("/audit").await.contains("has no desk"));
        stop.cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn one_examination_at_a_time() {
        let doctor = doctor_with(|backends| Access::from(backends));
        let turn = doctor.turn().await.expect("nobody is examined");
        let refusal = examine(doctor.clone(), seven()).await;
        let refusal = refusal.expect_err("it is busy");
        assert_eq!(refusal.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(refusal.error.message.contains("try again"), "{refusal:?}");
        drop(turn);
        assert!(examine(doctor.clone(), seven()).await.is_ok());
    }
}
