//! `packetboat repair`: makes a directory of data open again whose journal lost something.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use backend::embedded::{Engine, JournalDamage};
use clap::Args;

use super::terminal::{errln, outln};
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat repair --data /var/lib/packetboat
  packetboat repair --data /var/lib/packetboat --yes

Restoring a backup is better: everything after the damage is lost, accepted messages included.")]
pub struct Repair {
    /// Data directory, not in use by any process (settings: embedded.data).
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Cut the journal to the part before the damage. Without it, the command says what would be
    /// lost, and changes nothing.
    #[arg(long)]
    yes: bool,
}

impl Repair {
    pub(super) fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let data = match self.data {
            Some(data) => data,
            None => Settings::load(config)?.embedded.data,
        };
        let outcome = if self.yes {
            Engine::repair(&data)?
        } else {
            Engine::examine(&data)?
        };
        let Some(damage) = outcome else {
            outln!("{}: the journals are intact", data.display())?;
            return Ok(ExitCode::SUCCESS);
        };
        outln!("{}", damage.summary)?;
        if self.yes {
            for copy in &damage.copies {
                outln!("backed up to {}", copy.display())?;
            }
            errln!("packetboat: ERROR {}", sum(&damage, "are lost"));
            return Ok(ExitCode::SUCCESS);
        }
        outln!("{}", sum(&damage, "would be lost"))?;
        outln!(
            "Restore a backup of the directory, or truncate the journal there with --yes (a copy is kept)."
        )?;
        Ok(ExitCode::FAILURE)
    }
}

fn sum(damage: &JournalDamage, verb: &str) -> String {
    let JournalDamage {
        readable,
        unreachable,
        bytes,
        ..
    } = damage;
    format!(
        "{readable} records before the damage are kept; {bytes} bytes after it {verb}, including \
         {unreachable} intact records and the accepted messages in them"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use backend::embedded::{EngineOptions, Table, WriteBatch};

    use super::*;

    fn code(data: &Path, yes: bool) -> ExitCode {
        let data = Some(data.to_owned());
        Repair { data, yes }.run(None).expect("an answer")
    }

    #[test]
    fn damage_is_named_first_and_cut_only_when_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let open = || Engine::open(dir.path(), EngineOptions::default());
        let engine = open().expect("a store");
        for key in 0..20u8 {
            let mut batch = WriteBatch::new();
            batch.put(Table::Log, vec![key], vec![key; 500]);
            engine.write(batch).expect("written");
        }
        let data = Some(dir.path().to_owned());
        let refusal = Repair { data, yes: true }.run(None).expect_err("in use");
        assert!(format!("{refusal:#}").contains("another packetboat is using"));
        drop(engine);
        for yes in [false, true] {
            assert_eq!(code(dir.path(), yes), ExitCode::SUCCESS, "nothing to do");
        }
        let path = dir.path().join("0.jnl");
        let journal = std::fs::File::options().write(true).open(&path);
        let journal = journal.expect("a journal");
        journal.write_all_at(&[0; 4096], 4096).expect("damaged");
        let damaged_bytes = std::fs::read(&path).expect("its bytes");
        assert_eq!(code(dir.path(), false), ExitCode::FAILURE);
        assert_eq!(std::fs::read(&path).expect("its bytes"), damaged_bytes);
        assert!(open().is_err());
        assert_eq!(code(dir.path(), true), ExitCode::SUCCESS);
        let copy = std::fs::read(dir.path().join("0.jnl.damaged"));
        assert_eq!(copy.expect("a copy"), damaged_bytes);
        let rows = open().expect("a store").range(
            Table::Log,
            ..,
            backend::embedded::ScanOrder::Forward,
            99,
        );
        let rows = rows.expect("rows").len();
        assert!((1..20).contains(&rows), "{rows}");
    }
}
