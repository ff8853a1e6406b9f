//! `packetboat all`, started by a test.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use server::settings::load_limits;
use tempfile::TempDir;

use crate::door::{Door, get};
use crate::ports::free_ports;
use crate::process::{Process, packetboat};

/// Waits that end nothing on a stalled machine. A test sets those that it is about by itself.
const PATIENT: [(&str, &str); 6] = [
    ("boat.arrival_timeout", "5m"),
    ("boat.session.ack_wait", "5m"),
    ("carrier.ack_wait", "5m"),
    ("boat.station_timeout", "5m"),
    ("station.publish_deadline", "2m"),
    ("station.store_deadline", "4m"),
];

/// `packetboat all` on a directory of its own.
pub struct All {
    pub process: Process,
    pub dir: Dir,
    door: Door,
    tcp: String,
    /// Address of probes and metrics.
    pub health: String,
    edges: Option<String>,
}

impl Deref for All {
    type Target = Door;

    fn deref(&self) -> &Door {
        &self.door
    }
}

/// State that outlives a process of `all`: its data, its settings, its devices' state.
pub struct Dir(TempDir);

impl Dir {
    pub fn new() -> Dir {
        Dir(tempfile::tempdir().expect("a directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes settings for `all`, with these addresses.
    pub fn settings(&self, ports: [&str; 3], more: &str) -> PathBuf {
        let [websocket, tcp, admin] = ports;
        let limit_lines = load_limits::lines();
        let patient = PATIENT.iter().filter(|(key, _)| !more.contains(key));
        let patient: String = patient
            .map(|(key, wait)| format!("{key} = \"{wait}\"\n"))
            .collect();
        let text = format!(
            "log.level = \"warn\"\nhealth.listen = \"127.0.0.1:0\"\nadmin.listen = \"{admin}\"\nboat.websocket = \"{websocket}\"\nboat.tcp = \"{tcp}\"\n{limit_lines}{patient}{more}\n"
        );
        let file = self.path("packetboat.toml");
        std::fs::write(&file, text).expect("a file");
        file
    }
}

/// Changes the level in the file; the process reads it at SIGHUP.
pub fn set_level(file: &Path, level: &str) {
    let text = std::fs::read_to_string(file).expect("a file");
    let (_, rest) = text.split_once('\n').expect("a first line");
    std::fs::write(file, format!("log.level = \"{level}\"\n{rest}")).expect("written");
}

/// Addresses for clients, for TCP clients and for operators.
pub fn addresses() -> [String; 3] {
    free_ports().map(|port: u16| format!("127.0.0.1:{port}"))
}

pub fn all(file: &Path, data: &Path) -> Command {
    let mut command = packetboat(&["--config"]);
    command
        .arg(file)
        .args(["all", "--output", "json", "--data"]);
    command.arg(data);
    command
}

/// `command` with `plain` as its last arguments, in the environment of `plain`.
pub fn through(mut command: Command, plain: &Command) -> Command {
    command.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

impl All {
    pub fn start() -> All {
        All::with("")
    }

    /// Starts with more settings, as `section.key = value` lines. Its ports stay its own while it is
    /// restarted.
    pub fn with(more: &str) -> All {
        let [websocket, tcp, admin] = addresses();
        All::over(Dir::new(), [&websocket, &tcp, &admin], more)
    }

    /// Starts with this log level, and the log on `stderr`.
    pub fn logging(level: &str, stderr: impl Into<Stdio>) -> All {
        let dir = Dir::new();
        let file = dir.settings(["127.0.0.1:0"; 3], "");
        set_level(&file, level);
        let process = Process::start(all(&file, &dir.path("data")).stderr(stderr));
        All::from_process(process, dir)
    }

    /// Starts with settings in the environment, which win over the file's.
    pub fn with_environment(settings: &[(&str, &str)], more: &str) -> All {
        let dir = Dir::new();
        let file = dir.settings(["127.0.0.1:0"; 3], more);
        let mut command = all(&file, &dir.path("data"));
        for (name, value) in settings {
            command.env(format!("PACKETBOAT_{name}"), value);
        }
        All::from_process(Process::start(&mut command), dir)
    }

    /// Starts with a hard limit of open files; its log goes to `log`.
    pub fn with_files(files: u32, more: &str) -> All {
        let dir = Dir::new();
        let file = dir.settings(["127.0.0.1:0"; 3], more);
        let plain = all(&file, &dir.path("data"));
        let log = std::fs::File::create(dir.path("log")).expect("a file");
        let mut command = Command::new("prlimit");
        command.stderr(log);
        command.arg(format!("--nofile={files}:{files}"));
        All::from_process(Process::start(&mut through(command, &plain)), dir)
    }

    /// Starts in this folder, on these ports.
    pub fn over(dir: Dir, ports: [&str; 3], more: &str) -> All {
        let file = dir.settings(ports, more);
        let process = Process::start(&mut all(&file, &dir.path("data")));
        All::from_process(process, dir)
    }

    /// Wraps a process that was started with settings of `dir`.
    pub fn from_process(process: Process, dir: Dir) -> All {
        let line = process.line().expect("it says what it bound");
        let addresses: Value = serde_json::from_str(&line).expect("a JSON line");
        let bound_address = |name: &str| addresses[name].as_str().expect("an address").to_owned();
        All {
            door: Door {
                websocket: bound_address("websocket"),
                admin: bound_address("admin"),
                state: dir.path("state"),
            },
            tcp: bound_address("tcp"),
            health: bound_address("health"),
            edges: addresses["edges"].as_str().map(str::to_owned),
            process,
            dir,
        }
    }

    /// Restarts on the same data and ports, after the process has ended.
    pub fn restart(self, more: &str) -> All {
        let ports = [&self.door.websocket, &self.tcp, &self.door.admin];
        let ports = ports.map(|url| url.split_once("//").expect("a URL").1.to_owned());
        let dir = self.dir;
        drop(self.process);
        All::over(dir, [&ports[0], &ports[1], &ports[2]], more)
    }

    /// Address of the list of boats, if it is served.
    pub fn edges(&self) -> Option<&str> {
        self.edges.as_deref()
    }

    /// Address for TCP clients.
    pub fn tcp(&self) -> &str {
        &self.tcp
    }

    /// Sum of a metric's series in a scrape, or one series if `name` has labels.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, scrape) = get(&self.health, "/metrics");
        let values = scrape.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let is_it = rest.starts_with([' ', '{']);
            let value = rest.rsplit(' ').next().filter(|_| is_it)?;
            value.parse::<f64>().ok()
        });
        values.sum::<f64>() as u64
    }

    pub fn user_over_tcp(&self, arguments: &[&str]) -> Command {
        let mut command = self.user(arguments);
        command.env("PACKETBOAT_URL", &self.tcp);
        command
    }
}
