//! The load generator: starts the server under test and the floor as processes of their own, drives
//! both with the same load in one run, and prints ratios.

mod dialect;
mod floor;
mod load;
mod process;
mod report;
mod steady;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use self::dialect::Dialect;
use self::load::{Load, Pace};
use self::process::Server;
use self::report::{Chat, Idle, Report};
use super::Output;
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat bench idle --connections 10000
  packetboat bench chat --pairs 1000 --seconds 10 --output json
  packetboat bench steady --pairs 100 --rate 200 --seconds 60")]
pub struct Bench {
    #[command(subcommand)]
    what: What,

    /// Where server and floor keep their data; the same disk for both. Default: a folder in the
    /// working directory that is removed at the end.
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<std::path::PathBuf>,

    #[arg(long, global = true, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Memory of idle WebSocket connections.
    Idle {
        #[arg(long, default_value_t = 10_000)]
        connections: u64,
    },
    /// Private chat, durable: at saturation, then at half that rate; the floor beside it.
    Chat(ChatArgs),
    /// A constant private chat against a running installation: is anything lost or shown twice?
    Steady(steady::Steady),
    /// Both idle and chat.
    All(ChatArgs),
    /// The floor alone, as a server (used by the others).
    #[command(hide = true)]
    FloorServer(floor::FloorServer),
}

#[derive(Clone, Copy, Debug, Args)]
struct ChatArgs {
    /// Pairs of users, one sending and one receiving.
    #[arg(long, default_value_t = 1000)]
    pairs: u64,
    /// Measured time of each of the runs, after a warm-up of a third of it.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Size of a message's body.
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// Instead of half of each side's own saturated rate, this many messages a second on both.
    #[arg(long, value_name = "MESSAGES")]
    rate: Option<f64>,
    /// How often floor and server take turns; medians are reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

impl Bench {
    pub(super) fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        match self.what {
            What::FloorServer(floor) => return floor.run(),
            What::Steady(steady) => {
                rlimit::increase_nofile_limit(u64::MAX)
                    .context("raising the limit of open files")?;
                return runtime()?.block_on(steady.run(config, self.output));
            }
            What::Idle { .. } | What::Chat(_) | What::All(_) => {}
        }
        let settings = Settings::load(config)?;
        rlimit::increase_nofile_limit(u64::MAX).context("raising the limit of open files")?;
        let data = match &self.data {
            Some(dir) => tempfile::tempdir_in(dir),
            None => tempfile::tempdir_in("."),
        }
        .context("making a folder for the data")?;
        let report = runtime()?.block_on(async {
            let mut report = Report::default();
            match self.what {
                What::Idle { connections } => {
                    report.idle = Some(idle(&settings, data.path(), connections).await?);
                }
                What::Chat(args) => report.chat = Some(chat(&settings, data.path(), args).await?),
                What::All(args) => {
                    report.idle = Some(idle(&settings, data.path(), 10_000).await?);
                    report.chat = Some(chat(&settings, data.path(), args).await?);
                }
                What::FloorServer(_) | What::Steady(_) => {}
            }
            anyhow::Ok(report)
        })?;
        report.print(self.output)?;
        Ok(if report.is_clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(runtime)
}

/// Resident memory before and after `connections` sign-ins.
async fn idle(settings: &Settings, data: &Path, connections: u64) -> Result<Idle> {
    let server = start_packetboat(data)?;
    let dialect = Dialect::Packetboat {
        settings: Box::new(settings.clone()),
    };
    // What the first connections bring up (threads, tables, caches) is not theirs.
    let first = load::sign_in_all(&server.bound.websocket, &dialect, 100).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, cpu) = (server.resident()?, server.cpu()?);
    let sockets = load::sign_in_all(&server.bound.websocket, &dialect, 100 + connections).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let cpu = server.cpu()? - cpu;
    let found = Idle {
        connections,
        bytes_each: (server.resident()?.saturating_sub(before)) / connections,
        sign_in_cpu_us: cpu.as_secs_f64() * 1e6 / connections as f64,
    };
    drop((first, sockets));
    Ok(found)
}

/// Floor and server in turn: saturation, then half of each one's own rate.
async fn chat(settings: &Settings, data: &Path, args: ChatArgs) -> Result<Chat> {
    let packetboat = Dialect::Packetboat {
        settings: Box::new(settings.clone()),
    };
    let mut chat = Chat {
        pairs: args.pairs,
        body_bytes: args.bytes,
        ..Chat::default()
    };
    for round in 1..=args.rounds {
        for dialect in [&Dialect::Floor, &packetboat] {
            let saturated = one_run(dialect, data, args, Pace::Closed).await?;
            let half = Pace::Open {
                rate: args.rate.unwrap_or(saturated.rate / 2.0),
            };
            let half = one_run(dialect, data, args, half).await?;
            eprintln!(
                "round {round}, {}: {:.0} messages/s at {:.1} µs of CPU; half load p99 {:.2} ms",
                dialect.name(),
                saturated.rate,
                saturated.cpu_us,
                half.latency.value_at_quantile(0.99) as f64 / 1000.0,
            );
            chat.side(dialect).add(saturated, half);
        }
    }
    Ok(chat)
}

async fn one_run(
    dialect: &Dialect,
    data: &Path,
    args: ChatArgs,
    pace: Pace,
) -> Result<load::Found> {
    let server = match dialect {
        Dialect::Packetboat { .. } => start_packetboat(data)?,
        Dialect::Floor => {
            let data = data.to_str().context("a folder name that is text")?;
            Server::start(&["bench", "floor-server", "--data", data], &[])?
        }
    };
    let measured = Duration::from_secs(args.seconds);
    let load = Load {
        pairs: args.pairs,
        body_bytes: args.bytes,
        pace,
        warm_up: measured / 3,
        measured,
    };
    load::run(&server, dialect, load).await
}

/// A fresh installation on free ports.
fn start_packetboat(data: &Path) -> Result<Server> {
    let dir = tempfile::tempdir_in(data)
        .context("making a data folder")?
        .keep();
    let dir = dir.to_str().context("a folder name that is text")?;
    let free = || "127.0.0.1:0".to_owned();
    Server::start(
        &["all", "--data", dir, "--output", "json"],
        &[
            ("PACKETBOAT_BOAT__WEBSOCKET", free()),
            ("PACKETBOAT_BOAT__TCP", free()),
            ("PACKETBOAT_ADMIN__LISTEN", free()),
            ("PACKETBOAT_LOG__LEVEL", "warn".to_owned()),
            // A pair of the load is faster than a person may be.
            (
                "PACKETBOAT_STATION__USER_SENDS_PER_SECOND",
                "1000000".to_owned(),
            ),
            ("PACKETBOAT_STATION__USER_SENDS_BURST", "1000000".to_owned()),
        ],
    )
}
