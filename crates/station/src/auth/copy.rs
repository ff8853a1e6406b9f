//! Copy of the last good set of a URL in a file, for a station that starts while the provider is
//! away. Its first line is the time of day at which the set came, in milliseconds; the set follows.

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

/// File of one issuer's set.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    dir: PathBuf,
    path: PathBuf,
}

impl Copy {
    /// The name is a digest of issuer and URL: neither is fit for a file name, and another URL's
    /// keys are not this one's.
    ///
    /// # Errors
    /// The folder is something else.
    pub(super) fn new(dir: &Path, issuer: &str, url: &Link) -> Result<Copy, KeyError> {
        if dir.exists() && !dir.is_dir() {
            return Err(KeyError::File {
                path: dir.into(),
                reason: "not a directory".into(),
            });
        }
        let digest = digest([issuer, url.expose()]);
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Copy {
            dir: dir.into(),
            path: dir.join(name).with_extension("jwks"),
        })
    }

    /// Reads the set and the time at which it came, if there is a copy.
    pub(super) fn read(&self) -> Result<Option<(Timestamp, Vec<u8>)>, KeyError> {
        let content = match read_file(&self.path, DATE_BYTES_MAX + SET_BYTES_MAX) {
            Err(KeyError::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(None);
            }
            content => content?,
        };
        let copy = split(&content).ok_or_else(|| KeyError::File {
            path: self.path.clone(),
            reason: "it has no date line".into(),
        });
        copy.map(Some)
    }

    /// Replaces the copy as a whole. If that fails, a copy of other keys is removed: a withdrawn
    /// key would come back with the next start.
    ///
    /// # Errors
    /// The copy was not written; the text says what became of the old one.
    pub(super) fn write(&self, set: &[u8], now: Timestamp) -> io::Result<()> {
        let Err(error) = self.replace(set, now) else {
            return Ok(());
        };
        if matches!(self.read(), Ok(Some((_, old))) if old == set) {
            return Err(error);
        }
        let end = match fs::remove_file(&self.path) {
            Ok(()) => "the old copy was removed".to_owned(),
            Err(removal) if removal.kind() == ErrorKind::NotFound => "there is none".to_owned(),
            Err(removal) => format!(
                "the old copy cannot be removed either ({removal}), so withdrawn keys may come back: remove {}",
                self.path.display()
            ),
        };
        Err(io::Error::new(error.kind(), format!("{error}; {end}")))
    }

    fn replace(&self, set: &[u8], now: Timestamp) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    // A withdrawn key came back with the next start of a station whose disk was full.
    #[test]
    fn a_copy_of_other_keys_goes_where_a_new_one_cannot_be_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |millis: i64| Timestamp::from_millis(1_800_000_000_000 + millis);
        let link = Link::from("https://id.example/keys");
        let good = Copy::new(dir.path(), "id", &link).expect("a folder");
        good.write(b"{old}", at(0)).expect("written");
        // No folder, so that nothing can be made in it.
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        let full = Copy {
            dir: file,
            path: good.path.clone(),
        };
        full.write(b"{old}", at(1)).expect_err("no folder");
        let copy = good.read().expect("readable");
        assert_eq!(copy, Some((at(0), b"{old}".to_vec())), "the same keys");
        let error = full.write(b"{new}", at(2)).expect_err("no folder");
        assert!(error.to_string().contains("was removed"), "{error}");
        assert_eq!(good.read().expect("none"), None);
        let error = full.write(b"{new}", at(3)).expect_err("no folder");
        assert!(error.to_string().contains("there is none"), "{error}");
        fs::create_dir(&good.path).expect("a folder in its place");
        let error = full.write(b"{new}", at(4)).expect_err("no folder");
        assert!(error.to_string().contains("remove "), "{error}");
    }
}
