//! The file `durable` beside the journals: how many bytes of each are known to be on the disk.
//!
//! Overwritten after every fsync, and not flushed itself: it never says more than what is durable,
//! and less only after a power cut. It has two halves of one sector each, written in turn: a power
//! cut may tear the one that is being written, and then the other one counts.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::records::little_endian;

const FILE_NAME: &str = "durable";
const HALF_BYTES: usize = 512;
const FORMAT: u64 = 1;
const ENTRY_BYTES: usize = 16;
/// What fits behind checksum, format, turn and number of entries.
const ENTRIES_MAX: usize = (HALF_BYTES - 32) / ENTRY_BYTES;

/// Durable bytes by the number of the journal: of the newest, and of older ones as far as they are
/// known. Of more than 30 journals only the newest ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DurableMark(BTreeMap<u64, u64>);

impl DurableMark {
    /// `None` if there is none; `InvalidData` if it is damaged.
    pub(super) fn read(dir: &Path) -> io::Result<Option<DurableMark>> {
        match std::fs::read(DurableMark::path(dir)) {
            Ok(bytes) => match newest_half(&bytes) {
                Some((_, mark)) => Ok(Some(mark)),
                None => Err(ErrorKind::InvalidData.into()),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn path(dir: &Path) -> PathBuf {
        dir.join(FILE_NAME)
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

    /// Whether no byte of any journal is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(|&bytes| bytes == 0)
    }

    /// Forgets the journals for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.0.retain(|&number, _| keep(number));
    }

    fn encode(&self, turn: u64) -> [u8; HALF_BYTES] {
        let mut bytes = [0; HALF_BYTES];
        let mut words = bytes[8..].chunks_exact_mut(8);
        let mut put = |word: u64| {
            if let Some(place) = words.next() {
                place.copy_from_slice(&word.to_le_bytes());
            }
        };
        put(FORMAT);
        put(turn);
        put(self.0.len() as u64);
        for (&number, &durable) in &self.0 {
            put(number);
            put(durable);
        }
        let sum = xxh3_64(&bytes[8..]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The turn in which it was written, and the mark.
    fn decode(bytes: &[u8]) -> Option<(u64, DurableMark)> {
        let bytes: &[u8; HALF_BYTES] = bytes.try_into().ok()?;
        let mut words = bytes.chunks_exact(8).map(little_endian);
        let sum = words.next()?;
        if sum != xxh3_64(&bytes[8..]) || words.next()? != FORMAT {
            return None;
        }
        let turn = words.next()?;
        let count = usize::try_from(words.next()?).ok()?;
        let entries = (0..count.min(ENTRIES_MAX)).map(|_| Some((words.next()?, words.next()?)));
        Some((turn, DurableMark(entries.collect::<Option<_>>()?)))
    }
}

fn newest_half(bytes: &[u8]) -> Option<(u64, DurableMark)> {
    let halves = bytes.chunks(HALF_BYTES).filter_map(DurableMark::decode);
    halves.max_by_key(|(turn, _)| *turn)
}

/// The file, open.
pub(super) struct MarkFile {
    file: File,
    /// Number of the last write.
    turn: u64,
}

impl MarkFile {
    /// Makes the file if it is missing, so that later writes change nothing but its bytes.
    pub(super) fn open(dir: &Path) -> io::Result<MarkFile> {
        let path = DurableMark::path(dir);
        if !path.try_exists()? {
            MarkFile::replace(dir, &DurableMark::default())?;
        }
        let turn = newest_half(&std::fs::read(&path)?).map_or(0, |(turn, _)| turn);
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(MarkFile { file, turn })
    }

    pub(super) fn write(&mut self, mark: &DurableMark) -> io::Result<()> {
        self.turn += 1;
        let place = self.turn % 2 * HALF_BYTES as u64;
        self.file.write_all_at(&mark.encode(self.turn), place)
    }

    /// Puts a new file in the place of an old one, durably.
    pub(super) fn replace(dir: &Path, mark: &DurableMark) -> io::Result<()> {
        let new = dir.join(format!("{FILE_NAME}.new"));
        let mut file = File::create(&new)?;
        for turn in 0..2 {
            file.write_all(&mark.encode(turn))?;
        }
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
        let mut file = MarkFile::open(dir.path()).unwrap();
        let mut mark = DurableMark::default();
        assert_eq!(DurableMark::read(dir.path()).unwrap().as_ref(), Some(&mark));
        for number in 0..40 {
            mark.set(number, number * 1000);
            file.write(&mark).unwrap();
            assert_eq!(DurableMark::read(dir.path()).unwrap().as_ref(), Some(&mark));
            if number == 20 {
                file = MarkFile::open(dir.path()).unwrap();
            }
        }
        assert_eq!((mark.get(39), mark.get(9)), (Some(39_000), None));
        assert_eq!(mark.get(10), Some(10_000));
        for place in 0..HALF_BYTES {
            let mut bytes = mark.encode(7);
            bytes[place] ^= 0x10;
            assert_eq!(DurableMark::decode(&bytes), None, "{place}");
        }
        assert_eq!(DurableMark::decode(&mark.encode(7)[..500]), None);
        assert_eq!(DurableMark::decode(&[]), None);
    }

    #[test]
    fn a_torn_half_leaves_the_mark_before_it() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut file = MarkFile::open(dir.path()).unwrap();
        let mut mark = DurableMark::default();
        for bytes in 1..5 {
            let previous_mark = mark.clone();
            mark.set(0, bytes);
            file.write(&mark).unwrap();
            let place = (file.turn % 2) as usize * HALF_BYTES;
            let mut torn = std::fs::read(DurableMark::path(dir.path())).unwrap();
            torn[place + 50] ^= 1;
            assert_eq!(
                newest_half(&torn).map(|(_, mark)| mark),
                Some(previous_mark)
            );
        }
        assert_eq!(newest_half(&[0; 1024]), None);
    }
}
