//! State of a device, in one SQLite file (or in memory): see [`Snapshot`].
//!
//! A file belongs to one device, and to one process at a time. It may hold several accounts: a
//! device that signs in to another installation finds an empty state there, except for its unsent
//! messages, and the old state again when it comes back.

mod rows;

use std::path::{Path, PathBuf};

use protocol::{DeviceId, Platform};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, params};
use thiserror::Error;

use crate::core::{Account, Change, Snapshot};

/// Location of a device's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePath {
    /// A file, created with its folder if missing.
    Path(PathBuf),
    /// Nothing survives the process.
    Memory,
}

/// Durability of a commit: the level it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The disk: commits survive a loss of power.
    #[default]
    Disk,
    /// The operating system: commits survive the death of the process.
    Process,
}

/// Reason for state not to be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error(
        "{0} is in use by another process; use another state for this device, or stop the other process"
    )]
    Locked(PathBuf),
    #[error("{path} belongs to device {theirs}, not to {ours}; use another file")]
    OtherDevice {
        path: PathBuf,
        theirs: String,
        ours: String,
    },
    #[error("{path} was written by a newer version (format {theirs}, this one supports {FORMAT})")]
    Newer { path: PathBuf, theirs: i64 },
    #[error("the client's state is corrupt: {0}")]
    Corrupt(&'static str),
    #[error("cannot create the directory of {path}")]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot read or write the client's state")]
    Sqlite(#[from] rusqlite::Error),
}

/// Version of the tables below.
const FORMAT: i64 = 3;

const TABLES: &str = "
CREATE TABLE device (platform INTEGER NOT NULL, device TEXT NOT NULL, account INTEGER NOT NULL);
CREATE TABLE account (
    account INTEGER PRIMARY KEY,
    cluster INTEGER, user INTEGER,
    marker INTEGER, list_version INTEGER NOT NULL DEFAULT 0,
    UNIQUE (cluster, user)
);
CREATE TABLE conversation (
    account INTEGER NOT NULL, conversation BLOB NOT NULL,
    seq INTEGER NOT NULL, id INTEGER, at INTEGER NOT NULL, known INTEGER NOT NULL,
    read_seq INTEGER, read_id INTEGER, read_acked INTEGER NOT NULL,
    rev INTEGER NOT NULL DEFAULT 0,
    hidden INTEGER NOT NULL DEFAULT 0, hidden_known INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (account, conversation)
) WITHOUT ROWID;
CREATE TABLE hidden (
    account INTEGER NOT NULL, conversation BLOB NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY (account, conversation, seq)
) WITHOUT ROWID;
CREATE TABLE listed (
    account INTEGER NOT NULL, conversation BLOB NOT NULL, summary BLOB NOT NULL,
    PRIMARY KEY (account, conversation)
) WITHOUT ROWID;
CREATE TABLE stretch (
    account INTEGER NOT NULL, conversation BLOB NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (account, conversation, first)
) WITHOUT ROWID;
CREATE TABLE outbox (
    account INTEGER NOT NULL, position INTEGER NOT NULL, send_id BLOB NOT NULL,
    to_kind INTEGER NOT NULL, to_id INTEGER NOT NULL, options INTEGER NOT NULL,
    kind INTEGER NOT NULL, data BLOB NOT NULL, priority INTEGER NOT NULL, reference INTEGER,
    encryption INTEGER NOT NULL, sub_kind INTEGER NOT NULL, key_print INTEGER NOT NULL,
    created_at INTEGER NOT NULL, failed_code INTEGER, failed_text TEXT,
    change BLOB,
    PRIMARY KEY (account, position)
);
CREATE TABLE followed (
    account INTEGER NOT NULL, position INTEGER NOT NULL, send_id BLOB NOT NULL,
    conversation BLOB NOT NULL, id INTEGER NOT NULL, seq INTEGER, status INTEGER NOT NULL,
    PRIMARY KEY (account, position)
);
";

/// Migration from format 1 to 2. The whole list is requested again.
const TO_2: &str = "
ALTER TABLE conversation ADD COLUMN rev INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN change BLOB;
CREATE TABLE listed (
    account INTEGER NOT NULL, conversation BLOB NOT NULL, summary BLOB NOT NULL,
    PRIMARY KEY (account, conversation)
) WITHOUT ROWID;
CREATE TABLE stretch (
    account INTEGER NOT NULL, conversation BLOB NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (account, conversation, first)
) WITHOUT ROWID;
UPDATE account SET list_version = 0;
";

/// Migration from format 2 to 3. The whole list is requested again.
const TO_3: &str = "
ALTER TABLE conversation ADD COLUMN hidden INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversation ADD COLUMN hidden_known INTEGER NOT NULL DEFAULT 0;
CREATE TABLE hidden (
    account INTEGER NOT NULL, conversation BLOB NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY (account, conversation, seq)
) WITHOUT ROWID;
UPDATE account SET list_version = 0;
";

/// Open state of a device.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    account: i64,
}

