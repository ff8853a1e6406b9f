//! The boat's door: connections that stay, come, go all at once, come back all at once, or do not
//! read, each compared with a bare accept, or others' experience before and during.

mod bare;
mod certificate;
mod chat;
mod clients;
mod connects;
mod crowd;
mod herd;
mod killed;
mod link;
mod metrics;
mod orders;
mod redis;
mod report;
mod slow;
mod storm;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use backend::tls::CertificateFiles;
use clap::{Args, ValueEnum};
use serde::Serialize;
use server::cli::{Output, seconds, whole};
use server::settings::Settings;
use tokio::time::sleep;

pub(super) use self::bare::BareAccept;
pub(super) use self::clients::EdgeClients;
use self::crowd::{Crowd, Users};
use self::orders::{Answer, Kind};
use self::report::Report;
use super::dialect::Dialect;
use super::installation::Installation;
use super::{COUNTS, Place, ROUNDS};
use crate::numbers::{long, rate};

/// First number of a crowd's users; users who chat have lower ones.
const FIRST_OF_CROWD: u64 = 1_000_000;

#[derive(Clone, Debug, Args)]
pub(super) struct Edge {
    /// Parts to run; all if none is named.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Connections that stay, come, go or come back at a time.
    #[arg(long, default_value_t = 10_000, value_parser = whole::<u64>(COUNTS))]
    connections: u64,
    /// Connections that come and go, one after the other.
    #[arg(long, default_value_t = 100_000, value_parser = whole::<u64>(COUNTS))]
    cycles: u64,
    /// Clients that do not read.
    #[arg(long, default_value_t = 5_000, value_parser = whole::<u64>(COUNTS))]
    slow: u64,
    /// Memory limit of the server for the slow clients, in bytes (`boat.memory_max`).
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = whole::<u64>(1..=1 << 50))]
    memory_max: u64,
    /// Pairs of users who chat during a herd, and beside slow readers.
    #[arg(long, default_value_t = 100, value_parser = whole::<u64>(COUNTS))]
    pairs: u64,
    /// Messages per second of these pairs.
    #[arg(long, default_value_t = 500.0, value_parser = rate)]
    rate: f64,
    /// Time of the chat before, as the baseline.
    #[arg(long, value_name = "SECONDS", default_value = "8", value_parser = long)]
    seconds: Duration,
    /// Rest of a server before and after a measurement.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    settle: Duration,
    /// Rounds of server and bare accept in `connect`; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = whole::<usize>(ROUNDS))]
    rounds: usize,
    /// Keep the server's data in memory.
    #[arg(long, conflicts_with = "boats")]
    memory: bool,
    /// Run this many boats, a station, a carrier and a horn as processes of their own, on the real
    /// parts of the settings file, instead of everything in one process (run `topics apply` and
    /// `schema apply` before).
    #[arg(long, value_parser = whole::<usize>(1..=1000))]
    boats: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// Memory of connections that stay.
    Idle,
    /// Rate and CPU of sign-ins.
    Connect,
    /// Memory after many connections came and went.
    Cycles,
    /// All connections end in one moment.
    Storm,
    /// All boats are killed; with `--boats` only.
    Killed,
    /// All clients come back.
    Herd,
    /// Clients that do not read, beside others who chat.
    Slow,
}

impl Part {
    const ALL: [Part; 7] = [
        Part::Idle,
        Part::Connect,
        Part::Cycles,
        Part::Storm,
        Part::Killed,
        Part::Herd,
        Part::Slow,
    ];

    fn name(self) -> &'static str {
        match self {
            Part::Idle => "idle",
            Part::Connect => "connect",
            Part::Cycles => "cycles",
            Part::Storm => "storm",
            Part::Killed => "killed",
            Part::Herd => "herd",
            Part::Slow => "slow",
        }
    }
}

/// Transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Plain,
    Tls,
}

impl Door {
    const BOTH: [Door; 2] = [Door::Plain, Door::Tls];

    fn name(self) -> &'static str {
        match self {
            Door::Plain => "plain",
            Door::Tls => "TLS",
        }
    }
}

/// State that all parts share.
struct Run<'a> {
    args: &'a Edge,
    place: &'a Place<'a>,
    dialect: Dialect,
    certificate: CertificateFiles,
    /// Redis servers of the real parts.
    redis: Vec<String>,
    report: Report,
}

