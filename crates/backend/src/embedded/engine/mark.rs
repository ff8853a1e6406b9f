//! The file `durable` beside the journals: how many bytes of each are known to be on the disk.
//!
//! Overwritten after every fsync, and not flushed itself: it never says more than what is durable,
//! and less only after a power cut. Its 512 bytes are one sector, which a disk writes as a whole.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::records::little_endian;

const NAME: &str = "durable";
const BYTES: usize = 512;
const FORMAT: u64 = 1;
const ENTRY_BYTES: usize = 16;
/// What fits behind checksum, format and number of entries.
const ENTRIES_MAX: usize = (BYTES - 24) / ENTRY_BYTES;

/// Durable bytes by the number of the journal: of the newest, and of older ones as far as they are
/// known. Of more than 30 journals only the newest ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DurableMark(BTreeMap<u64, u64>);

impl DurableMark {
    /// `None` if there is none; `InvalidData` if it is damaged.
    pub(super) fn read(dir: &Path) -> io::Result<Option<DurableMark>> {
        match std::fs::read(DurableMark::path(dir)) {
            Ok(bytes) => match DurableMark::decode(&bytes) {
                Some(mark) => Ok(Some(mark)),
                None => Err(ErrorKind::InvalidData.into()),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn path(dir: &Path) -> PathBuf {
        dir.join(NAME)
    }

    pub(super) fn set(&mut self, journal: u64, bytes: u64) {
        self.0.insert(journal, bytes);
        if self.0.len() > ENTRIES_MAX {
            self.0.pop_first();
        }
    }

    pub(super) fn get(&self, journal: u64) -> Option<u64> {
        self.0.get(&journal).copied()
    }

    /// Number and bytes of the newest journal.
    pub(super) fn newest(&self) -> Option<(u64, u64)> {
        self.0
            .last_key_value()
            .map(|(&number, &bytes)| (number, bytes))
    }

    /// True if no byte of any journal is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(|&bytes| bytes == 0)
    }

    /// Forgets the journals for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.0.retain(|&number, _| keep(number));
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mut words = bytes[8..].chunks_exact_mut(8);
        let mut put = |word: u64| {
            if let Some(place) = words.next() {
                place.copy_from_slice(&word.to_le_bytes());
            }
        };
        put(FORMAT);
        put(self.0.len() as u64);
        for (&number, &durable) in &self.0 {
            put(number);
            put(durable);
        }
        let sum = xxh3_64(&bytes[8..]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<DurableMark> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let mut words = bytes.chunks_exact(8).map(little_endian);
        let sum = words.next()?;
        if sum != xxh3_64(&bytes[8..]) || words.next()? != FORMAT {
            return None;
        }
        let count = usize::try_from(words.next()?).ok()?;
        let entries = (0..count.min(ENTRIES_MAX)).map(|_| Some((words.next()?, words.next()?)));
        entries.collect::<Option<_>>().map(DurableMark)
    }
}

/// The file, open.
pub(super) struct MarkFile(File);

impl MarkFile {
    /// Makes the file if it is missing, so that later writes change nothing but its bytes.
    pub(super) fn open(dir: &Path) -> io::Result<MarkFile> {
        let path = DurableMark::path(dir);
        if !path.try_exists()? {
            MarkFile::replace(dir, &DurableMark::default())?;
        }
        OpenOptions::new().write(true).open(path).map(MarkFile)
    }

    pub(super) fn write(&self, mark: &DurableMark) -> io::Result<()> {
        self.0.write_all_at(&mark.encode(), 0)
    }

    /// Puts a new file in the place of an old one, durably.
    pub(super) fn replace(dir: &Path, mark: &DurableMark) -> io::Result<()> {
        let new = dir.join(format!("{NAME}.new"));
        let mut file = File::create(&new)?;
        file.write_all(&mark.encode())?;
        file.sync_all()?;
        std::fs::rename(&new, DurableMark::path(dir))?;
        File::open(dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_written_or_refused() {
        let dir = tempfile::TempDir::new().unwrap();
        assert_eq!(DurableMark::read(dir.path()).unwrap(), None);
        let file = MarkFile::open(dir.path()).unwrap();
        let mut mark = DurableMark::default();
        assert_eq!(DurableMark::read(dir.path()).unwrap().as_ref(), Some(&mark));
        for number in 0..40 {
            mark.set(number, number * 1000);
            file.write(&mark).unwrap();
            assert_eq!(DurableMark::read(dir.path()).unwrap().as_ref(), Some(&mark));
        }
        assert_eq!((mark.get(39), mark.get(9)), (Some(39_000), None));
        assert_eq!(mark.get(10), Some(10_000));
        for place in 0..BYTES {
            let mut bytes = mark.encode();
            bytes[place] ^= 0x10;
            assert_eq!(DurableMark::decode(&bytes), None, "{place}");
        }
        assert_eq!(DurableMark::decode(&mark.encode()[..500]), None);
        assert_eq!(DurableMark::decode(&[]), None);
    }
}
