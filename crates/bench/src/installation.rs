//! Installation under measurement: the processes that serve a load together, and those whose CPU
//! time counts beside them.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use server::settings::load_limits;

use super::process::{Server, cpu_time};

/// User and system time so far, by name of the service or part.
pub(super) type Cpu = BTreeMap<String, Duration>;

/// A process that somebody else started, such as a broker: `kafka=4711`. Several may share one
/// name.
#[derive(Clone, Debug)]
pub(super) struct Also {
    name: String,
    pid: u32,
}

pub(super) struct Installation {
    /// Servers with the name of their service.
    servers: Vec<(&'static str, Server)>,
    /// Address for clients; with several boats the first one's.
    pub(super) websocket: String,
}

impl Also {
    pub(super) fn new(name: &str, pid: u32) -> Also {
        let name = name.to_owned();
        Also { name, pid }
    }
}

impl FromStr for Also {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Also, &'static str> {
        let (name, pid) = text.split_once('=').ok_or("NAME=PID is expected")?;
        let pid = pid.parse().map_err(|_| "PID must be a number")?;
        Ok(Also::new(name, pid))
    }
}

impl Installation {
    pub(super) fn floor(data: &Path) -> Result<Installation> {
        let data = data.to_str().context("a folder name that is text")?;
        let floor = Server::start(&["floor-server", "--data", data], &[])?;
        Installation::of([("floor", floor)])
    }

    /// Starts all services in one process, in a new folder, on free ports; `program` is
    /// `packetboat` or `without-ledger`.
    pub(super) fn embedded(data: &Path, program: &str) -> Result<Installation> {
        let dir = tempfile::tempdir_in(data).context("creating a data directory")?;
        let dir = dir.keep();
        let dir = dir.to_str().context("a folder name that is text")?;
        Installation::all(&[program, "all", "--data", dir, "--output", "json"], &[])
    }

