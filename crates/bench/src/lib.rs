//! Load generator: starts the server under test and the floor as processes of their own, drives
//! both with the same load in one run, and prints ratios.

mod dialect;
mod edge;
mod floor;
mod group;
mod groups;
mod installation;
mod ledger;
mod load;
mod numbers;
mod pages;
mod process;
mod report;
mod sign_in;
mod steady;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use server::cli::{self, Cli, Output, whole};
use server::errln;
use server::settings::Settings;

use self::dialect::Dialect;
use self::installation::{Also, Installation};
use self::load::{Load, LoadPace};
use self::numbers::{long, rate};
use self::report::{Chat, Idle, Report};

/// Concurrent sign-ins while a load is set up.
const SIGN_INS: usize = 64;

/// Users, connections or messages that a bench may be asked for.
const COUNTS: RangeInclusive<u64> = 1..=1_000_000_000;
const BODY_BYTES: RangeInclusive<u64> = 0..=(16 << 20);
const ROUNDS: RangeInclusive<u64> = 1..=1_000_000;

/// Measure connections, chats, groups and pages, against a bare floor.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Examples:
  bench idle --connections 10000
  bench chat --pairs 1000 --seconds 10 --output json
  bench edge connect herd --connections 18000
  bench steady --pairs 100 --rate 200 --seconds 60"
)]
pub struct Bench {
    #[command(subcommand)]
    what: BenchCommand,

    /// Settings file (TOML). Also: environment PACKETBOAT_SECTION__KEY, which wins over the file.
    #[arg(long, global = true, env = "PACKETBOAT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Data folder of server and floor; the same disk for both. Default: a folder in the working
    /// directory, removed at the end.
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,

    #[arg(long, global = true, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure the memory of idle WebSocket connections.
    Idle {
        #[arg(long, default_value_t = 10_000, value_parser = whole::<u64>(COUNTS))]
        connections: u64,
    },
    /// Measure a durable private chat, at saturation and at half that rate, beside the floor.
    Chat(ChatArgs),
    /// Run a constant private chat against a running installation: is anything lost or shown twice?
    Steady(steady::Steady),
    /// Measure a group whose members are all online: CPU per delivery, and time to the last member.
    Group(group::Group),
    /// Measure the cost of the ledger: a private chat at saturation, with and without, in turn.
    Ledger(ledger::Ledger),
    /// Measure the cost of a history page at 1,000 and at 1,000,000 stored messages.
    Pages(pages::Pages),
    /// Measure the boat's door: connections that stay, come, go, come back at once or do not read.
    Edge(edge::Edge),
    /// Run idle, then chat.
    All(ChatArgs),
    /// Serve as a bare accept: check a token, and answer (used by the others).
    #[command(hide = true)]
    BareAccept(edge::BareAccept),
    /// Run clients in a process of their own (used by the others).
    #[command(hide = true)]
    EdgeClients(edge::EdgeClients),
    /// Serve as the floor alone (used by the others).
    #[command(hide = true)]
    FloorServer(floor::FloorServer),
    /// Run a command of `packetboat` (used by the others).
    #[command(hide = true)]
    Packetboat(ProgramArguments),
    /// Run a server whose ledger keeps nothing (used by the others).
    #[command(hide = true)]
    WithoutLedger(ProgramArguments),
}

/// Messages between pairs of users.
#[derive(Clone, Debug, Args)]
struct LoadArgs {
    /// Pairs of users, one sending and one receiving.
    #[arg(long, default_value_t = 1000, value_parser = whole::<u64>(COUNTS))]
    pairs: u64,
    /// Measured time of each run, after a warm-up of a third of it.
    #[arg(long, default_value = "10", value_parser = long)]
    seconds: Duration,
    /// Size of a message's body.
    #[arg(long, default_value_t = 200, value_parser = whole::<usize>(BODY_BYTES))]
    bytes: usize,
}

