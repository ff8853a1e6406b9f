//! What is measured: the processes that serve a load together, and those whose time counts beside them.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::process::{Server, cpu_of};

/// User and system time so far, by the name of the service or part.
pub(super) type Cpu = BTreeMap<String, Duration>;

/// A process that somebody else started, such as a broker: `kafka=4711`. Several may bear one name.
#[derive(Clone, Debug)]
pub(super) struct Also {
    name: String,
    pid: u32,
}

pub(super) struct Installation {
    /// By service.
    servers: BTreeMap<&'static str, Server>,
    /// Where clients connect.
    pub(super) websocket: String,
}

impl FromStr for Also {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Also, &'static str> {
        let (name, pid) = text.split_once('=').ok_or("NAME=PID is expected")?;
        let pid = pid.parse().map_err(|_| "PID must be a number")?;
        let name = name.to_owned();
        Ok(Also { name, pid })
    }
}

impl Installation {
    pub(super) fn floor(data: &Path) -> Result<Installation> {
        let data = data.to_str().context("a folder name that is text")?;
        let floor = Server::start(&["bench", "floor-server", "--data", data], &[])?;
        Installation::of([("floor", floor)])
    }

    /// All services in one process, in a new folder, on free ports; its command after `prefix`.
    pub(super) fn embedded(data: &Path, prefix: &[&str]) -> Result<Installation> {
        let dir = tempfile::tempdir_in(data).context("making a data folder")?;
        let dir = dir.keep();
        let dir = dir.to_str().context("a folder name that is text")?;
        let arguments = [prefix, &["all", "--data", dir, "--output", "json"]].concat();
        let mut environment = environment();
        environment.push(("PACKETBOAT_ADMIN__LISTEN", free()));
        environment.push(("PACKETBOAT_HEALTH__LISTEN", free()));
        let all = Server::start(&arguments, &environment)?;
        Installation::of([("all", all)])
    }

    /// Each service as a process, on the real parts that the settings name.
    pub(super) fn on_real_parts(config: &Path) -> Result<Installation> {
        let config = config.to_str().context("a file name that is text")?;
        let start = |service: &'static str| {
            let mut arguments = vec!["--config", config, service, "--output", "json"];
            let free = free();
            arguments.extend(["--admin", &free, "--health", &free]);
            if matches!(service, "boat" | "station") {
                arguments.extend(["--listen", &free]);
            }
            anyhow::Ok((service, Server::start(&arguments, &environment())?))
        };
        Installation::of([
            start("station")?,
            start("carrier")?,
            start("horn")?,
            start("boat")?,
        ])
    }

    fn of(servers: impl IntoIterator<Item = (&'static str, Server)>) -> Result<Installation> {
        let servers: BTreeMap<_, _> = servers.into_iter().collect();
        let websocket = servers.values().find_map(|server| server.websocket.clone());
        Ok(Installation {
            servers,
            websocket: websocket.context("nobody takes clients")?,
        })
    }

    /// Of its own processes.
    pub(super) fn cpu(&self) -> Result<Cpu> {
        let servers = self.servers.iter();
        servers
            .map(|(name, server)| Ok(((*name).to_owned(), cpu_of(server.pid())?)))
            .collect()
    }

    /// Resident memory in bytes.
    pub(super) fn resident(&self) -> Result<u64> {
        self.servers.values().map(Server::resident).sum()
    }
}

pub(super) fn cpu_beside(also: &[Also]) -> Result<Cpu> {
    let mut cpu = Cpu::new();
    for Also { name, pid } in also {
        *cpu.entry(name.clone()).or_default() += cpu_of(*pid)?;
    }
    Ok(cpu)
}

/// What was used between two looks.
pub(super) fn between(before: &Cpu, after: &Cpu) -> Cpu {
    let used = |(name, then): (&String, &Duration)| {
        let now = after.get(name).copied().unwrap_or_default();
        (name.clone(), now.saturating_sub(*then))
    };
    before.iter().map(used).collect()
}

/// Rows of the limits that the load would meet: all of it comes from one address.
const FASTER_THAN_PEOPLE: [&str; 9] = [
    "PACKETBOAT_BOAT__CONNECTIONS_PER_ADDRESS_MAX",
    "PACKETBOAT_BOAT__ARRIVALS_PER_ADDRESS",
    "PACKETBOAT_BOAT__ARRIVALS_PER_ADDRESS_BURST",
    "PACKETBOAT_BOAT__READ_BYTES_PER_SECOND",
    "PACKETBOAT_BOAT__READ_BYTES_BURST",
    "PACKETBOAT_STATION__USER_SENDS_PER_SECOND",
    "PACKETBOAT_STATION__USER_SENDS_BURST",
    "PACKETBOAT_STATION__PRIVATE_SENDS_PER_SECOND",
    "PACKETBOAT_STATION__PRIVATE_SENDS_BURST",
];

fn free() -> String {
    "127.0.0.1:0".to_owned()
}

fn environment() -> Vec<(&'static str, String)> {
    let unlimited = FASTER_THAN_PEOPLE
        .iter()
        .map(|&row| (row, "1000000".to_owned()));
    let others = [
        ("PACKETBOAT_BOAT__WEBSOCKET", free()),
        ("PACKETBOAT_BOAT__TCP", free()),
        ("PACKETBOAT_LOG__LEVEL", "warn".to_owned()),
    ];
    unlimited.chain(others).collect()
}
