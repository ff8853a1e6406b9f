//! Fsync of the journal, beside the store instead of through it.
//!
//! `fjall::Database::persist` holds the journal's lock during its fsync, and every write of every
//! seam would wait for the disk. The journal is a row of files `<n>.jnl`; the newest is the active
//! one, and an older one was fsynced before its successor was made. A write in the page cache is
//! therefore durable after an fsync of the newest file, by whatever descriptor.
//!
//! After it, the mark says how far the journal is durable. fjall does not tell its position, and
//! makes a journal at its full length: so we read what was written since the last time.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::mark::{DurableMark, MarkFile};
use super::records::Extent;

pub(super) struct Journal {
    dir: PathBuf,
    number: u64,
    file: File,
    /// What was read of it.
    extent: Extent,
    mark: DurableMark,
    mark_file: MarkFile,
}

impl Journal {
    /// Finds the newest journal of an open database, and makes all of it durable.
    pub(super) fn open(dir: &Path) -> io::Result<Journal> {
        let mut mark = DurableMark::default();
        let mut newest = None;
        for number in numbers(dir)? {
            // The store may remove an older one meanwhile.
            match open(dir, number) {
                Ok(file) => {
                    // Closed, but for the newest, and fsynced when it was.
                    let extent = Extent::default().extend(&file)?;
                    mark.set(number, extent.bytes);
                    newest = Some((number, file, extent));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let (number, file, extent) = newest.ok_or_else(no_journal)?;
        let mut journal = Journal {
            dir: dir.to_owned(),
            number,
            file,
            extent,
            mark,
            mark_file: MarkFile::open(dir)?,
        };
        journal.sync()?;
        Ok(journal)
    }

    #[cfg(test)]
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Makes durable everything that was written before the call.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.follow()?;
        let extent = self.extent.extend(&self.file)?;
        self.file.sync_data()?;
        self.extent = extent;
        self.mark.set(self.number, extent.bytes);
        self.mark_file.write(&self.mark)
    }

    /// Goes on to the newest journal.
    fn follow(&mut self) -> io::Result<()> {
        let old_number = self.number;
        while path(&self.dir, self.number + 1).try_exists()? {
            // It was closed before this one was made: nothing is written to it any more.
            let extent = self.extent.extend(&self.file)?;
            self.mark.set(self.number, extent.bytes);
            match self.go_to(self.number + 1) {
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                outcome => outcome?,
            }
        }
        // After several rotations between two syncs, our file and its successor may both be gone.
        if !path(&self.dir, self.number).try_exists()? {
            let newest = numbers(&self.dir)?.last().copied();
            self.go_to(newest.ok_or_else(no_journal)?)?;
        }
        if self.number != old_number {
            let dir = &self.dir;
            self.mark.retain(|number| path(dir, number).exists());
        }
        Ok(())
    }

    fn go_to(&mut self, number: u64) -> io::Result<()> {
        self.file = open(&self.dir, number)?;
        self.number = number;
        self.extent = Extent::default();
        Ok(())
    }
}

/// Numbers of the journals in a directory, ascending.
pub(super) fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        numbers.extend(
            name.to_str()
                .and_then(|name| name.strip_suffix(".jnl"))
                .and_then(|number| number.parse::<u64>().ok()),
        );
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn open(dir: &Path, number: u64) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path(dir, number))
}

pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number}.jnl"))
}

fn no_journal() -> io::Error {
    io::Error::new(ErrorKind::NotFound, "no journal file")
}
