//! A server under measurement: a child process, its CPU time and its memory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tokio::time::Instant;

/// Clock ticks per second in /proc (USER_HZ, 100 on every Linux that Rust runs on).
const TICKS_PER_SECOND: f64 = 100.0;

/// Time for a server to leave in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Line that a server prints on standard output once it is ready.
#[derive(Debug, Deserialize)]
struct Ready {
    websocket: Option<String>,
    health: Option<String>,
}

/// A child process, killed on drop.
pub(super) struct Server {
    child: Child,
    /// Address for clients, if it takes any.
    pub(super) websocket: Option<String>,
    /// Address of its metrics.
    pub(super) health: Option<String>,
}

impl Server {
    /// Runs this same program with `args` and waits for its first line of standard output.
    pub(super) fn start(args: &[&str], environment: &[(&str, String)]) -> Result<Server> {
        let program = std::env::current_exe().context("finding this binary")?;
        let mut child = Command::new(program)
            .args(args)
            .envs(
                environment
                    .iter()
                    .map(|(name, value)| (*name, value.as_str())),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting bench {}", args.join(" ")))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.as_mut() {
            BufReader::new(output)
                .read_line(&mut line)
                .context("waiting for the server")?;
        }
        match serde_json::from_str::<Ready>(&line) {
            Ok(ready) => {
                let Ready { websocket, health } = ready;
                Ok(Server {
                    child,
                    websocket,
                    health,
                })
            }
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                bail!("bench {} did not start: it said {line:?}", args.join(" "));
            }
        }
    }

    /// Kills the server with `kill -9`.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn terminate(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &pid]).status();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(LOOK_EVERY);
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in bytes.
    pub(super) fn resident(&self) -> Result<u64> {
        resident(Path::new(&format!("/proc/{}/status", self.child.id())))
    }
}

/// User and system time of a process so far.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("reading the CPU time of process {pid}"))?;
    // The name in parentheses may hold spaces; user and system time are fields 14 and 15.
    let fields = stat.rsplit_once(") ").context("an odd /proc/stat")?.1;
    let mut times = fields.split(' ').skip(11).map(str::parse::<f64>);
    let (Some(Ok(user)), Some(Ok(system))) = (times.next(), times.next()) else {
        bail!("cannot parse /proc/stat: {stat}");
    };
    Ok(Duration::from_secs_f64((user + system) / TICKS_PER_SECOND))
}

fn resident(status: &Path) -> Result<u64> {
    let text = fs::read_to_string(status).context("reading the server's memory")?;
    let line = text
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .context("no VmRSS")?;
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .context("cannot parse VmRSS")?
        .parse()?;
    Ok(kib * 1024)
}

/// Terminates the server before the kill, so that it gives up its place in a group or its lease at
/// once.
impl Drop for Server {
    fn drop(&mut self) {
        self.terminate();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
