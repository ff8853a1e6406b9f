//! Two of each service as processes, on the real parts, in topics, keys and tables of their own.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use server::settings::load_limits;
use tempfile::TempDir;

use crate::door::Door;
use crate::ports::free_ports;
use crate::process::{Process, bench, packetboat, run};
use crate::real;

/// The services of a fleet.
pub const SERVICES: [&str; 4] = ["boat", "station", "carrier", "horn"];

pub struct Fleet {
    dir: TempDir,
    name: String,
    /// Members by name: `boat-1` … `horn-2`.
    members: BTreeMap<String, Member>,
    /// True with certificates of services and tickets of sessions.
    has_proof: bool,
    door: Door,
}

/// A process, and the ports it keeps over a restart.
struct Member {
    process: Option<Process>,
    service: &'static str,
    websocket: u16,
    tcp: u16,
    listen: u16,
    admin: u16,
}

impl Deref for Fleet {
    type Target = Door;

    fn deref(&self) -> &Door {
        &self.door
    }
}

impl Fleet {
    /// A fleet on the Redis that `redis` names: `single`, `sentinel` or `cluster`.
    pub fn start(redis: &str) -> Fleet {
        Fleet::with(redis, "")
    }

    /// A fleet with more settings, as `section.key = value` lines.
    pub fn with(redis: &str, more: &str) -> Fleet {
        Fleet::with_boats(redis, 2, more)
    }

    /// A fleet with this many boats, and two of each other service.
    pub fn with_boats(redis: &str, boats: u32, more: &str) -> Fleet {
        Fleet::new(redis, boats, more, true).at_work()
    }

    /// A fleet with a part of the settings file replaced.
    pub fn with_other_settings(redis: &str, from: &str, to: &str) -> Fleet {
        let fleet = Fleet::new(redis, 2, "", true);
        fleet.change_settings(from, to);
        fleet.at_work()
    }

    /// A fleet without certificates of services and tickets of sessions.
    pub fn without_proof(redis: &str) -> Fleet {
        Fleet::new(redis, 2, "", false).at_work()
    }

    fn new(redis: &str, boats: u32, more: &str, has_proof: bool) -> Fleet {
        let dir = tempfile::Builder::new()
            .prefix("packetboat-")
            .tempdir()
            .expect("a directory");
        let path = dir.path().to_string_lossy();
        let name: String = path.rsplit('-').next().expect("a suffix").to_lowercase();
        let settings = settings(&name, redis, more);
        std::fs::write(dir.path().join("packetboat.toml"), settings).expect("a file");
        let mut members = BTreeMap::new();
        for service in SERVICES {
            let count = if service == "boat" { boats } else { 2 };
            for number in 1..=count {
                members.insert(format!("{service}-{number}"), Member::new(service));
            }
        }
        let door = Door {
            websocket: members["boat-1"].websocket(),
            admin: format!("http://127.0.0.1:{}", members["station-1"].admin),
            state: dir.path().join("state"),
        };
        Fleet {
            dir,
            name,
            members,
            has_proof,
            door,
        }
    }

    fn at_work(mut self) -> Fleet {
        self.certify();
        let mut keys = packetboat(&["keys", "new"]);
        run(keys.arg(self.ticket_keys())).ok();
        run(&mut self.command(&["topics", "apply"])).ok();
        run(&mut self.command(&["schema", "apply"])).ok();
        let names: Vec<String> = self.members.keys().cloned().collect();
        for name in &names {
            self.launch(name);
        }
        for name in &names {
            self.wait_for(name);
        }
        self
    }

    /// Prefix of the fleet's topics, keys and tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// URL at which a boat takes clients.
    pub fn boat(&self, name: &str) -> String {
        self.members[name].websocket()
    }

