//! Secrets and message bodies appear in no output of the program: each is a canary string searched
//! for everywhere.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use api::transport::{Config, Connector};
use api::v1::station_service_client::StationServiceClient;
use api::v1::{self, ConnectRequest};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use opentelemetry_proto::tonic::collector::metrics::v1 as metrics;
use opentelemetry_proto::tonic::collector::trace::v1 as traces;
use prost::Message;
use protocol::access::Role;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::all::{All, Dir, all};
use crate::door::get;
use crate::ports::free_ports;
use crate::process::{Process, WAIT_TIMEOUT, packetboat, run, within};

/// Every log line, including those of third-party crates.
const LEVEL: &str = "trace";

/// Largest record of the log, below the message's size: the message becomes a dead letter.
const RECORD_MAX: usize = 512;

/// Lives of a suite, one of which must not write faster than the machine takes its lines.
const LIVES: usize = 5;

/// Word shown on purpose: it proves that each kind of output is searched.
const SHOWN: &str = "lighthouse-shown";

/// Exports received by a collector, as raw bytes.
#[derive(Clone, Default)]
struct Collector {
    traces: Arc<Mutex<Vec<u8>>>,
    metrics: Arc<Mutex<Vec<u8>>>,
}

#[tonic::async_trait]
impl traces::trace_service_server::TraceService for Collector {
    async fn export(
        &self,
        request: Request<traces::ExportTraceServiceRequest>,
    ) -> Result<Response<traces::ExportTraceServiceResponse>, Status> {
        let mut traces = self.traces.lock().expect("no panic");
        traces.extend(request.into_inner().encode_to_vec());
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl metrics::metrics_service_server::MetricsService for Collector {
    async fn export(
        &self,
        request: Request<metrics::ExportMetricsServiceRequest>,
    ) -> Result<Response<metrics::ExportMetricsServiceResponse>, Status> {
        let mut metrics = self.metrics.lock().expect("no panic");
        metrics.extend(request.into_inner().encode_to_vec());
        Ok(Response::new(Default::default()))
    }
}

impl Collector {
    /// Serves on a thread of its own for as long as the tests run; returns the address.
    fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let server = Server::builder()
            .add_service(traces::trace_service_server::TraceServiceServer::new(
                self.clone(),
            ))
            .add_service(metrics::metrics_service_server::MetricsServiceServer::new(
                self.clone(),
            ));
        thread::spawn(move || {
            runtime().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
                server
                    .serve_with_incoming(TcpIncoming::from(listener))
                    .await
            })
        });
        format!("http://{address}")
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}

/// Outputs by name.
type Outputs = Vec<(&'static str, Vec<u8>)>;

/// Encodings in which an output could show a secret.
fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let list: Vec<String> = secret.iter().map(u8::to_string).collect();
    let mut forms = vec![
        secret.to_vec(),
        hex.to_uppercase().into_bytes(),
        hex.into_bytes(),
        list.join(", ").into_bytes(),
        BASE64_STANDARD_NO_PAD.encode(secret).into_bytes(),
        BASE64_URL_SAFE_NO_PAD.encode(secret).into_bytes(),
    ];
    forms.push(secret.escape_ascii().to_string().into_bytes());
    forms
}

