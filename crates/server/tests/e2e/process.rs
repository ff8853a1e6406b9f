//! Processes of the program, their output, and their ends. A process that a test leaves behind is
//! killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

/// Time limit, on the slowest machine, for anything that should happen soon. Only a failing test
/// waits that long.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Polling interval.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A command of the program.
pub fn packetboat(arguments: &[&str]) -> Command {
    command(Path::new(env!("CARGO_BIN_EXE_packetboat")), arguments)
}

/// A command of the load generator, which Cargo builds beside the program with the whole workspace
/// or with `--package bench`.
pub fn bench(arguments: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_packetboat")).with_file_name("bench");
    command(&program, arguments)
}

/// A command without the variables of the tests' own environment.
fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["PACKETBOAT_", "OTEL_"]
            .iter()
            .any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(&name);
        }
    }
    command
}

/// Output and exit code of a command.
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> CommandOutput {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    CommandOutput {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

impl CommandOutput {
    /// Panics if the command failed.
    pub fn ok(self) -> CommandOutput {
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

/// A process that runs beside the test.
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

    /// Starts a process whose output goes elsewhere.
    pub fn printing_to(command: &mut Command, stdout: impl Into<Stdio>) -> Process {
        let child = command.stdin(Stdio::null()).stdout(stdout).spawn();
        let (_, lines) = channel();
        Process {
            child: child.expect("it starts"),
            lines,
            stdin: None,
        }
    }

    /// Writes a line to the input.
    pub fn type_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("its input is open");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Writes the text from another thread, then closes the input.
    pub fn feed(&mut self, text: String) {
        let mut stdin = self.stdin.take().expect("its input is open");
        thread::spawn(move || {
            // The reader may have ended.
            let _ = stdin.write_all(text.as_bytes());
        });
    }

    /// Next line of the output; `None` at the end.
    pub fn line(&self) -> Option<String> {
        self.line_within(WAIT_TIMEOUT)
    }

    pub fn line_within(&self, timeout: Duration) -> Option<String> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line in time"),
        }
    }

    /// Skips lines up to `expected`.
    pub fn line_is(&self, expected: &str) {
        if let Err(seen_lines) = self.look_for(WAIT_TIMEOUT, |line| line == expected) {
            panic!("{expected:?} is not among {seen_lines:#?}");
        }
    }

    /// Skips lines up to a match. Returns the lines seen instead, if none matches in time.
    pub fn look_for(
        &self,
        timeout: Duration,
        is_it: impl Fn(&str) -> bool,
    ) -> Result<(), Vec<String>> {
        let mut seen_lines = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(timeout) {
            if is_it(&line) {
                return Ok(());
            }
            seen_lines.push(line);
        }
        Err(seen_lines)
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.expect("kill runs").success());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a size") * 1024
    }

    /// CPU time so far: user and system, counted in hundredths of a second (proc_pid_stat(5),
    /// fields 14 and 15).
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.expect("it runs");
        // The name in front may contain spaces.
        let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
        let fields = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = fields
            .map(|field| field.parse::<u64>().expect("ticks"))
            .sum();
        Duration::from_millis(ticks * 10)
    }

    /// Kills the process with `kill -9`, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_none()
    }

    /// Waits for the end of the process.
    pub fn ended(&mut self, timeout: Duration) -> ExitStatus {
        let mut elapsed = Duration::ZERO;
        while elapsed < timeout {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            thread::sleep(POLL_INTERVAL);
            elapsed += POLL_INTERVAL;
        }
        panic!("it has not ended within {timeout:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `is_so` is true.
pub fn within(timeout: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < timeout, "not within {timeout:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
