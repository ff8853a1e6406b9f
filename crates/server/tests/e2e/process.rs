//! Processes of `packetboat`, their lines, and their ends. A process that a test leaves is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take that should come soon.
pub const SOON: Duration = Duration::from_secs(20);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// A command that sees nothing of the environment of whoever runs the tests.
pub fn packetboat(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_packetboat"));
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PACKETBOAT_") {
            command.env_remove(name);
        }
    }
    command
}

/// What a command printed, and how it ended.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Ended {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

impl Ended {
    /// Fails where the command did.
    pub fn ok(self) -> Ended {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self
    }

    pub fn json_lines(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a JSON line"))
            .collect()
    }
}

/// A process that goes on beside the test.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    stdin: Option<ChildStdin>,
}

impl Process {
    pub fn start(command: &mut Command) -> Process {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdout = child.stdout.take().expect("piped");
        let (feed, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if feed.send(line).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Process {
            child,
            lines,
            stdin,
        }
    }

    /// Writes a line to its input.
    pub fn type_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("its input is open");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Writes all of it from another thread, then ends its input.
    pub fn feed(&mut self, text: String) {
        let mut stdin = self.stdin.take().expect("its input is open");
        thread::spawn(move || {
            // Whoever reads may have ended.
            let _ = stdin.write_all(text.as_bytes());
        });
    }

    /// The next line of its output; `None` at the end.
    pub fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(SOON) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line in time"),
        }
    }

    /// Skips lines until this one.
    pub fn line_is(&self, wanted: &str) {
        let mut seen = Vec::new();
        while let Some(line) = self.line() {
            if line == wanted {
                return;
            }
            seen.push(line);
        }
        panic!("{wanted:?} is not among {seen:#?}");
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// `kill -9`, and gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_none()
    }

    /// Waits for its end.
    pub fn ended(&mut self, within: Duration) -> ExitStatus {
        let mut waited = Duration::ZERO;
        while waited < within {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            thread::sleep(PAUSE);
            waited += PAUSE;
        }
        panic!("it has not ended within {within:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `packetboat all` on a directory of its own.
pub struct All {
    pub process: Process,
    pub dir: Dir,
    websocket: String,
    tcp: String,
    admin: String,
}

/// What outlives a process of `all`: its data, its settings, its devices' state.
pub struct Dir(TempDir);

impl Dir {
    pub fn new() -> Dir {
        Dir(tempfile::tempdir().expect("a directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Settings for `all`, over free ports.
    fn settings(&self, ports: [&str; 3], more: &str) -> PathBuf {
        let [websocket, tcp, admin] = ports;
        let text = format!(
            "log.level = \"warn\"\nadmin.listen = \"{admin}\"\nboat.websocket = \"{websocket}\"\nboat.tcp = \"{tcp}\"\n{more}\n"
        );
        let file = self.path("packetboat.toml");
        std::fs::write(&file, text).expect("a file");
        file
    }
}

pub fn all(file: &Path, data: &Path) -> Command {
    let mut command = packetboat(&["--config"]);
    command
        .arg(file)
        .args(["all", "--output", "json", "--data"]);
    command.arg(data);
    command
}

impl All {
    pub fn start() -> All {
        All::with("")
    }

    /// With more settings, as `section.key = value` lines.
    pub fn with(more: &str) -> All {
        let free = "127.0.0.1:0";
        All::over(Dir::new(), [free; 3], more)
    }

    fn over(dir: Dir, ports: [&str; 3], more: &str) -> All {
        let file = dir.settings(ports, more);
        let process = Process::start(&mut all(&file, &dir.path("data")));
        let line = process.line().expect("it says what it bound");
        let bound: Value = serde_json::from_str(&line).expect("a JSON line");
        let of = |name: &str| bound[name].as_str().expect("an address").to_owned();
        All {
            websocket: of("websocket"),
            tcp: of("tcp"),
            admin: of("admin"),
            process,
            dir,
        }
    }

    /// Starts again on the same data and ports, after the process has ended.
    pub fn again(self, more: &str) -> All {
        let ports = [&self.websocket, &self.tcp, &self.admin];
        let ports = ports.map(|url| url.split_once("//").expect("a URL").1.to_owned());
        let dir = self.dir;
        drop(self.process);
        All::over(dir, [&ports[0], &ports[1], &ports[2]], more)
    }

    /// A command of a user, towards this one.
    pub fn user(&self, arguments: &[&str]) -> Command {
        let mut command = packetboat(arguments);
        command
            .env("PACKETBOAT_URL", &self.websocket)
            .env("PACKETBOAT_STATE", self.dir.path("state"));
        command
    }

    pub fn user_over_tcp(&self, arguments: &[&str]) -> Command {
        let mut command = self.user(arguments);
        command.env("PACKETBOAT_URL", &self.tcp);
        command
    }

    /// A command of an operator, towards this one.
    pub fn operator(&self, arguments: &[&str]) -> Command {
        let mut command = packetboat(arguments);
        command.env("PACKETBOAT_ADMIN", &self.admin);
        command
    }

    /// Sends one message, and answers its id.
    pub fn send(&self, from: &str, to: &str, text: &str) -> String {
        let sent = run(&mut self.user(&["send", "--user", from, "--to", to, text])).ok();
        let line = &sent.json_lines()[0];
        assert_eq!(line["status"], "accepted");
        line["msg_id"].as_str().expect("an id").to_owned()
    }

    /// Receives so many messages.
    pub fn listen(&self, user: &str, count: usize) -> Vec<Value> {
        let count = count.to_string();
        let listen = [
            "listen",
            "--user",
            user,
            "--count",
            &count,
            "--timeout",
            "30",
        ];
        run(&mut self.user(&listen)).ok().json_lines()
    }

    /// Asserts that nothing (more) comes for this user.
    pub fn nothing_for(&self, user: &str) {
        let listen = ["listen", "--user", user, "--timeout", "0.7"];
        assert_eq!(run(&mut self.user(&listen)).ok().stdout, "");
    }

    /// Waits until the audit is even, with nothing in flight.
    pub fn at_rest(&self) {
        let mut report = String::new();
        for _ in 0..200 {
            report = run(&mut self.operator(&["audit", "--output", "json"])).stdout;
            if report.contains("\"even\":true") && report.contains("\"in_flight\":0") {
                return;
            }
            thread::sleep(PAUSE * 2);
        }
        panic!("it does not come to rest: {report}");
    }

    /// Waits until the trace of a message tells all of these events.
    pub fn traced(&self, id: &str, events: &[&str]) {
        let mut told = String::new();
        for _ in 0..100 {
            told = run(&mut self.operator(&["trace", id, "--output", "json"])).stdout;
            if events.iter().all(|event| told.contains(event)) {
                return;
            }
            thread::sleep(PAUSE * 2);
        }
        panic!("{events:?} are not all in {told}");
    }
}