impl LoadArgs {
    fn at(&self, pace: LoadPace) -> Load {
        Load {
            pairs: self.pairs,
            body_bytes: self.bytes,
            pace,
            warm_up: self.seconds / 3,
            duration: self.seconds,
        }
    }
}

#[derive(Clone, Debug, Args)]
struct ChatArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Messages per second on both sides, instead of half of each side's own saturated rate.
    #[arg(long, value_name = "MESSAGES", value_parser = rate)]
    rate: Option<f64>,
    /// Rounds of floor and server; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = whole::<usize>(ROUNDS))]
    rounds: usize,
    /// Run boat, station, carrier and horn as processes of their own, on the real parts of the
    /// settings file, instead of everything in one process (run `topics apply` and `schema apply`
    /// before).
    #[arg(long)]
    real: bool,
    /// Also report the CPU time of this process (a broker, say); several may share one name.
    #[arg(long, value_name = "NAME=PID")]
    also: Vec<Also>,
}

/// Command line of `packetboat`.
#[derive(Clone, Debug, Args)]
struct ProgramArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl ProgramArguments {
    fn parse(self) -> Cli {
        let program = std::iter::once("packetboat".to_owned());
        Cli::parse_from(program.chain(self.arguments))
    }
}

impl Bench {
    /// Runs one command to its end.
    pub fn run(self) -> Result<ExitCode> {
        cli::check_environment()?;
        let config = self.config.as_deref();
        match self.what {
            BenchCommand::FloorServer(floor) => return floor.run(),
            BenchCommand::Packetboat(arguments) => return cli::run(arguments.parse()),
            BenchCommand::WithoutLedger(arguments) => {
                return ledger::run_without_ledger(arguments.parse());
            }
            BenchCommand::Steady(steady) => {
                rlimit::increase_nofile_limit(u64::MAX)
                    .context("raising the limit of open files")?;
                return runtime()?.block_on(steady.run(config, self.output));
            }
            BenchCommand::BareAccept(bare) => {
                rlimit::increase_nofile_limit(u64::MAX)
                    .context("raising the limit of open files")?;
                let settings = Settings::load(config)?;
                return runtime()?.block_on(bare.run(&settings));
            }
            BenchCommand::EdgeClients(clients) => {
                rlimit::increase_nofile_limit(u64::MAX)
                    .context("raising the limit of open files")?;
                return runtime()?.block_on(clients.run(config));
            }
            BenchCommand::Idle { .. }
            | BenchCommand::Chat(_)
            | BenchCommand::All(_)
            | BenchCommand::Ledger(_)
            | BenchCommand::Pages(_)
            | BenchCommand::Group(_)
            | BenchCommand::Edge(_) => {}
        }
        let settings = Settings::load(config)?;
        rlimit::increase_nofile_limit(u64::MAX).context("raising the limit of open files")?;
        let data = match &self.data {
            Some(dir) => tempfile::tempdir_in(dir),
            None => tempfile::tempdir_in("."),
        }
        .context("making a folder for the data")?;
        let place = Place {
            data: data.path(),
            config,
        };
        if let BenchCommand::Ledger(ledger) = &self.what {
            let run = ledger.clone().run(&settings, data.path(), self.output);
            return runtime()?.block_on(run);
        }
        if let BenchCommand::Pages(pages) = &self.what {
            let run = pages.clone().run(&settings, data.path(), self.output);
            return runtime()?.block_on(run);
        }
        if let BenchCommand::Group(group) = &self.what {
            return runtime()?.block_on(group.run(&place, &settings, self.output));
        }
        if let BenchCommand::Edge(edge) = self.what {
            return runtime()?.block_on(edge.run(&place, &settings, self.output));
        }
        let report = runtime()?.block_on(async {
            let mut report = Report::default();
            match self.what {
                BenchCommand::Idle { connections } => {
                    report.idle = Some(idle(&settings, data.path(), connections).await?);
                }
                BenchCommand::Chat(args) => {
                    report.chat = Some(chat(&place, &settings, args).await?)
                }
                BenchCommand::All(args) => {
                    report.idle = Some(idle(&settings, data.path(), 10_000).await?);
                    report.chat = Some(chat(&place, &settings, args).await?);
                }
                BenchCommand::FloorServer(_)
                | BenchCommand::BareAccept(_)
                | BenchCommand::EdgeClients(_)
                | BenchCommand::Edge(_)
                | BenchCommand::Group(_)
                | BenchCommand::Packetboat(_)
                | BenchCommand::WithoutLedger(_)
                | BenchCommand::Steady(_)
                | BenchCommand::Ledger(_)
                | BenchCommand::Pages(_) => {}
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

/// Measures resident memory before and after `connections` sign-ins.
async fn idle(settings: &Settings, data: &Path, connections: u64) -> Result<Idle> {
    let server = Installation::embedded(data, "packetboat")?;
    let dialect = Dialect::packetboat(settings);
    // Warm-up: threads, tables and caches of the first connections are not charged to later ones.
    let first = sign_in::sign_in_all(&server.websocket, &dialect, 100).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (resident_before, cpu) = (server.resident()?, server.cpu()?);
    let sockets = sign_in::sign_in_all(&server.websocket, &dialect, 100 + connections).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let cpu = installation::between(&cpu, &server.cpu()?);
    let cpu: Duration = cpu.values().sum();
    let result = Idle {
        connections,
        bytes_each: (server.resident()?.saturating_sub(resident_before)) / connections,
        sign_in_cpu_us: cpu.as_secs_f64() * 1e6 / connections as f64,
    };
    drop((first, sockets));
    Ok(result)
}

/// Data folder and settings file with which floor and server are started.
struct Place<'a> {
    data: &'a Path,
    config: Option<&'a Path>,
}

/// Measures floor and server in turn: at saturation, then at half of each one's own rate.
async fn chat(place: &Place<'_>, settings: &Settings, args: ChatArgs) -> Result<Chat> {
    let packetboat = Dialect::packetboat(settings);
    let mut chat = Chat {
        pairs: args.load.pairs,
        body_bytes: args.load.bytes,
        ..Chat::default()
    };
    for round in 1..=args.rounds {
        for side in [&Dialect::Floor, &packetboat] {
            let full_load = one_run(side, place, &args, LoadPace::Closed).await?;
            let rate = args.rate.unwrap_or(full_load.rate / 2.0);
            ensure!(rate > 0.0, "no message was accepted at saturation");
            let half = LoadPace::Open { rate };
            let half = one_run(side, place, &args, half).await?;
            errln!(
                "round {round}, {}: {:.0} messages/s at {:.1} µs of CPU; half load p99 {:.2} ms",
                side.name(),
                full_load.rate,
                full_load.cpu_us(),
                half.latency.value_at_quantile(0.99) as f64 / 1000.0,
            );
            chat.side(side).add(full_load, half);
        }
    }
    Ok(chat)
}

async fn one_run(
    dialect: &Dialect,
    place: &Place<'_>,
    args: &ChatArgs,
    pace: LoadPace,
) -> Result<load::LoadResult> {
    let dialect = &dialect.anew();
    let (server, also) = match dialect {
        Dialect::Floor => (Installation::floor(place.data)?, [].as_slice()),
        Dialect::Packetboat { .. } if args.real => {
            let config = place.config.context("--real needs --config")?;
            (Installation::on_real_parts(config)?, args.also.as_slice())
        }
        Dialect::Packetboat { .. } => {
            let server = Installation::embedded(place.data, "packetboat")?;
            (server, args.also.as_slice())
        }
    };
    load::run(&server, also, dialect, args.load.at(pace)).await
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Bench::command().debug_assert();
    }
}
