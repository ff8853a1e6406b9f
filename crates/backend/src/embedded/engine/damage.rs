//! Journals that lost something, found before the store opens: fjall takes the first bytes that are
//! no record for the end of a journal, and a journal that is missing for one it no longer needs.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SEAM;
use super::journal::{numbers, path};
use super::mark::{DurableMark, MarkFile};
use super::records::{Extent, Rest};
use crate::{Error, Result};

/// What is wrong with the journals of a directory, and what that costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDamage {
    /// In one sentence.
    pub summary: String,
    /// Whole records up to the damage. A record is what one write of the program put into the
    /// store: an accepted message has some.
    pub readable: u64,
    /// Whole records behind the damage.
    pub unreachable: u64,
    /// Bytes behind the damage, those of unreachable records included.
    pub bytes: u64,
    /// Copies of what a repair took away.
    pub copies: Vec<PathBuf>,
}

/// A journal as it was read.
#[derive(Clone, Copy, Debug)]
struct JournalState {
    number: u64,
    extent: Extent,
    /// Whether no record follows it: the last write may be torn.
    may_tear: bool,
    /// Whether bytes lie behind the records that no crash explains.
    has_rest: bool,
}

/// The first damage: what lies behind it is lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// A journal of which more was known to be durable.
    Short { journal: u64, durable: u64 },
    /// A journal that has something else behind its records.
    Unreadable { journal: u64 },
    /// A journal that is missing, with the bytes that were known to be durable.
    Gone { journal: u64, durable: Option<u64> },
    /// The mark itself: what else is damaged is not known.
    Mark,
}

/// Journals, oldest first, against the mark, as far as there is one. fjall removes a journal only
/// when it has a newer one, the oldest first.
fn first_damage(mark: Option<&DurableMark>, journals: &[JournalState]) -> Option<Damage> {
    let mut expected = None;
    for state in journals {
        let journal = state.number;
        let durable = |journal| mark.and_then(|mark| mark.get(journal));
        if let Some(missing_journal) = expected.filter(|&expected| expected != journal) {
            return Some(Damage::Gone {
                journal: missing_journal,
                durable: durable(missing_journal),
            });
        }
        expected = Some(journal + 1);
        match durable(journal) {
            Some(durable) if durable > state.extent.bytes => {
                return Some(Damage::Short { journal, durable });
            }
            _ if state.has_rest => return Some(Damage::Unreadable { journal }),
            _ => {}
        }
    }
    let (journal, durable) = mark?.newest()?;
    (expected <= Some(journal)).then_some(Damage::Gone {
        journal,
        durable: Some(durable),
    })
}

impl Damage {
    fn journal(self) -> Option<u64> {
        match self {
            Damage::Short { journal, .. }
            | Damage::Unreadable { journal }
            | Damage::Gone { journal, .. } => Some(journal),
            Damage::Mark => None,
        }
    }
}

/// A directory that nobody else uses, read.
struct Examination<'a> {
    dir: &'a Path,
    mark: Option<DurableMark>,
    journals: Vec<JournalState>,
    damage: Option<Damage>,
    _lock: File,
}

/// Refuses a directory whose journals lost something. Returns what is known of them: nothing in a
/// new directory, or one of an older program.
pub(super) fn check(dir: &Path) -> Result<Option<DurableMark>> {
    if let Ok(None) = DurableMark::read(dir) {
        return Ok(None);
    }
    let examination = Examination::new(dir)?;
    match examination.damage {
        None => Ok(examination.mark),
        Some(damage) => Err(Error::corrupt(
            SEAM,
            format!(
                "{}. Nothing was changed. Restore a backup of the directory, or see what can be \
                 saved: packetboat repair --data {}",
                examination.sentence(damage),
                dir.display()
            ),
        )),
    }
}

/// Cuts what a crash left behind the last records.
pub(super) fn cut_torn_write(dir: &Path) -> Result<()> {
    let examination = Examination::new(dir)?;
    if examination.damage.is_some() {
        return Ok(());
    }
    for state in examination.journals.iter().filter(|state| state.may_tear) {
        cut(dir, state).map_err(|error| unavailable(dir, error))?;
        tracing::warn!(
            journal = %path(dir, state.number).display(),
            bytes = state.extent.bytes,
            "removed an incomplete write left by a crash; it had not been acknowledged"
        );
    }
    Ok(())
}

pub(super) fn examine(dir: &Path) -> Result<Option<JournalDamage>> {
    check_is_store(dir)?;
    Examination::new(dir)?.report()
}

