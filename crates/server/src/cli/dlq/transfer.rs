//! `packetboat dlq export` and `import`.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use carrier::dead_letters::{Package, Packed, Unpacked};
use clap::Args;

use super::selection::Filters;
use super::{LETTERS, show, tables};
use crate::admin::letters::{ExportQuestion, ImportQuestion, ListQuestion};
use crate::cli::Output;
use crate::cli::desk::Desk;

/// Letters of one call, and their bytes, about.
const CALL: (usize, usize) = (100, 4 << 20);

#[derive(Clone, Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    filters: Filters,
    /// Why; needed where operators sign in. It is written down who took what.
    #[arg(long, default_value = "")]
    why: String,
}

impl Export {
    pub(super) async fn run(self, desk: &Desk) -> Result<ExitCode> {
        let mut output = std::io::stdout().lock();
        let (list, mut after) = (self.filters.question(), None);
        loop {
            let question = ExportQuestion {
                list: ListQuestion {
                    after,
                    ..list.clone()
                },
                why: self.why.clone(),
            };
            let package: Package = desk.post(&format!("{LETTERS}/export"), &question).await?;
            for letter in &package.letters {
                writeln!(output, "{}", serde_json::to_string(letter)?)?;
            }
            match package.next {
                Some(next) => after = Some(next.to_string()),
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(super) struct Import {
    /// What `export` printed.
    file: PathBuf,
    /// Why; it is written down.
    #[arg(long, default_value = "")]
    why: String,
}

impl Import {
    pub(super) async fn run(self, desk: &Desk, output: Output) -> Result<ExitCode> {
        let file = std::fs::File::open(&self.file);
        let file = file.with_context(|| format!("opening {}", self.file.display()))?;
        let (mut sum, mut letters, mut bytes) = (Unpacked::default(), Vec::new(), 0);
        for (number, line) in (1..).zip(std::io::BufReader::new(file).lines()) {
            let line = line.with_context(|| format!("reading {}", self.file.display()))?;
            let letter: Packed = serde_json::from_str(&line)
                .with_context(|| format!("line {number} of {}", self.file.display()))?;
            bytes += line.len();
            letters.push(letter);
            if letters.len() == CALL.0 || bytes >= CALL.1 {
                self.send(desk, std::mem::take(&mut letters), &mut sum)
                    .await?;
                bytes = 0;
            }
        }
        self.send(desk, letters, &mut sum).await?;
        show(output, &sum, tables::unpacked)
    }

    async fn send(&self, desk: &Desk, letters: Vec<Packed>, sum: &mut Unpacked) -> Result<()> {
        if letters.is_empty() {
            return Ok(());
        }
        let question = ImportQuestion {
            letters,
            why: self.why.clone(),
        };
        let unpacked: Unpacked = desk.post(&format!("{LETTERS}/import"), &question).await?;
        sum.taken.extend(unpacked.taken);
        sum.known.extend(unpacked.known);
        sum.refused.extend(unpacked.refused);
        Ok(())
    }
}