    /// Admin port of one member.
    pub fn admin_of(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}", self.members[name].admin)
    }

    /// Address at which other services call a member.
    pub fn member_address(&self, name: &str) -> String {
        format!("127.0.0.1:{}", self.members[name].listen)
    }

    /// Admin ports of all members.
    pub fn admins(&self) -> Vec<String> {
        let ports = self.members.values().map(|member| member.admin);
        ports
            .map(|port| format!("http://127.0.0.1:{port}"))
            .collect()
    }

    /// Folder of the fleet's root and of each member's certificate.
    pub fn identities(&self) -> PathBuf {
        self.dir.path().join("identity")
    }

    /// Keys of session tickets, which all stations have.
    pub fn ticket_keys(&self) -> PathBuf {
        self.identities().join("ticket.keys")
    }

    /// Issues a certificate to each member that calls or is called, or renews it.
    pub fn certify(&self) {
        let folder = self.identities();
        let mut command = packetboat(&["certs", "new"]);
        command.arg(folder);
        for (name, member) in &self.members {
            command.args(["--service", &format!("{}/{name}", member.service)]);
        }
        run(&mut command).ok();
    }

    /// A command with the settings of this fleet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.with_settings(packetboat(&["--config"]), arguments)
    }

    /// A command of the load generator.
    pub fn bench(&self, arguments: &[&str]) -> Command {
        self.with_settings(bench(&["--config"]), arguments)
    }

    fn with_settings(&self, mut command: Command, arguments: &[&str]) -> Command {
        command
            .arg(self.dir.path().join("packetboat.toml"))
            .args(arguments);
        command
    }

    /// Replaces a part of the settings file; members read it when they start.
    pub fn change_settings(&self, from: &str, to: &str) {
        let file = self.dir.path().join("packetboat.toml");
        let settings = std::fs::read_to_string(&file).expect("settings");
        std::fs::write(file, settings.replace(from, to)).expect("a file");
    }

    /// Log file of a member.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }

    pub fn process(&mut self, name: &str) -> &mut Process {
        let member = self.members.get_mut(name).expect("a member");
        member.process.as_mut().expect("it runs")
    }

    /// CPU time of all members so far.
    pub fn cpu(&self) -> Duration {
        let processes = (self.members.values()).filter_map(|member| member.process.as_ref());
        processes.map(Process::cpu).sum()
    }

    /// Kills a member with `kill -9`.
    pub fn kill(&mut self, name: &str) {
        self.process(name).kill();
        self.members.get_mut(name).expect("a member").process = None;
    }

    /// Restarts a killed member on the same ports.
    pub fn restart(&mut self, name: &str) {
        self.launch(name);
        self.wait_for(name);
    }

    /// Like `restart`, with the command transformed by `program`. Does not wait until it is up.
    pub fn restart_as(&mut self, name: &str, program: impl Fn(&Command) -> Command) {
        let mut program = program(&self.command_of(name));
        let process = Process::start(program.stderr(self.log_of(name)));
        self.members.get_mut(name).expect("a member").process = Some(process);
    }

    fn launch(&mut self, name: &str) {
        let mut command = self.command_of(name);
        let process = Process::start(command.stderr(self.log_of(name)));
        self.members.get_mut(name).expect("a member").process = Some(process);
    }

    fn log_of(&self, name: &str) -> File {
        let mut options = File::options();
        let log = options.create(true).append(true).open(self.log(name));
        log.expect("a log file")
    }

    fn command_of(&self, name: &str) -> Command {
        let member = &self.members[name];
        let admin = format!("127.0.0.1:{}", member.admin);
        let listen = format!("127.0.0.1:{}", member.listen);
        let mut arguments = vec![member.service, "--admin", &admin, "--name", name];
        arguments.extend(["--health", "127.0.0.1:0"]);
        if matches!(member.service, "boat" | "station") {
            arguments.extend(["--listen", &listen]);
        }
        arguments.extend(["--output", "json"]);
        let mut command = self.command(&arguments);
        command
            .env(
                "PACKETBOAT_BOAT__WEBSOCKET",
                format!("127.0.0.1:{}", member.websocket),
            )
            .env("PACKETBOAT_BOAT__TCP", format!("127.0.0.1:{}", member.tcp));
        if !self.has_proof {
            return command;
        }
        command
            .env("PACKETBOAT_STATION__TICKETS__KEYS_FILE", self.ticket_keys())
            .env("PACKETBOAT_STATION__TICKETS__REQUIRED", "true");
        for (variable, file) in [
            ("CERT_FILE", format!("{name}.crt")),
            ("KEY_FILE", format!("{name}.key")),
            ("TRUST_FILE", "ca.crt".into()),
        ] {
            let variable = format!("PACKETBOAT_IDENTITY__{variable}");
            command.env(variable, self.identities().join(file));
        }
        command
    }

    fn wait_for(&mut self, name: &str) {
        let line = self.process(name).line();
        assert!(line.is_some(), "{name} did not start: {}", self.tail(name));
    }

    /// Last lines of a member's log.
    fn tail(&self, name: &str) -> String {
        let log = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in self.members.keys() {
                eprintln!("--- the end of {name}'s log\n{}", self.tail(name));
            }
        }
    }
}

impl Member {
    fn new(service: &'static str) -> Member {
        let [websocket, tcp, listen, admin] = free_ports();
        Member {
            process: None,
            service,
            websocket,
            tcp,
            listen,
            admin,
        }
    }

    fn websocket(&self) -> String {
        format!("ws://127.0.0.1:{}", self.websocket)
    }
}

fn settings(name: &str, redis: &str, more: &str) -> String {
    let brokers = real::addresses("kafka");
    let (replicas, in_sync) = match brokers.len() {
        1 | 2 => (1, 1),
        _ => (3, 2),
    };
    let (redis_at, etcd, cql) = (
        real::list(&format!("redis-{redis}")),
        real::list("etcd"),
        real::list("cql"),
    );
    let (limit_lines, secrets) = (load_limits::lines(), real::secrets());
    format!(
        r#"log.level = "warn"
kafka.brokers = {brokers:?}
kafka.topic_prefix = "{name}-"
kafka.replication_factor = {replicas}
kafka.min_insync_replicas = {in_sync}
kafka.partitions = {{ message = 6, retry = 2, notification = 2 }}
redis.mode = "{redis}"
redis.addresses = {redis_at}
redis.key_prefix = "{name}"
etcd.endpoints = {etcd}
etcd.prefix = "/{name}"
scylla.contact_points = {cql}
scylla.keyspace = "packetboat_{name}"
scylla.replication.factor = 1
{secrets}
{limit_lines}{more}
"#
    )
}