pub(super) fn repair(dir: &Path) -> Result<Option<JournalDamage>> {
    check_is_store(dir)?;
    let examination = Examination::new(dir)?;
    let Some(mut report) = examination.report()? else {
        return Ok(None);
    };
    report.copies = examination
        .repair()
        .map_err(|error| unavailable(dir, error))?;
    Ok(Some(report))
}

fn check_is_store(dir: &Path) -> Result<()> {
    if dir.join("version").exists() || dir.join("lock").exists() {
        Ok(())
    } else {
        Err(Error::conflict(
            SEAM,
            format!("{} is not a data directory", dir.display()),
        ))
    }
}

impl Examination<'_> {
    fn new(dir: &Path) -> Result<Examination<'_>> {
        let lock = lock(dir)?;
        let (mark, is_mark_damaged) = match DurableMark::read(dir) {
            Ok(mark) => (mark, false),
            Err(error) if error.kind() == ErrorKind::InvalidData => (None, true),
            Err(error) => return Err(unavailable(dir, error)),
        };
        let journals =
            read_journals(dir, mark.is_some()).map_err(|error| unavailable(dir, error))?;
        let damage = first_damage(mark.as_ref(), &journals)
            .or_else(|| is_mark_damaged.then_some(Damage::Mark));
        Ok(Examination {
            dir,
            mark,
            journals,
            damage,
            _lock: lock,
        })
    }

    /// What is wrong, without a full stop.
    fn sentence(&self, damage: Damage) -> String {
        let file = |journal| path(self.dir, journal).display().to_string();
        let whole = |journal| {
            let state = self.journals.iter().find(|state| state.number == journal);
            let extent = state.map_or_else(Extent::default, |state| state.extent);
            format!(
                "{} is damaged: its first {} bytes are readable ({} records)",
                file(journal),
                extent.bytes,
                extent.records
            )
        };
        match damage {
            Damage::Short { journal, durable } => {
                format!(
                    "{}, but {durable} bytes had been written to disk",
                    whole(journal)
                )
            }
            Damage::Unreadable { journal } => {
                format!("{}, and the next record is unreadable", whole(journal))
            }
            Damage::Gone { journal, durable } => {
                let durable = durable.map_or_else(String::new, |bytes| {
                    format!(": {bytes} bytes of it had been written to disk")
                });
                format!("{} is missing but still needed{durable}", file(journal))
            }
            Damage::Mark => format!(
                "{} is damaged. It records how much of the journals is on disk, so losses cannot be ruled out",
                DurableMark::path(self.dir).display()
            ),
        }
    }

    fn report(&self) -> Result<Option<JournalDamage>> {
        let Some(damage) = self.damage else {
            return Ok(None);
        };
        let mut report = JournalDamage {
            summary: self.sentence(damage),
            readable: 0,
            unreachable: 0,
            bytes: 0,
            copies: Vec::new(),
        };
        if let Damage::Gone { durable, .. } = damage {
            report.bytes = durable.unwrap_or_default();
        }
        for state in &self.journals {
            let Extent { bytes, records, .. } = state.extent;
            let side = damage.journal().map(|journal| state.number.cmp(&journal));
            if side.is_none_or(|side| side.is_le()) {
                report.readable += records;
            } else {
                report.unreachable += records;
                report.bytes += bytes;
            }
            if side.is_some_and(|side| side.is_ge()) {
                let rest = self
                    .rest(state)
                    .map_err(|error| unavailable(self.dir, error))?;
                report.unreachable += rest.records;
                let lost_bytes = match damage {
                    Damage::Short { journal, durable } if journal == state.number => {
                        durable - bytes
                    }
                    _ => 0,
                };
                report.bytes += rest.bytes.max(lost_bytes);
            }
        }
        Ok(Some(report))
    }

    fn rest(&self, state: &JournalState) -> io::Result<Rest> {
        state
            .extent
            .rest(&File::open(path(self.dir, state.number))?)
    }

    /// Leaves the journals up to the damage; returns the copies of everything else. If it is cut
    /// short at any step, the damage is still found.
    fn repair(&self) -> io::Result<Vec<PathBuf>> {
        let dir = self.dir;
        let mut copies = Vec::new();
        let mut mark = DurableMark::default();
        // The newest first: a journal that is missing before others is damage.
        for state in self.journals.iter().rev() {
            let file = path(dir, state.number);
            let damaged_journal = self.damage.and_then(Damage::journal);
            match damaged_journal.map(|damaged_journal| state.number.cmp(&damaged_journal)) {
                Some(std::cmp::Ordering::Greater) => {
                    let copy = free_name(&file)?;
                    std::fs::rename(&file, &copy)?;
                    copies.push(copy);
                    continue;
                }
                Some(std::cmp::Ordering::Equal) => {
                    let copy = free_name(&file)?;
                    std::fs::copy(&file, &copy)?;
                    File::open(&copy)?.sync_all()?;
                    File::open(dir)?.sync_all()?;
                    cut(dir, state)?;
                    copies.push(copy);
                }
                Some(std::cmp::Ordering::Less) | None => {}
            }
            mark.set(state.number, state.extent.bytes);
        }
        MarkFile::replace(dir, &mark)?;
        Ok(copies)
    }
}

