//! Fsync of the journal, beside the store instead of through it.
//!
//! `fjall::Database::persist` holds the journal's lock during its fsync, and every write of every
//! seam would wait for the disk. The journal is a row of files `<n>.jnl`; the newest is the active
//! one, and an older one was fsynced before its successor was made. A write in the page cache is
//! therefore durable after an fsync of the newest file, by whatever descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

pub(super) struct Journal {
    dir: PathBuf,
    number: u64,
    file: File,
}

impl Journal {
    /// Finds the newest journal of an open database.
    pub(super) fn find(dir: &Path) -> io::Result<Journal> {
        let mut newest = None;
        for entry in std::fs::read_dir(dir)? {
            let name = entry?.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_suffix(".jnl"))
                .and_then(|number| number.parse::<u64>().ok());
            newest = newest.max(number);
        }
        let number =
            newest.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no journal file"))?;
        Ok(Journal {
            dir: dir.to_owned(),
            number,
            file: open(dir, number)?,
        })
    }

    #[cfg(test)]
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Makes durable everything that was written before the call.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        while path(&self.dir, self.number + 1).try_exists()? {
            self.file = open(&self.dir, self.number + 1)?;
            self.number += 1;
        }
        // After several rotations between two syncs, our file and its successor may both be gone.
        if !path(&self.dir, self.number).try_exists()? {
            *self = Journal::find(&self.dir)?;
        }
        self.file.sync_data()
    }
}

fn open(dir: &Path, number: u64) -> io::Result<File> {
    OpenOptions::new().write(true).open(path(dir, number))
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number}.jnl"))
}