impl Edge {
    pub(super) async fn run(
        &self,
        place: &Place<'_>,
        settings: &Settings,
        output: Output,
    ) -> Result<ExitCode> {
        let mut run = Run {
            args: self,
            place,
            dialect: Dialect::packetboat(settings),
            certificate: certificate::make(place.data)?,
            redis: settings.redis.addresses.clone(),
            report: Report::default(),
        };
        for part in Part::ALL {
            let is_asked_for = if self.parts.is_empty() {
                part != Part::Killed || self.boats.is_some()
            } else {
                self.parts.contains(&part)
            };
            if is_asked_for {
                run.measure(part).await.with_context(|| part.name())?;
            }
        }
        run.report.print(output)?;
        Ok(if run.report.is_clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl Run<'_> {
    async fn measure(&mut self, part: Part) -> Result<()> {
        match part {
            Part::Idle => connects::idle(self).await,
            Part::Connect => connects::connect(self).await,
            Part::Cycles => connects::cycles(self).await,
            Part::Storm => storm::storm(self).await,
            Part::Killed => killed::killed(self).await,
            Part::Herd => herd::herd(self).await,
            Part::Slow => slow::slow(self).await,
        }
    }

    /// Starts a new server with everything in it.
    fn server(&self, door: Door, more: &[(&'static str, String)]) -> Result<Installation> {
        let mut settings = more.to_vec();
        if door == Door::Tls {
            let certificates = self.certificate.setting();
            settings.push(("PACKETBOAT_BOAT__TLS__CERTIFICATES", certificates));
        }
        if let Some(boats) = self.args.boats {
            let config = self.place.config.context("--boats needs --config")?;
            return Installation::fleet(config, boats, &settings);
        }
        if self.args.memory {
            let arguments = ["packetboat", "all", "--memory", "--output", "json"];
            return Installation::all(&arguments, &settings);
        }
        let folder = tempfile::tempdir_in(self.place.data).context("making a data folder")?;
        let folder = folder.keep();
        let folder = folder.to_str().context("a folder name that is text")?;
        let arguments = ["packetboat", "all", "--data", folder, "--output", "json"];
        Installation::all(&arguments, &settings)
    }

    /// Starts as many new bare servers as there are boats.
    fn bare(&self, door: Door) -> Result<Installation> {
        let text = |path: &Path| path.to_str().map(str::to_owned);
        let CertificateFiles {
            cert_file,
            key_file,
        } = &self.certificate;
        let files = text(cert_file).zip(text(key_file));
        let (cert_file, key_file) = files.context("a folder name that is text")?;
        let config = self.place.config.and_then(Path::to_str);
        let config: Vec<_> = config.iter().flat_map(|file| ["--config", file]).collect();
        let plain = [&config[..], &["bare-accept"]].concat();
        let tls = ["--cert-file", &cert_file, "--key-file", &key_file];
        let count = self.args.boats.unwrap_or(1);
        match door {
            Door::Plain => Installation::bare(&plain, count),
            Door::Tls => Installation::bare(&[&plain[..], &tls].concat(), count),
        }
    }

    /// Starts clients of `server` in processes of their own, none of them connected yet.
    async fn crowd(&self, server: &Installation, first: u64, count: u64) -> Result<Crowd> {
        let urls = server.websockets();
        let is_secure = urls.iter().any(|url| url.starts_with("wss://"));
        let ca_file = is_secure.then_some(self.certificate.cert_file.as_path());
        let users = Users {
            first: FIRST_OF_CROWD + first,
            count,
        };
        Crowd::start(self.place.config, &urls, ca_file, users).await
    }

    /// Like `crowd`, with all clients connected.
    async fn connect_crowd(
        &mut self,
        server: &Installation,
        first: u64,
        count: u64,
    ) -> Result<Crowd> {
        let mut crowd = self.crowd(server, first, count).await?;
        let answer = crowd.connect(Kind::Idle).await?;
        self.count(&answer);
        Ok(crowd)
    }

    /// Waits until ongoing work is over.
    async fn settle(&self) {
        sleep(self.args.settle).await;
    }

    fn count(&mut self, answer: &Answer) {
        self.report.fail(answer.failed, answer.why.clone());
    }
}
