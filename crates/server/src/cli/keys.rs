//! `packetboat keys`: creates and rotates the keys of session tickets.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use backend::clock::SystemEntropy;
use clap::{Args, Subcommand};
use protocol::ticket::KeyFile;
use station::tickets::random_key;

use super::certs::write;
use super::terminal::outln;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat keys new ticket.keys
  packetboat keys new ticket.keys && packetboat keys promote ticket.keys && packetboat keys retire ticket.keys

The file is the same for all stations, and they read it again within ten seconds. Between the steps of a rotation wait
until every station has the new file; before the last one, 25 minutes: sessions have tickets of the new key by then.")]
pub struct KeysArgs {
    #[command(subcommand)]
    verb: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Create a file with one key, or add a verify-only key to an existing file.
    New(File),
    /// Let the newest key sign.
    Promote(File),
    /// Drop all keys but the signing one.
    Retire(File),
}

#[derive(Debug, Args)]
struct File {
    /// File of keys (settings: station.tickets.keys_file). Its holder can impersonate every user.
    #[arg(value_name = "FILE")]
    path: PathBuf,
}

impl KeysArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        match self.verb {
            KeysCommand::New(file) => file.add()?,
            KeysCommand::Promote(file) => file.promote()?,
            KeysCommand::Retire(file) => file.retire()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl File {
    fn add(&self) -> Result<()> {
        let key = random_key(&SystemEntropy);
        if !self.path.exists() {
            let [id, ..] = random_key(&SystemEntropy);
            self.save(&KeyFile::new(id, key))?;
            outln!("{}: created with one signing key", self.path.display())?;
            return Ok(());
        }
        let mut keys = self.keys()?;
        let id = keys.add(key).context("no key added")?;
        self.save(&keys)?;
        outln!(
            "{}: added key {id}, which verifies but does not sign yet",
            self.path.display()
        )?;
        Ok(())
    }

    fn promote(&self) -> Result<()> {
        let mut keys = self.keys()?;
        if keys.len() < 2 {
            bail!(
                "{} has only one key: add another with packetboat keys new",
                self.path.display()
            );
        }
        let id = keys.promote().context("no keys")?;
        self.save(&keys)?;
        outln!("{}: key {id} now signs", self.path.display())?;
        Ok(())
    }

    fn retire(&self) -> Result<()> {
        let mut keys = self.keys()?;
        let retired_ids: Vec<String> = keys.retire().iter().map(u8::to_string).collect();
        self.save(&keys)?;
        if retired_ids.is_empty() {
            outln!("{}: nothing to retire", self.path.display())?
        } else {
            outln!(
                "{}: retired {}",
                self.path.display(),
                retired_ids.join(", ")
            )?
        }
        Ok(())
    }

    fn keys(&self) -> Result<KeyFile> {
        let text = std::fs::read_to_string(&self.path)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        KeyFile::parse(&text)
            .with_context(|| format!("{} is not a ticket key file", self.path.display()))
    }

    fn save(&self, keys: &KeyFile) -> Result<()> {
        let folder = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => ".".as_ref(),
        };
        let result = write(folder, &self.path, &keys.to_text(), false);
        result.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_made_and_rotated_for_its_owners_eyes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ticket.keys");
        let file = File { path: path.clone() };
        assert!(file.promote().is_err(), "there is none");
        file.add().expect("made");
        assert!(file.promote().is_err(), "one only");
        let first = file.keys().expect("keys");
        assert_eq!(first.len(), 1);
        file.add().expect("added");
        file.promote().expect("the second");
        file.retire().expect("the first");
        let second = file.keys().expect("keys");
        assert_eq!(second.len(), 1);
        assert_ne!(first, second);
        file.retire().expect("nothing to do");
        let mode = std::fs::metadata(&path).expect("a file").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);

        std::fs::write(&path, "something else\n").expect("written");
        assert!(file.add().is_err(), "what is no file of keys is left alone");
        let text = std::fs::read_to_string(&path).expect("text");
        assert_eq!(text, "something else\n");
    }
}
