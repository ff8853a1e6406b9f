//! A group whose members are all online and acknowledge: CPU per delivery, and the time until the
//! last member has a message.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use comfy_table::{Table, presets};
use futures_util::{SinkExt, StreamExt};
use hdrhistogram::Histogram;
use protocol::{GroupId, Recipient};
use serde::Serialize;
use server::cli::{Output, whole};
use server::settings::Settings;
use server::{errln, out, outln};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::dialect::{BenchFrame, Dialect};
use super::groups::create_group;
use super::installation::{Also, Installation, cpu_beside};
use super::load::LATENCY_MAX_US;
use super::report::median;
use super::sign_in::{Socket, binary, sign_in, sign_in_all};
use super::{BODY_BYTES, COUNTS, Place, ROUNDS};
use crate::numbers::long;

/// Time after which a message counts as lost.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, Args)]
pub(super) struct Group {
    /// Members, all online and acknowledging; the sender comes on top.
    #[arg(long, default_value_t = 1000, value_parser = whole::<u64>(COUNTS))]
    members: u64,
    /// Messages in flight at a time.
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(COUNTS))]
    in_flight: u64,
    /// Size of a message's body.
    #[arg(long, default_value_t = 200, value_parser = whole::<usize>(BODY_BYTES))]
    bytes: usize,
    /// Measured time of each round, after a warm-up of a third of it.
    #[arg(long, default_value = "10", value_parser = long)]
    seconds: Duration,
    /// Rounds, each with a new server; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = whole::<usize>(ROUNDS))]
    rounds: usize,
    /// Running server to measure instead of a new one, perhaps another build. Needs --pid.
    #[arg(long, value_name = "ws://HOST:PORT", requires = "pid")]
    url: Option<String>,
    /// Process of that server, whose CPU time counts.
    #[arg(long, requires = "url")]
    pid: Option<u32>,
}

/// Rounds of a group.
#[derive(Debug, Default, Serialize)]
struct GroupRounds {
    members: u64,
    in_flight: u64,
    cpu_us_a_delivery: Vec<f64>,
    /// Milliseconds from the send until the last member has the message.
    last_p50_ms: Vec<f64>,
    last_p99_ms: Vec<f64>,
    messages: u64,
}

/// A server, and the CPU time it used.
enum MeasuredServer {
    Own(Installation),
    Running { url: String, process: Also },
}

impl Group {
    pub(super) async fn run(
        &self,
        place: &Place<'_>,
        settings: &Settings,
        output: Output,
    ) -> Result<ExitCode> {
        ensure!(
            self.members > 0 && self.in_flight > 0 && self.rounds > 0,
            "at least one of each is needed"
        );
        let mut rounds = GroupRounds {
            members: self.members,
            in_flight: self.in_flight,
            ..GroupRounds::default()
        };
        for _ in 0..self.rounds {
            let side = match (&self.url, self.pid) {
                (Some(url), Some(pid)) => MeasuredServer::Running {
                    url: url.clone(),
                    process: Also::new("server", pid),
                },
                _ => MeasuredServer::Own(Installation::embedded(place.data, "packetboat")?),
            };
            let dialect = Dialect::packetboat(settings);
            self.round(place.config, &side, &dialect, &mut rounds)
                .await?;
        }
        rounds.print(output)?;
        Ok(ExitCode::SUCCESS)
    }

