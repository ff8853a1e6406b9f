//! `packetboat dlq export` and `import`.

use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use operator::answer::Page;
use operator::dead_letters::routes::{ExportQuestion, ImportQuestion, ListQuestion};
use operator::dead_letters::{ImportResult, LetterPackage};

use super::selection::Filters;
use super::{LETTERS, show, tables};
use crate::cli::Output;
use crate::cli::desk::Desk;
use crate::cli::terminal::outln;

/// Letters of one call, and approximately their bytes.
const CALL: (usize, usize) = (100, 4 << 20);

#[derive(Clone, Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    filters: Filters,
    /// Reason; required if operators sign in. Exports are recorded with it.
    #[arg(long, default_value = "")]
    why: String,
}

impl Export {
    pub(super) async fn run(self, desk: &Desk) -> Result<ExitCode> {
        let (list, mut cursor) = (self.filters.question(), None);
        loop {
            let question = ExportQuestion {
                list: ListQuestion {
                    after: cursor,
                    ..list.clone()
                },
                why: self.why.clone(),
            };
            let package: Page<LetterPackage> =
                desk.post(&format!("{LETTERS}/export"), &question).await?;
            for letter in &package.items {
                outln!("{}", serde_json::to_string(letter)?)?;
            }
            cursor = package.next;
            if cursor.is_none() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(super) struct Import {
    /// File with the output of `export`.
    file: PathBuf,
    /// Reason, recorded with the import.
    #[arg(long, default_value = "")]
    why: String,
}

impl Import {
    pub(super) async fn run(self, desk: &Desk, output: Output) -> Result<ExitCode> {
        let file = std::fs::File::open(&self.file);
        let file = file.with_context(|| format!("opening {}", self.file.display()))?;
        let (mut sum, mut letters, mut bytes) = (ImportResult::default(), Vec::new(), 0);
        for (number, line) in (1..).zip(std::io::BufReader::new(file).lines()) {
            let line = line.with_context(|| format!("reading {}", self.file.display()))?;
            let letter: LetterPackage = serde_json::from_str(&line)
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

    async fn send(
        &self,
        desk: &Desk,
        letters: Vec<LetterPackage>,
        sum: &mut ImportResult,
    ) -> Result<()> {
        if letters.is_empty() {
            return Ok(());
        }
        let question = ImportQuestion {
            letters,
            why: self.why.clone(),
        };
        let result: ImportResult = desk.post(&format!("{LETTERS}/import"), &question).await?;
        sum.imported.extend(result.imported);
        sum.present.extend(result.present);
        sum.refused.extend(result.refused);
        Ok(())
    }
}