    /// Starts all services in one process with these arguments, on free ports, with more settings.
    pub(super) fn all(arguments: &[&str], more: &[(&'static str, String)]) -> Result<Installation> {
        let mut environment = environment();
        environment.push(("PACKETBOAT_ADMIN__LISTEN", free()));
        environment.push(("PACKETBOAT_HEALTH__LISTEN", free()));
        environment.extend(more.iter().cloned());
        let all = Server::start(arguments, &environment)?;
        Installation::of([("all", all)])
    }

    /// Starts `count` servers with the same arguments, unchanged.
    pub(super) fn bare(arguments: &[&str], count: usize) -> Result<Installation> {
        let start = |_| anyhow::Ok(("bare", Server::start(arguments, &[])?));
        let servers: Result<Vec<_>> = (0..count).map(start).collect();
        Installation::of(servers?)
    }

    /// Starts each service as a process, on the real parts that the settings name.
    pub(super) fn on_real_parts(config: &Path) -> Result<Installation> {
        Installation::fleet(config, 1, &[])
    }

    /// Starts such processes with `boats` boats, and with more settings.
    pub(super) fn fleet(
        config: &Path,
        boats: usize,
        more: &[(&'static str, String)],
    ) -> Result<Installation> {
        // Each boat would take all cores of the machine for its own.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let accepts = boat::ACCEPTS_PER_CORE as usize * cores / boats.max(1);
        let accepts = accepts.max(1).to_string();
        let share = ("PACKETBOAT_BOAT__ACCEPTS_PER_SECOND", accepts);
        let more = &[more, &[share]].concat();
        let mut servers = Vec::new();
        for service in ["station", "carrier", "horn"] {
            servers.push((service, member(config, service, 1, more)?));
        }
        for number in 1..=boats {
            servers.push(("boat", member(config, "boat", number, more)?));
        }
        Installation::of(servers)
    }

    /// Kills all processes of a service with `kill -9`.
    pub(super) fn kill(&mut self, service: &str) -> Result<()> {
        let (victims, rest) = (self.servers.drain(..)).partition(|(name, _)| *name == service);
        self.servers = rest;
        let mut victims: Vec<_> = victims;
        victims.iter_mut().try_for_each(|(_, server)| server.kill())
    }

    /// Adds a boat to a fleet.
    pub(super) fn add_boat(&mut self, config: &Path, number: usize) -> Result<()> {
        let boat = member(config, "boat", number, &[])?;
        self.servers.push(("boat", boat));
        Ok(())
    }

    fn of(servers: impl IntoIterator<Item = (&'static str, Server)>) -> Result<Installation> {
        let servers: Vec<_> = servers.into_iter().collect();
        let mut websockets = servers.iter().map(|(_, server)| server.websocket.clone());
        let websocket = websockets.find_map(|url| url);
        Ok(Installation {
            servers,
            websocket: websocket.context("no process accepts clients")?,
        })
    }

    /// CPU time of the installation's own processes.
    pub(super) fn cpu(&self) -> Result<Cpu> {
        let mut cpu = Cpu::new();
        for (name, server) in &self.servers {
            *cpu.entry((*name).to_owned()).or_default() += cpu_time(server.pid())?;
        }
        Ok(cpu)
    }

    /// CPU time of all own processes together.
    pub(super) fn total_cpu(&self) -> Result<Duration> {
        Ok(self.cpu()?.values().sum())
    }

    /// Resident memory in bytes.
    pub(super) fn resident(&self) -> Result<u64> {
        let servers = self.servers.iter();
        servers.map(|(_, server)| server.resident()).sum()
    }

    /// Addresses for clients: one of each process that takes them.
    pub(super) fn websockets(&self) -> Vec<String> {
        let servers = self.servers.iter();
        servers
            .filter_map(|(_, server)| server.websocket.clone())
            .collect()
    }

    /// Addresses of the processes' metrics.
    pub(super) fn health(&self) -> Vec<String> {
        let servers = self.servers.iter();
        servers
            .filter_map(|(_, server)| server.health.clone())
            .collect()
    }
}

/// Starts a service as a process of its own.
fn member(
    config: &Path,
    service: &str,
    number: usize,
    more: &[(&'static str, String)],
) -> Result<Server> {
    let config = config.to_str().context("a file name that is text")?;
    let (name, free) = (format!("bench-{service}-{number}"), free());
    let mut arguments = vec!["packetboat", service, "--config", config];
    arguments.extend(["--output", "json"]);
    arguments.extend(["--name", &name, "--admin", &free, "--health", &free]);
    if matches!(service, "boat" | "station") {
        arguments.extend(["--listen", &free]);
    }
    Server::start(&arguments, &[&environment(), more].concat())
}

pub(super) fn cpu_beside(also: &[Also]) -> Result<Cpu> {
    let mut cpu = Cpu::new();
    for Also { name, pid } in also {
        *cpu.entry(name.clone()).or_default() += cpu_time(*pid)?;
    }
    Ok(cpu)
}

/// CPU time used between two readings.
pub(super) fn between(start: &Cpu, end: &Cpu) -> Cpu {
    let difference = |(name, then): (&String, &Duration)| {
        let now = end.get(name).copied().unwrap_or_default();
        (name.clone(), now.saturating_sub(*then))
    };
    start.iter().map(difference).collect()
}

fn free() -> String {
    "127.0.0.1:0".to_owned()
}

fn environment() -> Vec<(&'static str, String)> {
    let raised_limits = load_limits::variables().iter();
    let raised_limits = raised_limits.map(|(name, value)| (name.as_str(), value.clone()));
    let addresses = [
        ("PACKETBOAT_BOAT__WEBSOCKET", free()),
        ("PACKETBOAT_BOAT__TCP", free()),
        ("PACKETBOAT_LOG__LEVEL", "warn".to_owned()),
    ];
    raised_limits.chain(addresses).collect()
}
