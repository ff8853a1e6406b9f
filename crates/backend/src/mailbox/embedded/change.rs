//! A change of waiting mail: collects the work of one call, reads its own writes, and writes one
//! batch.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::mailbox::{Mail, MailCursor, MailboxPolicy};
use protocol::message::Target;
use protocol::{MessageId, Timestamp};

use super::rows::{self, BoxRow, CountRow};
use crate::Result;
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};

/// Maximum number of entries that one step of a trim removes.
pub(super) const TRIM_STEP: usize = 256;
/// Maximum number of entries an acknowledgement scans for one whose count was lost: devices
/// acknowledge what they paged, which is at the front.
const SEARCH_MAX: usize = 1_024;

/// Pending work of one call. Reads see it before stored rows. The holder also holds the lock for
/// all changes of mail, because bodies are shared between users.
pub(super) struct MailboxBatch<'a> {
    engine: &'a Engine,
    boxes: BTreeMap<Target, Option<BoxRow>>,
    /// True for an added entry, false for a removed one.
    entries: BTreeMap<(Target, MailCursor), bool>,
    counts: BTreeMap<MessageId, Option<CountRow>>,
    bodies: BTreeMap<MessageId, Option<Bytes>>,
}

impl<'a> MailboxBatch<'a> {
    pub(super) fn new(engine: &'a Engine) -> MailboxBatch<'a> {
        MailboxBatch {
            engine,
            boxes: BTreeMap::new(),
            entries: BTreeMap::new(),
            counts: BTreeMap::new(),
            bodies: BTreeMap::new(),
        }
    }

    /// Writes everything or nothing. Not fsynced: the log is, and it redelivers what a power cut
    /// takes from here, because its commits come later in the same journal.
    pub(super) fn write(self) -> Result<()> {
        let mut batch = WriteBatch::new();
        for ((target, at), is_added) in self.entries {
            let row = is_added.then(Bytes::new);
            put(&mut batch, Table::Mail, rows::entry_key(target, at), row);
        }
        for (target, row) in self.boxes {
            let row = row.map(|row| row.to_bytes().into());
            put(&mut batch, Table::Session, rows::box_key(target), row);
        }
        for (id, row) in self.counts {
            let row = row.map(|row| row.to_bytes().into());
            put(&mut batch, Table::MailBody, rows::count_key(id), row);
        }
        for (id, body) in self.bodies {
            put(&mut batch, Table::MailBody, rows::body_key(id), body);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    /// Adds an entry and makes room for it; returns the number of entries the policy dropped. An
    /// entry that already waits changes nothing.
    pub(super) fn append(
        &mut self,
        target: Target,
        mail: &Mail,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> Result<u32> {
        let entry = mail.cursor();
        if self.has(target, entry)? {
            return Ok(0);
        }
        let row = match self.mailbox(target)? {
            Some(row) => BoxRow {
                oldest: row.oldest.min(entry),
                count: row.count + 1,
            },
            None => BoxRow {
                oldest: entry,
                count: 1,
            },
        };
        self.boxes.insert(target, Some(row));
        self.entries.insert((target, entry), true);
        self.need_body(mail)?;
        self.trim(target, policy, now)
    }

    /// Removes the oldest entries beyond the policy, at most [`TRIM_STEP`]; returns their number.
    pub(super) fn trim(
        &mut self,
        target: Target,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> Result<u32> {
        let Some(row) = self.mailbox(target)? else {
            return Ok(0);
        };
        let oldest_kept = policy.oldest_kept(now);
        let excess = usize::try_from(policy.excess(row.count)).unwrap_or(usize::MAX);
        let limit = if row.oldest.accepted_at < oldest_kept {
            TRIM_STEP
        } else {
            excess.min(TRIM_STEP)
        };
        if limit == 0 {
            return Ok(0);
        }
        // One more: the oldest entry that stays.
        let mut oldest = self.entries_from(target, row.oldest, limit + 1)?;
        let stays = oldest
            .iter()
            .enumerate()
            .position(|(n, entry)| n == limit || n >= excess && entry.accepted_at >= oldest_kept);
        let next = stays.map(|n| oldest[n]);
        oldest.truncate(stays.unwrap_or(oldest.len()));
        self.remove(target, &oldest, next)?;
        Ok(oldest.len() as u32)
    }

    /// Removes entries; returns the ids that were waiting.
    pub(super) fn acknowledge(
        &mut self,
        target: Target,
        ids: &[MessageId],
    ) -> Result<Vec<MessageId>> {
        let Some(row) = self.mailbox(target)? else {
            return Ok(Vec::new());
        };
        let mut entries = Vec::new();
        for entry in self.locate(target, row, ids)? {
            if self.has(target, entry)? && !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        self.remove(target, &entries, None)?;
        Ok(entries.into_iter().map(|entry| entry.id).collect())
    }

    /// Finds the entry of a message, if it waits.
    pub(super) fn find(&self, target: Target, id: MessageId) -> Result<Option<MailCursor>> {
        let Some(row) = self.mailbox(target)? else {
            return Ok(None);
        };
        for entry in self.locate(target, row, &[id])? {
            if self.has(target, entry)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Cursors at which these ids would be, in order. The count of a body has the accept time; if
    /// the count was lost, the mailbox is scanned.
    fn locate(&self, target: Target, row: BoxRow, ids: &[MessageId]) -> Result<Vec<MailCursor>> {
        let mut cursors = Vec::with_capacity(ids.len());
        let mut scan: Option<Vec<MailCursor>> = None;
        for &id in ids {
            if let Some(CountRow { accepted_at, .. }) = self.count(id)? {
                cursors.push(MailCursor { accepted_at, id });
                continue;
            }
            let entries = match &scan {
                Some(entries) => entries,
                None => scan.insert(self.entries_from(target, row.oldest, SEARCH_MAX)?),
            };
            cursors.extend(entries.iter().find(|entry| entry.id == id));
        }
        Ok(cursors)
    }

    /// Removes existing entries and releases their bodies. `next` is the oldest entry that stays,
    /// if known.
    fn remove(
        &mut self,
        target: Target,
        removals: &[MailCursor],
        next: Option<MailCursor>,
    ) -> Result<()> {
        if removals.is_empty() {
            return Ok(());
        }
        for &entry in removals {
            self.entries.insert((target, entry), false);
            self.release_body(entry.id)?;
        }
        if let Some(row) = self.mailbox(target)? {
            let count = row.count.saturating_sub(removals.len() as u64);
            let oldest = match next {
                Some(next) => Some(next),
                None if !removals.contains(&row.oldest) => Some(row.oldest),
                None => self.entries_from(target, row.oldest, 1)?.first().copied(),
            };
            let row = oldest.map(|oldest| BoxRow {
                oldest,
                count: count.max(1),
            });
            self.boxes.insert(target, row);
        }
        Ok(())
    }

    /// Counts one more entry for this body, and sets the body if it is missing.
    fn need_body(&mut self, mail: &Mail) -> Result<()> {
        let row = self.count(mail.id)?;
        if row.is_none() || !self.has_body(mail.id)? {
            self.bodies.insert(mail.id, Some(mail.body.clone()));
        }
        let row = CountRow {
            count: row.map_or(0, |row| row.count) + 1,
            accepted_at: mail.accepted_at,
        };
        self.counts.insert(mail.id, Some(row));
        Ok(())
    }

    /// Counts one entry less; the last one removes the body. A missing count removes nothing.
    fn release_body(&mut self, id: MessageId) -> Result<()> {
        match self.count(id)? {
            None => {}
            Some(row) if row.count > 1 => {
                let row = CountRow {
                    count: row.count - 1,
                    ..row
                };
                self.counts.insert(id, Some(row));
            }
            Some(_) => {
                self.counts.insert(id, None);
                self.bodies.insert(id, None);
            }
        }
        Ok(())
    }

    fn mailbox(&self, target: Target) -> Result<Option<BoxRow>> {
        match self.boxes.get(&target) {
            Some(row) => Ok(*row),
            None => read_box(self.engine, target),
        }
    }

    fn has(&self, target: Target, entry: MailCursor) -> Result<bool> {
        match self.entries.get(&(target, entry)) {
            Some(is_added) => Ok(*is_added),
            None => {
                let key = rows::entry_key(target, entry);
                Ok(self.engine.get(Table::Mail, &key)?.is_some())
            }
        }
    }

    fn count(&self, id: MessageId) -> Result<Option<CountRow>> {
        match self.counts.get(&id) {
            Some(row) => Ok(*row),
            None => {
                let row = self.engine.get(Table::MailBody, &rows::count_key(id))?;
                row.map(|row| CountRow::read(&row)).transpose()
            }
        }
    }

    fn has_body(&self, id: MessageId) -> Result<bool> {
        match self.bodies.get(&id) {
            Some(body) => Ok(body.is_some()),
            None => {
                let body = self.engine.get(Table::MailBody, &rows::body_key(id))?;
                Ok(body.is_some())
            }
        }
    }

    /// Reads at most `limit` entries from `from` on, pending ones included.
    fn entries_from(
        &self,
        target: Target,
        from: MailCursor,
        limit: usize,
    ) -> Result<Vec<MailCursor>> {
        let pending = || {
            self.entries
                .range((target, from)..)
                .take_while(|((t, _), _)| *t == target)
        };
        let removed_count = pending().filter(|(_, is_added)| !**is_added).count();
        let stored_limit = limit.saturating_add(removed_count);
        let mut entries: BTreeSet<MailCursor> =
            read_entries(self.engine, target, from, stored_limit)?
                .into_iter()
                .collect();
        for (&(_, entry), &is_added) in pending() {
            if is_added {
                entries.insert(entry)
            } else {
                entries.remove(&entry)
            };
        }
        Ok(entries.into_iter().take(limit).collect())
    }
}

pub(super) fn read_box(engine: &Engine, target: Target) -> Result<Option<BoxRow>> {
    let row = engine.get(Table::Session, &rows::box_key(target))?;
    row.map(|row| BoxRow::read(&row)).transpose()
}

/// Reads at most `limit` stored entries from `from` on.
pub(super) fn read_entries(
    engine: &Engine,
    target: Target,
    from: MailCursor,
    limit: usize,
) -> Result<Vec<MailCursor>> {
    let (start, end) = (rows::entry_key(target, from), rows::entries_end(target));
    let range = start.as_slice()..end.as_slice();
    engine
        .range(Table::Mail, range, ScanOrder::Forward, limit)?
        .iter()
        .map(|(key, _)| Ok(rows::read_entry(key)?.1))
        .collect()
}

fn put(batch: &mut WriteBatch, table: Table, key: Vec<u8>, value: Option<Bytes>) {
    match value {
        Some(value) => batch.put(table, key, value),
        None => batch.remove(table, key),
    }
}