/// Secrets found in an output, each with its line.
fn leaks(outputs: &Outputs, secrets: &[(&'static str, Vec<u8>)]) -> Vec<String> {
    let mut leaks = Vec::new();
    for (output, bytes) in outputs {
        for (name, secret) in secrets {
            for form in forms(secret) {
                let mut windows = bytes.windows(form.len());
                let Some(at) = windows.position(|window| window == form) else {
                    continue;
                };
                let begin = bytes[..at].iter().rposition(|byte| *byte == b'\n');
                let begin = begin
                    .map_or(0, |begin| begin + 1)
                    .max(at.saturating_sub(300));
                let line = &bytes[begin..(at + form.len()).min(bytes.len())];
                leaks.push(format!(
                    "{name} in {output}: {}",
                    String::from_utf8_lossy(line)
                ));
                break;
            }
        }
    }
    leaks
}

/// A running suite with known secrets.
struct Suite {
    all: All,
    log: PathBuf,
    file: PathBuf,
    station: String,
    collector: Collector,
    secrets: Vec<(&'static str, Vec<u8>)>,
}

impl Suite {
    fn start(format: &str) -> Suite {
        let dir = Dir::new();
        let mut secrets = Vec::new();
        let mut file_of = |name: &'static str, secret: &str, content: &str| {
            let path = dir.path(name);
            std::fs::write(&path, content).expect("written");
            secrets.push((name, secret.as_bytes().to_vec()));
            path
        };
        let key = "canary-key-0123456789abcdef0123456789";
        let key_file = file_of("signing-key", key, &format!("{key}\n"));
        let tickets = "ca9a47ca9a47ca9a47ca9a47ca9a47ca9a47ca9a47ca9a47ca9a47ca9a47ca9a";
        let keys_file = file_of("ticket-keys", tickets, &format!("1 {tickets}\n"));
        let operator = "canary-operator-0123456789";
        let token_file = file_of("operator-token", operator, &format!("{operator}\n"));
        let webhook = "canary-webhook-0123456789abcdef";
        let secret_file = file_of("webhook-secret", webhook, &format!("{webhook}\n"));
        let header = "canary-header-0123456789";
        let headers_file = file_of("otlp-headers", header, &format!("x-key: {header}\n"));
        let collector = Collector::default();
        let endpoint = collector.start();
        let [port] = free_ports();
        let station = format!("127.0.0.1:{port}");
        let mut more = format!(
            "log.format = \"{format}\"\nboat.name = \"{SHOWN}\"\nboat.trace_share = 1.0\n\
             station.listen = \"{station}\"\nstation.record_bytes_max = {RECORD_MAX}\n\
             station.auth.key_file = {key_file:?}\nstation.tickets.keys_file = {keys_file:?}\n\
             horn.provider = \"webhook\"\nhorn.secret_file = {secret_file:?}\n\
             horn.url = \"http://user:canary-user@127.0.0.1:9/call?token=canary-query\"\n\
             log.otlp.endpoint = \"{endpoint}\"\nlog.otlp.headers_file = {headers_file:?}\n\
             admin.operators = [{{ name = \"ann\", token_file = {token_file:?}, roles = [\"view\"] }}]\n"
        );
        if cfg!(feature = "cluster") {
            let password = "canary-password-0123456789";
            let password_file = file_of("redis-password", password, &format!("{password}\n"));
            more += &format!(
                "redis.username = \"somebody\"\nredis.password_file = {password_file:?}\n"
            );
        }
        secrets.extend([
            ("user of a URL", b"canary-user".to_vec()),
            ("query of a URL", b"canary-query".to_vec()),
        ]);
        let file = dir.settings(["127.0.0.1:0"; 3], &more);
        let log = dir.path("log");
        let lines = std::fs::File::create(&log).expect("a file");
        let mut command = all(&file, &dir.path("data"));
        command.env("PACKETBOAT_LOG__LEVEL", LEVEL).stderr(lines);
        command
            .env("OTEL_SERVICE_NAME", SHOWN)
            .env("OTEL_METRIC_EXPORT_INTERVAL", "200");
        let all = All::from_process(Process::start(&mut command), dir);
        Suite {
            all,
            log,
            file,
            station: format!("http://{station}"),
            collector,
            secrets,
        }
    }

    fn secret(&mut self, name: &'static str, secret: impl Into<Vec<u8>>) {
        self.secrets.push((name, secret.into()));
    }

    /// Runs a command with the suite's settings; returns its exit code and output.
    fn with(&self, arguments: &[&str]) -> (Option<i32>, Vec<u8>) {
        let mut command = packetboat(&["--config"]);
        command.arg(&self.file).args(arguments);
        command
            .env("PACKETBOAT_URL", &self.all.websocket)
            .env("PACKETBOAT_STATE", &self.all.state);
        let ended = run(&mut command);
        (ended.code, (ended.stdout + &ended.stderr).into_bytes())
    }

    fn operator(&self, token: &str, arguments: &[&str]) -> (Option<i32>, Vec<u8>) {
        let mut command = self.all.operator(arguments);
        let ended = run(command.env("PACKETBOAT_ADMIN_TOKEN", token));
        (ended.code, (ended.stdout + &ended.stderr).into_bytes())
    }

    /// Opens a session directly at the station, as a boat does.
    fn connect(&self, token: &str) -> Option<v1::connect_response::Result> {
        runtime().block_on(async {
            let channel = Connector::new(Config::default()).channel(Role::Station, &self.station);
            let mut client = StationServiceClient::new(channel);
            let answer = client.connect(ConnectRequest {
                resume_ticket: Default::default(),
                session: 77,
                life: Some(v1::BoatLife {
                    boat: SHOWN.to_owned(),
                    incarnation: 1,
                }),
                token: token.to_owned(),
                device: "canary-device-of-mine".to_owned(),
                platform: v1::Platform::Ios.into(),
                peer: "127.0.0.1:1".to_owned(),
                marker: 0,
            });
            answer.await.expect("an answer").into_inner().result
        })
    }

    /// Ticket of such a session.
    fn ticket(&self, token: &str) -> Vec<u8> {
        match self.connect(token) {
            Some(v1::connect_response::Result::Admission(admission)) => admission.ticket.to_vec(),
            other => panic!("an admission: {other:?}"),
        }
    }

    /// Runs a whole scenario (users chat, guess and fail, operators look) and collects all outputs.
    fn outputs(&mut self) -> Outputs {
        let mut outputs = Outputs::new();
        let (_, token) = self.with(&["token", "--user", "1"]);
        let token = String::from_utf8(token).expect("text").trim().to_owned();
        let (_, other) = self.with(&["token", "--user", "2"]);
        let other = String::from_utf8(other).expect("text").trim().to_owned();
        self.secret("token of a user", token.clone());
        self.secret("token of another", other.clone());
        self.secret("ticket of a session", self.ticket(&other));
        self.secret("device", "canary-device");
        self.secret("body", "canary-body");
        let as_one = ["--user", "1", "--token", &token];
        let chat = [
            &["send"],
            &as_one[..],
            &["--to", "2", "canary-body of a message"],
        ]
        .concat();
        let (code, _) = self.with(&chat);
        assert_eq!(code, Some(0), "it is accepted");
        let large = "canary-body ".repeat(RECORD_MAX / 8);
        let (code, _) = self.with(&[&["send"], &as_one[..], &["--to", "2", &large]].concat());
        assert_eq!(code, Some(0), "it is accepted, too");
        let listen = ["listen", "--user", "2", "--token", &other, "--count", "1"];
        let device = ["--device", "canary-device", "--timeout", "120"];
        let (code, heard) = self.with(&[&listen[..], &device].concat());
        assert_eq!(code, Some(0), "{}", String::from_utf8_lossy(&heard));
        self.guess(&mut outputs);
        self.look(&mut outputs);
        outputs
    }

    /// Strangers try forged tokens.
    fn guess(&mut self, outputs: &mut Outputs) {
        let forged = "canary.forged.token";
        self.secret("forged token", forged);
        let send = ["send", "--user", "3", "--to", "2", "--token", forged];
        let (code, said) = self.with(&[&send[..], &["canary-body"]].concat());
        assert_ne!(code, Some(0), "nobody signed that");
        outputs.push(("error answer of a boat", said));
        let guess = "canary-guess-0123456789";
        self.secret("guess of an operator's token", guess);
        let (code, said) = self.operator(guess, &["dlq", "list"]);
        assert_ne!(code, Some(0), "nobody has it");
        outputs.push(("error answer of the desk", said));
        let query = "canary-in-a-query";
        self.secret("token in a query", query);
        let path = format!("/nowhere?token={query}");
        let websocket = self.all.websocket.replace("ws://", "http://");
        let websocket = websocket.trim_end_matches("/ws");
        for url in [websocket, &self.all.admin, &self.all.health] {
            outputs.push(("error answer over HTTP", get(url, &path).1.into_bytes()));
        }
        let refusal = format!("{:?}", self.connect(forged));
        outputs.push(("error answer of a station", refusal.into_bytes()));
    }

    /// Operators who may list and not read letters, and commands that show settings.
    fn look(&mut self, outputs: &mut Outputs) {
        let operator = "canary-operator-0123456789";
        within(WAIT_TIMEOUT, || {
            let (_, stats) = self.operator(operator, &["dlq", "stats"]);
            String::from_utf8_lossy(&stats).contains("too-large")
        });
        let (_, list) = self.operator(operator, &["dlq", "list", "--output", "json"]);
        let page: serde_json::Value = serde_json::from_slice(&list).expect("JSON");
        let letter = page["items"][0]["id"]
            .as_str()
            .expect("a letter")
            .to_owned();
        outputs.push(("list of dead letters", list));
        let (code, show) = self.operator(operator, &["dlq", "show", &letter]);
        assert_eq!(code, Some(0));
        outputs.push(("a dead letter", show));
        let (code, body) = self.operator(operator, &["dlq", "show", &letter, "--body"]);
        assert_ne!(code, Some(0), "bodies are for others");
        outputs.push(("a dead letter, with the command for its body", body));
        let (_, doctor) = self.operator(operator, &["doctor", "--output", "json"]);
        outputs.push(("the doctor's report", doctor));
        let (code, check) = self.with(&["config", "check"]);
        assert_eq!(code, Some(0), "{}", String::from_utf8_lossy(&check));
        outputs.push(("config check", check));
        outputs.push(("config print", self.with(&["config", "print"]).1));
        let (_, scrape) = get(&self.all.health, "/metrics");
        outputs.push(("metrics", scrape.into_bytes()));
    }
}

fn contains(outputs: &Outputs, output: &str, word: &str) -> bool {
    let texts = outputs.iter().filter(|(name, _)| *name == output);
    let mut texts = texts.map(|(_, bytes)| String::from_utf8_lossy(bytes));
    texts.any(|text| text.contains(word))
}

/// Runs a suite; returns all its outputs, and the secrets it knew.
fn life(format: &str) -> (Outputs, Vec<(&'static str, Vec<u8>)>) {
    let mut suite = Suite::start(format);
    let mut outputs = suite.outputs();
    let read_bytes = |bytes: &Mutex<Vec<u8>>| bytes.lock().expect("no panic").clone();
    // At its end the process waits for the collector for five seconds only.
    for (bytes, word) in [
        (&suite.collector.traces, "deliver"),
        (&suite.collector.metrics, "boat_sends_total"),
    ] {
        within(WAIT_TIMEOUT, || {
            String::from_utf8_lossy(&read_bytes(bytes)).contains(word)
        });
    }
    suite.all.process.signal("TERM");
    assert!(suite.all.process.ended(WAIT_TIMEOUT).success());
    outputs.push(("traces", read_bytes(&suite.collector.traces)));
    outputs.push(("metrics of OTLP", read_bytes(&suite.collector.metrics)));
    outputs.push(("log", std::fs::read(&suite.log).expect("lines")));
    (outputs, suite.secrets)
}

fn nothing_leaks(format: &str) {
    let is_whole = |(outputs, _): &(Outputs, _)| {
        // A dropped line could have held anything.
        contains(outputs, "metrics", "log_lines_dropped_total 0")
    };
    let life = (0..LIVES).map(|_| life(format)).find(is_whole);
    let (outputs, secrets) = life.expect("a life of which no line is missing");
    for (output, word) in [
        ("log", "boat ready"),
        ("log", SHOWN),
        ("log", "TRACE"),
        ("traces", "deliver"),
        ("traces", SHOWN),
        ("metrics", "boat_sends_total"),
        ("metrics of OTLP", "boat_sends_total"),
        ("config print", SHOWN),
        ("a dead letter", "too-large"),
        ("the doctor's report", "\"check\""),
        ("error answer of a boat", "unauthenticated"),
        ("error answer of the desk", "operators sign in"),
        ("error answer of a station", "Refusal"),
    ] {
        assert!(contains(&outputs, output, word), "{output} has no {word:?}");
    }
    // The same search finds the word that is shown on purpose.
    let shown_leaks = leaks(&outputs, &[("shown", SHOWN.into())]);
    for output in ["log", "traces", "metrics of OTLP", "config print"] {
        let begin = format!("shown in {output}:");
        assert!(
            shown_leaks.iter().any(|leak| leak.starts_with(&begin)),
            "{output}: {shown_leaks:#?}"
        );
    }
    let leaks = leaks(&outputs, &secrets);
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
}

// proves I16
#[test]
fn no_secret_or_body_leaks_with_plain_text_logs() {
    nothing_leaks("pretty");
}

// proves I16
#[test]
fn no_secret_or_body_leaks_with_json_logs() {
    nothing_leaks("json");
}

/// Tests the search itself: it finds a planted secret in every encoding.
#[test]
fn a_planted_secret_is_found_in_each_dress() {
    let secret = b"canary-\"key\"\x01".to_vec();
    let secrets = [("key", secret.clone())];
    let clean = vec![("log", b"INFO boat: all is well\n".to_vec())];
    assert_eq!(leaks(&clean, &secrets), Vec::<String>::new());
    let debug = format!("{secret:?}");
    let bytes = format!("{:?}", bytes::Bytes::from(secret.clone()));
    let samples = forms(&secret).into_iter().map(|form| (form, "a form"));
    let samples = samples.chain([
        (debug.into_bytes(), "Debug of a list"),
        (bytes.into_bytes(), "Debug of bytes"),
    ]);
    for (form, dress) in samples {
        let line = [b"INFO boat: token=", &form[..], b" and more\n"].concat();
        let matches = leaks(&vec![("log", line)], &secrets);
        assert_eq!(matches.len(), 1, "{dress}");
        assert!(matches[0].starts_with("key in log"), "{}", matches[0]);
    }
}
