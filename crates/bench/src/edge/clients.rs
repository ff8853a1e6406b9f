//! Process of clients, so that a server's CPU and memory are its own, and each process has its own
//! limit of files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use client::core::{Limits, reconnect_pause};
use futures_util::StreamExt;
use rand::random;
use server::outln;
use server::settings::Settings;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::link::{ConnectTarget, Link, LinkLoss};
use super::orders::{Answer, Kind, Order};
use crate::dialect::Dialect;

/// Time limit of a herd: a slower one has lost clients.
const HERD_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub(crate) struct EdgeClients {
    /// Addresses to connect to; each connection picks one at random.
    #[arg(long, required = true)]
    url: Vec<String>,
    #[arg(long)]
    ca_file: Option<PathBuf>,
}

/// Clients that are connected, or wait to be.
struct Clients {
    targets: Vec<ConnectTarget>,
    dialect: Dialect,
    limits: Limits,
    cut: CancellationToken,
    /// Held connections. Each ends with its user, and with the reason of the loss unless it was
    /// cut.
    connections: JoinSet<(u64, Option<LinkLoss>)>,
    /// Connections that nobody reads.
    slow: JoinSet<()>,
}

impl EdgeClients {
    pub(crate) async fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let settings = Settings::load(config)?;
        let targets = self.url.iter();
        let targets = targets.map(|url| ConnectTarget::new(url, self.ca_file.as_deref()));
        let mut clients = Clients {
            targets: targets.collect::<Result<_>>()?,
            dialect: Dialect::packetboat(&settings),
            limits: Limits::default(),
            cut: CancellationToken::new(),
            connections: JoinSet::new(),
            slow: JoinSet::new(),
        };
        outln!("{{}}")?;
        let mut orders = BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = orders.next_line().await? {
            let order = serde_json::from_str(&line).context("no order")?;
            let start = Instant::now();
            let mut answer = clients.follow(order).await?;
            answer.seconds = start.elapsed().as_secs_f64();
            outln!("{}", serde_json::to_string(&answer)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Clients {
    async fn follow(&mut self, order: Order) -> Result<Answer> {
        match order {
            Order::Connect {
                first,
                count,
                at_a_time,
                kind,
            } => self.connect(first..first + count, at_a_time, kind).await,
            Order::Cycle {
                first,
                users,
                times,
            } => self.cycle(first, users, times).await,
            Order::Cut => {
                self.cut();
                self.slow.abort_all();
                while self.connections.join_next().await.is_some() {}
                Ok(Answer::default())
            }
            Order::Herd => self.herd().await,
        }
    }

    /// Ends the held connections; later ones are not affected.
    fn cut(&mut self) {
        std::mem::take(&mut self.cut).cancel();
    }

    fn hold(&mut self, user: u64, link: Link) {
        let cut = self.cut.clone();
        let connection = async move { (user, cut.run_until_cancelled(link.hold()).await) };
        self.connections.spawn(connection);
    }

    async fn connect(
        &mut self,
        users: std::ops::Range<u64>,
        at_a_time: usize,
        kind: Kind,
    ) -> Result<Answer> {
        let mut answer = Answer::default();
        let (targets, dialect) = (self.targets.clone(), self.dialect.clone());
        let mut sign_ins = futures_util::stream::iter(users)
            .map(|user| {
                let (target, hello) = (pick_target(&targets), dialect.hello(user));
                async move {
                    let link = target.sign_in(&hello?, kind == Kind::Slow).await;
                    anyhow::Ok((user, link))
                }
            })
            .buffer_unordered(at_a_time);
        while let Some(sign_in) = sign_ins.next().await {
            match sign_in? {
                (user, Ok(link)) => {
                    answer.connected += 1;
                    // Hold at once: connecting the others may take longer than a server waits for a
                    // heartbeat.
                    match kind {
                        Kind::Idle => self.hold(user, link),
                        Kind::Slow => drop(self.slow.spawn(link.ignore())),
                    }
                }
                (_, Err(loss)) => answer.fail(loss),
            }
        }
        Ok(answer)
    }

    async fn cycle(&self, first: u64, users: u64, times: u64) -> Result<Answer> {
        ensure!(users > 0, "nobody is to come and go");
        let mut answer = Answer::default();
        let rounds = (0..times).map(|time| first + time % users);
        let mut cycles = futures_util::stream::iter(rounds)
            .map(|user| {
                let (target, hello) = (pick_target(&self.targets), self.dialect.hello(user));
                async move { anyhow::Ok(target.sign_in(&hello?, false).await.map(drop)) }
            })
            .buffer_unordered(usize::try_from(users.min(64))?);
        while let Some(cycle) = cycles.next().await {
            match cycle? {
                Ok(()) => answer.connected += 1,
                Err(lost) => answer.fail(lost),
            }
        }
        Ok(answer)
    }

    /// Disconnects all, who come back by the client's rules.
    async fn herd(&mut self) -> Result<Answer> {
        let start = Instant::now();
        let end = start + HERD_TIMEOUT;
        self.cut();
        let mut lost_connections = std::mem::take(&mut self.connections);
        let mut returns = JoinSet::new();
        let mut answer = Answer::default();
        loop {
            tokio::select! {
                biased;
                Some(result) = lost_connections.join_next() => {
                    let (user, loss) = result?;
                    let hello = self.dialect.hello(user)?;
                    let hint = loss.as_ref().and_then(LinkLoss::hint);
                    let target = self.targets.clone();
                    returns.spawn(come_back(user, target, hello.to_vec(), hint, self.limits.clone()));
                }
                Some(came) = returns.join_next() => {
                    let (user, link, failures) = came?;
                    answer
                        .back_ms
                        .push(start.elapsed().as_millis() as u32);
                    answer.count_tries(failures);
                    answer.connected += 1;
                    self.hold(user, link);
                }
                // The caller counts the missing ones.
                () = sleep_until(end), if !(lost_connections.is_empty() && returns.is_empty()) => break,
                else => break,
            }
        }
        let client_count = answer.back_ms.len() + lost_connections.len() + returns.len();
        answer
            .back_ms
            .resize(client_count, HERD_TIMEOUT.as_millis() as u32);
        Ok(answer)
    }
}

fn pick_target(targets: &[ConnectTarget]) -> &ConnectTarget {
    &targets[random::<u64>() as usize % targets.len()]
}

/// Retries until admitted. Returns the failures before that, by kind.
async fn come_back(
    user: u64,
    targets: Vec<ConnectTarget>,
    hello: Vec<u8>,
    mut hint: Option<Duration>,
    limits: Limits,
) -> (u64, Link, BTreeMap<String, u64>) {
    let mut failures = BTreeMap::new();
    let mut tries = 0;
    loop {
        sleep(reconnect_pause(tries, hint, random(), &limits)).await;
        match pick_target(&targets).sign_in(&hello, false).await {
            Ok(link) => return (user, link, failures),
            Err(lost) => {
                hint = lost.hint();
                *failures.entry(lost.kind()).or_default() += 1;
                tries += 1;
            }
        }
    }
}