    async fn round(
        &self,
        config: Option<&Path>,
        side: &MeasuredServer,
        dialect: &Dialect,
        rounds: &mut GroupRounds,
    ) -> Result<()> {
        let url = side.url();
        let owner = self.members;
        let sockets = sign_in_all(url, dialect, self.members).await?;
        let group = create_group(config, url, owner, 0..self.members).await?;
        let (arrival_sender, mut arrivals) = mpsc::unbounded_channel();
        let mut members = JoinSet::new();
        for socket in sockets {
            members.spawn(listen(socket, dialect.clone(), arrival_sender.clone()));
        }
        drop(arrival_sender);
        let sender = sign_in(url, dialect, owner).await?;
        let mut fan = Fan {
            group,
            owner,
            body: Bytes::from(vec![b'.'; self.bytes]),
            dialect,
            sender,
            last_sent: 0,
            pending: BTreeMap::new(),
            latency: Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)?,
        };
        let duration = self.seconds;
        self.drive(&mut fan, &mut arrivals, duration / 3).await?;
        fan.latency.reset();
        let cpu_before = side.cpu()?;
        self.drive(&mut fan, &mut arrivals, duration).await?;
        let cpu_used = side.cpu()?.saturating_sub(cpu_before);
        let messages = fan.latency.len();
        let deliveries = (messages * self.members).max(1);
        rounds.messages += messages;
        let cpu = cpu_used.as_secs_f64() * 1e6 / deliveries as f64;
        let at = |share| fan.latency.value_at_quantile(share) as f64 / 1000.0;
        let (p50, p99) = (at(0.5), at(0.99));
        errln!("{cpu:.2} µs of CPU a delivery; last member {p50:.1} and {p99:.1} ms (p50, p99)");
        rounds.cpu_us_a_delivery.push(cpu);
        rounds.last_p50_ms.push(p50);
        rounds.last_p99_ms.push(p99);
        members.abort_all();
        Ok(())
    }

    /// Sends for the given time, then waits for all messages in flight.
    async fn drive(
        &self,
        fan: &mut Fan<'_>,
        arrivals: &mut mpsc::UnboundedReceiver<Result<u64>>,
        time: Duration,
    ) -> Result<()> {
        let deadline = Instant::now() + time;
        loop {
            let may_send = Instant::now() < deadline;
            while may_send && (fan.pending.len() as u64) < self.in_flight {
                fan.send().await?;
            }
            if fan.pending.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                // Answers are fewer than arrivals, which may always be ready.
                frame = fan.sender.next() => {
                    let Some(frame) = binary(frame)? else { continue };
                    if let BenchFrame::Refused(text) = fan.dialect.hear(frame)? {
                        anyhow::bail!("refused: {text}");
                    }
                }
                arrival = timeout(DELIVERY_TIMEOUT, arrivals.recv()) => {
                    let arrival = arrival.context("a message did not reach all members")?;
                    fan.count(arrival.context("no member is left")??, self.members);
                }
            }
        }
    }
}

/// Messages of one group in flight.
struct Fan<'a> {
    group: GroupId,
    owner: u64,
    body: Bytes,
    dialect: &'a Dialect,
    sender: Socket,
    last_sent: u64,
    /// Messages by number: the time of the send, and the count of members that have it.
    pending: BTreeMap<u64, (Instant, u64)>,
    /// Latency in microseconds.
    latency: Histogram<u64>,
}

impl Fan<'_> {
    async fn send(&mut self) -> Result<()> {
        self.last_sent += 1;
        let (to, body) = (Recipient::Group(self.group), self.body.clone());
        let frame = self.dialect.send_to(self.owner, self.last_sent, to, body)?;
        self.pending.insert(self.last_sent, (Instant::now(), 0));
        Ok(self.sender.send(Message::Binary(frame)).await?)
    }

    fn count(&mut self, n: u64, members: u64) {
        let Some((start, count)) = self.pending.get_mut(&n) else {
            return;
        };
        *count += 1;
        if *count == members {
            let duration = start.elapsed().as_micros() as u64;
            self.pending.remove(&n);
            self.latency.saturating_record(duration);
        }
    }
}

/// A member: acknowledges each message, and passes its number on.
async fn listen(
    mut socket: Socket,
    dialect: Dialect,
    arrival_sender: mpsc::UnboundedSender<Result<u64>>,
) {
    loop {
        let step = async {
            let Some(frame) = binary(socket.next().await)? else {
                return Ok(None);
            };
            let BenchFrame::Message { n, ack, .. } = dialect.hear(frame)? else {
                return Ok(None);
            };
            for frame in dialect.acknowledge(vec![ack]) {
                socket.send(Message::Binary(frame)).await?;
            }
            Ok(n)
        };
        match step.await {
            Ok(None) => {}
            Ok(Some(n)) => {
                if arrival_sender.send(Ok(n)).is_err() {
                    return;
                }
            }
            Err(error) => {
                let _ = arrival_sender.send(Err(error));
                return;
            }
        }
    }
}

impl MeasuredServer {
    fn url(&self) -> &str {
        match self {
            MeasuredServer::Own(server) => &server.websocket,
            MeasuredServer::Running { url, .. } => url,
        }
    }

    fn cpu(&self) -> Result<Duration> {
        match self {
            MeasuredServer::Own(server) => server.total_cpu(),
            MeasuredServer::Running { process, .. } => {
                let process = std::slice::from_ref(process);
                Ok(cpu_beside(process)?.values().sum())
            }
        }
    }
}

impl GroupRounds {
    fn print(&self, output: Output) -> Result<()> {
        match output {
            Output::Json => outln!("{}", serde_json::to_string(self)?)?,
            Output::Table => {
                let mut table = Table::new();
                table.load_style(presets::ASCII_MARKDOWN);
                table.set_header(["", "median of the rounds"]);
                let rows = [
                    ("µs of CPU a delivery", &self.cpu_us_a_delivery),
                    ("last member, p50, ms", &self.last_p50_ms),
                    ("last member, p99, ms", &self.last_p99_ms),
                ];
                for (name, values) in rows {
                    table.add_row([name.to_owned(), format!("{:.2}", median(values))]);
                }
                out!("{table}\n")?;
            }
        }
        Ok(())
    }
}