/// `has_mark`: what a crash may have left after the last records is cut off when the store opens.
/// Behind such a torn write there may be journals without a record: fjall also goes on to the next
/// journal after a failed write.
fn read_journals(dir: &Path, has_mark: bool) -> io::Result<Vec<JournalState>> {
    let mut journals = Vec::new();
    let mut may_tear = has_mark;
    for number in numbers(dir)?.into_iter().rev() {
        let file = File::open(path(dir, number))?;
        let extent = Extent::default().extend(&file)?;
        journals.push(JournalState {
            number,
            extent,
            may_tear,
            has_rest: !may_tear && !extent.is_all(&file)?,
        });
        may_tear &= extent.records == 0;
    }
    journals.reverse();
    Ok(journals)
}

fn cut(dir: &Path, state: &JournalState) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .open(path(dir, state.number))?;
    file.set_len(state.extent.bytes)?;
    file.sync_all()
}

fn free_name(file: &Path) -> io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let suffix = match number {
            1 => ".damaged".to_owned(),
            number => format!(".damaged.{number}"),
        };
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        let name = PathBuf::from(name);
        if !name.try_exists()? {
            return Ok(name);
        }
        number += 1;
    }
}

/// The lock that the store holds while it is open. As fjall does, waits a moment for one that is
/// about to close.
fn lock(dir: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("lock"))
        .map_err(|error| unavailable(dir, error))?;
    for _ in 0..3 {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(100)),
            Err(TryLockError::Error(error)) => return Err(unavailable(dir, error)),
        }
    }
    Err(in_use(dir))
}

pub(super) fn in_use(dir: &Path) -> Error {
    let dir = dir.display();
    Error::conflict(
        SEAM,
        format!("another packetboat is using this directory: {dir}"),
    )
}

fn unavailable(dir: &Path, error: impl fmt::Display) -> Error {
    Error::unavailable(SEAM, format!("{}: {error}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(number: u64, bytes: u64, has_rest: bool) -> JournalState {
        let extent = Extent::from_bytes(bytes);
        JournalState {
            number,
            extent,
            may_tear: false,
            has_rest,
        }
    }

    fn mark(entries: &[(u64, u64)]) -> DurableMark {
        let mut mark = DurableMark::default();
        for &(number, bytes) in entries {
            mark.set(number, bytes);
        }
        mark
    }

    #[test]
    fn damage_is_distinguished_from_crash_leftovers() {
        let whole = |number, bytes| state(number, bytes, false);
        let short = |journal, durable| Some(Damage::Short { journal, durable });
        let missing_journal = |journal, durable| Some(Damage::Gone { journal, durable });
        let cases = [
            ("a new store", vec![], vec![], None),
            (
                "more than was known",
                vec![(0, 10)],
                vec![whole(0, 12)],
                None,
            ),
            ("less", vec![(0, 10)], vec![whole(0, 9)], short(0, 10)),
            ("gone", vec![(0, 10)], vec![], missing_journal(0, Some(10))),
            (
                "gone, with an older one",
                vec![(3, 1), (4, 2)],
                vec![whole(3, 1)],
                missing_journal(4, Some(2)),
            ),
            (
                "a newer one",
                vec![(0, 10)],
                vec![whole(0, 10), whole(1, 0)],
                None,
            ),
            ("a newer one alone", vec![(0, 10)], vec![whole(1, 3)], None),
            (
                "several newer ones",
                vec![(0, 10)],
                vec![whole(2, 9), whole(3, 3)],
                None,
            ),
            (
                "an older one is short",
                vec![(0, 10), (1, 2)],
                vec![whole(0, 9), whole(1, 2)],
                short(0, 10),
            ),
            (
                "one between is gone",
                vec![(2, 9)],
                vec![whole(0, 10), whole(2, 9)],
                missing_journal(1, None),
            ),
            (
                "a closed one goes on",
                vec![(0, 10)],
                vec![state(0, 10, true), whole(1, 0)],
                Some(Damage::Unreadable { journal: 0 }),
            ),
        ];
        for (name, entries, journals, damage) in cases {
            assert_eq!(
                first_damage(Some(&mark(&entries)), &journals),
                damage,
                "{name}"
            );
        }
    }
}
