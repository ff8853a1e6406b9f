//! Cost of the ledger: the same load on a server with a ledger, and on one whose ledger keeps
//! nothing, in turn.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use async_trait::async_trait;
use backend::Backends;
use backend::ledger::LedgerStore;
use clap::Args;
use protocol::MessageId;
use protocol::ledger::LedgerEntry;
use serde::Serialize;
use server::cli::{Cli, Command, Output, run_around, whole};
use server::compose::Around;
use server::settings::Settings;
use server::{errln, outln};

use super::dialect::Dialect;
use super::installation::Installation;
use super::load::{self, LoadPace};
use super::{LoadArgs, ROUNDS};

#[derive(Clone, Debug, Args)]
pub(super) struct Ledger {
    #[command(flatten)]
    load: LoadArgs,
    /// Rounds, each with and without the ledger.
    #[arg(long, default_value_t = 5, value_parser = whole::<usize>(ROUNDS))]
    rounds: usize,
}

/// Runs a command whose services keep no ledger: traces and audits find nothing there.
pub(super) fn run_without_ledger(cli: Cli) -> Result<ExitCode> {
    if !matches!(cli.command, Command::All(_)) {
        bail!("only `all`, and never on data that anybody needs");
    }
    run_around(cli, &NoLedger)
}

struct NoLedger;

impl Around for NoLedger {
    fn backends(&self, inner: Backends) -> Backends {
        Backends {
            ledger: Arc::new(Forgetful),
            ..inner
        }
    }
}

struct Forgetful;

#[async_trait]
impl LedgerStore for Forgetful {
    async fn append(&self, _: Vec<LedgerEntry>) -> backend::Result<()> {
        Ok(())
    }

    async fn trace(&self, messages: &[MessageId]) -> backend::Result<Vec<Vec<LedgerEntry>>> {
        Ok(vec![Vec::new(); messages.len()])
    }

    async fn forget(&self, _: MessageId, _: usize) -> backend::Result<usize> {
        Ok(0)
    }
}

/// CPU per message at saturation, in microseconds, round by round.
#[derive(Debug, Default, Serialize)]
struct LedgerCost {
    with: Vec<f64>,
    without: Vec<f64>,
    /// The ledger's share of the whole, in percent: the median of the rounds.
    share: f64,
    clean: bool,
}

impl Ledger {
    pub(super) async fn run(
        self,
        settings: &Settings,
        data: &Path,
        output: Output,
    ) -> Result<ExitCode> {
        let mut cost = LedgerCost {
            clean: true,
            ..LedgerCost::default()
        };
        let mut shares = Vec::new();
        for round in 1..=self.rounds {
            let with = self
                .one(settings, data, "packetboat", &mut cost.clean)
                .await?;
            let without = self
                .one(settings, data, "without-ledger", &mut cost.clean)
                .await?;
            errln!("round {round}: {with:.1} µs with the ledger, {without:.1} without");
            cost.with.push(with);
            cost.without.push(without);
            shares.push((with - without) / with * 100.0);
        }
        shares.sort_by(f64::total_cmp);
        cost.share = shares.get(shares.len() / 2).copied().unwrap_or_default();
        match output {
            Output::Json => outln!("{}", serde_json::to_string(&cost)?)?,
            Output::Table => outln!(
                "the ledger takes {:.1} % of the CPU of a message (rounds: {:.1} to {:.1})",
                cost.share,
                shares.first().copied().unwrap_or_default(),
                shares.last().copied().unwrap_or_default(),
            )?,
        }
        Ok(if cost.clean {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    async fn one(
        &self,
        settings: &Settings,
        data: &Path,
        program: &str,
        clean: &mut bool,
    ) -> Result<f64> {
        let server = Installation::embedded(data, program)?;
        let load = self.load.at(LoadPace::Closed);
        let result = load::run(&server, &[], &Dialect::packetboat(settings).anew(), load).await?;
        let sum = &result.sum;
        *clean &= sum.faults() == 0;
        Ok(result.cpu_us())
    }
}
