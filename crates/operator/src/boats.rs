//! Boats and their drains: an order is written into the log of operations, then given to the boat,
//! which goes on by itself.

use std::num::NonZeroU32;
use std::sync::Arc;

use api::boat::{DrainCommand, DrainOrder, DrainProgress};
use api::status::to_refusal;
use api::transport::{Channel, Connector};
use api::v1::boat_service_client::BoatServiceClient;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use backend::discovery::{Instance, Registry, Role as Service};
use protocol::access::Role;
use protocol::{Code, Refusal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::answer::List;
use crate::port::desk::{Answer, Desk};
use crate::port::operators::{Operator, Role as May};
use crate::port::refusal::DeskRefusal;
use crate::users::{
    STATION_TIMEOUT, append_to_log, ask_discovery, away, elsewhere, is_of_another_role, refused,
};

/// A boat as discovery knows it; figures are up to ten seconds old.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "Boat")]
pub struct BoatRow {
    pub name: String,
    /// `open`, `tight`, `draining`, or `unknown` if the boat has published nothing.
    pub state: String,
    /// Clients aboard.
    pub connections: Option<usize>,
    /// Clients that it takes at most.
    pub seats: Option<usize>,
    pub zone: Option<String>,
    /// Address for clients.
    pub url: Option<String>,
}

/// An operator's order to a boat.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrainQuestion {
    /// True to let the boat take clients again.
    pub cancel: bool,
    /// Clients a second at most; unset, as the boat's settings say.
    pub pace: Option<NonZeroU32>,
}

/// State of a boat, as it reports itself.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct BoatProgress {
    pub name: String,
    /// `open`, `tight` or `draining`.
    pub state: String,
    /// Clients aboard.
    pub connections: u64,
    /// Whether other boats have no room, and the rest of the clients waits.
    pub waits: bool,
}

pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
) -> Answer<List<BoatRow>> {
    operator.may(May::View)?;
    let boats = desk.boats.all().await?;
    let loads = ask_discovery(desk.boats.registry.loads()).await?;
    let row = |boat: &Instance| {
        let load = loads.iter().find(|load| load.life == boat.life);
        let load = load.map(|load| &load.load);
        BoatRow {
            name: boat.life.boat.to_string(),
            state: load.map_or("unknown", |load| load.state.name()).to_owned(),
            connections: load.map(|load| load.connections),
            seats: load.map(|load| load.seats),
            zone: load.and_then(|load| load.zone.clone()),
            url: load.and_then(|load| load.url.clone()),
        }
    };
    let rows: Vec<_> = boats.iter().map(row).collect();
    Ok(Json(rows.into()))
}

pub(super) async fn progress(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(name): Path<String>,
) -> Answer<BoatProgress> {
    operator.may(May::View)?;
    let boat = desk.boats.find_boat(&name).await?;
    desk.boats.ask(&boat, None).await.map(Json)
}

pub(super) async fn drain(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(name): Path<String>,
    Json(question): Json<DrainQuestion>,
) -> Answer<BoatProgress> {
    operator.may(May::Drain)?;
    let order = if question.cancel {
        DrainOrder::Cancel
    } else {
        DrainOrder::Drain {
            pace: question.pace,
        }
    };
    let boat = desk.boats.find_boat(&name).await?;
    // A request that breaks off may leave an entry without its order, never the reverse.
    let DrainQuestion { cancel, pace } = question;
    let entry = (desk.letters).log_drain(&operator.name, &boat.life.boat, cancel, pace);
    append_to_log(entry).await?;
    desk.boats.ask(&boat, Some(order)).await.map(Json)
}

/// Client of boats for a desk.
pub(super) struct Boats {
    registry: Arc<dyn Registry>,
    connector: Connector,
}

impl Boats {
    pub(super) fn new(registry: Arc<dyn Registry>, connector: Connector) -> Boats {
        Boats {
            registry,
            connector,
        }
    }

    async fn all(&self) -> Result<Vec<Instance>, DeskRefusal> {
        let boat_watch = ask_discovery(self.registry.watch(Service::Boat)).await?;
        let boats = boat_watch.borrow().to_vec();
        Ok(boats)
    }

    async fn find_boat(&self, name: &str) -> Result<Instance, DeskRefusal> {
        let boats = self.all().await?;
        let boat = boats.iter().find(|boat| boat.life.boat.as_str() == name);
        boat.cloned().ok_or_else(|| {
            let names: Vec<&str> = boats.iter().map(|boat| boat.life.boat.as_str()).collect();
            let text = format!(
                "no boat named {name:?} is registered; registered: {}",
                names.join(", ")
            );
            refused(Refusal::new(Code::NotFound, text))
        })
    }

    async fn ask(
        &self,
        boat: &Instance,
        order: Option<DrainOrder>,
    ) -> Result<BoatProgress, DeskRefusal> {
        let channel: Channel = self.connector.channel(Role::Boat, &boat.address);
        let mut client = BoatServiceClient::new(channel);
        let command = DrainCommand {
            life: boat.life.clone(),
            order,
        };
        let request = client.drain(api::v1::DrainRequest::from(&command));
        let answer = match timeout(STATION_TIMEOUT, request).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) if is_of_another_role(&status) => {
                return Err(elsewhere("drain boats", &status));
            }
            Ok(Err(status)) => return Err(refused(to_refusal(&status))),
            Err(_) => {
                let text = format!("no answer from the boat in {STATION_TIMEOUT:?}; try again");
                return Err(refused(away(text)));
            }
        };
        let progress = DrainProgress::try_from(answer).map_err(refused)?;
        Ok(BoatProgress {
            name: boat.life.boat.to_string(),
            state: progress.state.name().to_owned(),
            connections: progress.connections,
            waits: progress.waits,
        })
    }
}
