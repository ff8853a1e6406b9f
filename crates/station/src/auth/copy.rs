//! The last good set of a URL in a file, for a station that starts while the provider is away: the time of day at which
//! it came, in milliseconds, on the first line, then the set.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use backend::files::digest;
use protocol::Timestamp;
use protocol::settings::Link;
use tempfile::NamedTempFile;

use super::KeyError;
use super::keys::{SET_BYTES_MAX, read_file};

/// Digits of a time, and the end of their line.
const DATE_BYTES_MAX: u64 = 20;

/// The file of one issuer's set.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    dir: PathBuf,
    path: PathBuf,
}

impl Copy {
    /// The name is a digest of issuer and URL: neither is a file's name, and another URL's keys are not of this one.
    ///
    /// # Errors
    /// The folder is something else.
    pub(super) fn new(dir: &Path, issuer: &str, url: &Link) -> Result<Copy, KeyError> {
        if dir.exists() && !dir.is_dir() {
            return Err(KeyError::File {
                path: dir.into(),
                reason: "it is no folder".into(),
            });
        }
        let digest = digest([issuer, url.expose()]);
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Copy {
            dir: dir.into(),
            path: dir.join(name).with_extension("jwks"),
        })
    }

    /// The set and the time at which it came, if there is a copy.
    pub(super) fn read(&self) -> Result<Option<(Timestamp, Vec<u8>)>, KeyError> {
        let content = match read_file(&self.path, DATE_BYTES_MAX + SET_BYTES_MAX) {
            Err(KeyError::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(None);
            }
            content => content?,
        };
        let copy = split(&content).ok_or_else(|| KeyError::File {
            path: self.path.clone(),
            reason: "it has no date".into(),
        });
        copy.map(Some)
    }

    /// Replaces the copy whole, or leaves it as it was.
    pub(super) fn write(&self, set: &[u8], now: Timestamp) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let mut file = NamedTempFile::new_in(&self.dir)?;
        writeln!(file, "{now}")?;
        file.write_all(set)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

fn split(content: &[u8]) -> Option<(Timestamp, Vec<u8>)> {
    let end = content.iter().position(|byte| *byte == b'\n')?;
    let (date, set) = content.split_at_checked(end)?;
    let millis = str::from_utf8(date).ok()?.parse().ok()?;
    let set = set.get(1..)?;
    Some((Timestamp::from_millis(millis), set.to_vec()))
}