impl Store {
    /// Opens the state of this device and locks it for this process.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while another process (or another client of this one) has it.
    pub fn open(
        state: &StorePath,
        platform: Platform,
        device: &DeviceId,
        durability: Durability,
    ) -> Result<Store, StoreError> {
        let path = match state {
            StorePath::Path(path) => path.clone(),
            StorePath::Memory => PathBuf::from(":memory:"),
        };
        let mut connection = match state {
            StorePath::Path(path) => open_file(path)?,
            StorePath::Memory => Connection::open_in_memory()?,
        };
        let account = prepare(&mut connection, &path, platform, device, durability)
            .map_err(|error| or_locked(error, &path))?;
        Ok(Store {
            connection,
            account,
        })
    }

    /// Returns the state of the account used last.
    pub fn load(&self) -> Result<Snapshot, StoreError> {
        rows::load(&self.connection, self.account)
    }

    /// Writes the changes in one transaction: on return they are durable, all or none.
    pub fn write(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        for change in changes {
            rows::write(&transaction, self.account, change)?;
        }
        Ok(transaction.commit()?)
    }

    /// Switches to another account and returns its state. Unsent messages of the same user move
    /// along, behind those that wait there.
    pub fn switch(&mut self, to: Account) -> Result<Snapshot, StoreError> {
        let transaction = self.connection.transaction()?;
        let account_row: Option<i64> = transaction
            .query_row(
                "SELECT account FROM account WHERE cluster = ? AND user = ?",
                params![to.cluster as i64, to.user.get()],
                |row| row.get(0),
            )
            .optional()?;
        let account = match account_row {
            Some(account) => account,
            None => {
                transaction.execute(
                    "INSERT INTO account (cluster, user) VALUES (?, ?)",
                    params![to.cluster as i64, to.user.get()],
                )?;
                transaction.last_insert_rowid()
            }
        };
        if account != self.account {
            rows::move_outbox(&transaction, self.account, account, to.user)?;
        }
        transaction.execute("UPDATE device SET account = ?", params![account])?;
        transaction.commit()?;
        self.account = account;
        self.load()
    }
}

fn open_file(path: &Path) -> Result<Connection, StoreError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| StoreError::Folder {
            path: path.to_owned(),
            source,
        })?;
    }
    Connection::open(path).map_err(|error| or_locked(error.into(), path))
}

fn prepare(
    connection: &mut Connection,
    path: &Path,
    platform: Platform,
    device: &DeviceId,
    durability: Durability,
) -> Result<i64, StoreError> {
    connection.busy_timeout(std::time::Duration::ZERO)?;
    // Exclusive while open: the lock between processes.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match durability {
        Durability::Disk => "FULL",
        Durability::Process => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let format: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let account = match format {
        0 => create(&transaction, platform, device)?,
        1 | 2 => {
            let account = claim(&transaction, path, platform, device)?;
            if format == 1 {
                transaction.execute_batch(TO_2)?;
            }
            transaction.execute_batch(TO_3)?;
            transaction.pragma_update(None, "user_version", FORMAT)?;
            account
        }
        FORMAT => claim(&transaction, path, platform, device)?,
        theirs => {
            return Err(StoreError::Newer {
                path: path.to_owned(),
                theirs,
            });
        }
    };
    transaction.commit()?;
    Ok(account)
}

fn create(
    transaction: &Transaction<'_>,
    platform: Platform,
    device: &DeviceId,
) -> Result<i64, StoreError> {
    transaction.execute_batch(TABLES)?;
    transaction.execute("INSERT INTO account DEFAULT VALUES", [])?;
    let account = transaction.last_insert_rowid();
    transaction.execute(
        "INSERT INTO device (platform, device, account) VALUES (?, ?, ?)",
        params![platform.number(), device.as_str(), account],
    )?;
    transaction.pragma_update(None, "user_version", FORMAT)?;
    Ok(account)
}

fn claim(
    transaction: &Transaction<'_>,
    path: &Path,
    platform: Platform,
    device: &DeviceId,
) -> Result<i64, StoreError> {
    let (their_platform, their_device, account): (u8, String, i64) =
        transaction.query_row("SELECT platform, device, account FROM device", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    if their_platform != platform.number() || their_device != device.as_str() {
        let name = Platform::from_number(their_platform).map_or("unknown", Platform::name);
        return Err(StoreError::OtherDevice {
            path: path.to_owned(),
            theirs: format!("{name}/{their_device}"),
            ours: format!("{platform}/{device}"),
        });
    }
    Ok(account)
}

fn or_locked(error: StoreError, path: &Path) -> StoreError {
    match &error {
        StoreError::Sqlite(rusqlite::Error::SqliteFailure(failure, _))
            if matches!(
                failure.code,
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked
            ) =>
        {
            StoreError::Locked(path.to_owned())
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests;
