//! A change of waiting mail: everything one call does, seen by itself as it goes, written as one batch.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::mailbox::{Mail, MailCursor, MailboxPolicy};
use protocol::message::Target;
use protocol::{MessageId, Timestamp};

use super::rows::{self, BoxRow, CountRow};
use crate::Result;
use crate::embedded::{Batch, Engine, Order, Table};

/// How many entries one step of a trim removes.
pub(super) const TRIM_STEP: usize = 256;
/// How far an acknowledgement looks for an entry whose count was lost: devices acknowledge what they
/// paged, which is the front.
const SEARCH_MAX: usize = 1_024;

/// Reads see what is pending before what is stored. Whoever holds one also holds the lock for all
/// changes of mail: bodies are shared between users.
pub(super) struct Change<'a> {
    engine: &'a Engine,
    boxes: BTreeMap<Target, Option<BoxRow>>,
    /// Added or removed.
    entries: BTreeMap<(Target, MailCursor), bool>,
    counts: BTreeMap<MessageId, Option<CountRow>>,
    bodies: BTreeMap<MessageId, Option<Bytes>>,
}

impl<'a> Change<'a> {
    pub(super) fn new(engine: &'a Engine) -> Change<'a> {
        Change {
            engine,
            boxes: BTreeMap::new(),
            entries: BTreeMap::new(),
            counts: BTreeMap::new(),
            bodies: BTreeMap::new(),
        }
    }

    /// Writes everything, or nothing. Not fsynced: the log is, and it redelivers what a power cut takes
    /// from here, because its commits come later in the same journal.
    pub(super) fn write(self) -> Result<()> {
        let mut batch = Batch::new();
        for ((target, at), added) in self.entries {
            let row = added.then(Bytes::new);
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

    /// Adds an entry and makes room for it; answers how many the policy dropped. What waits already
    /// changes nothing.
    pub(super) fn append(
        &mut self,
        target: Target,
        mail: &Mail,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> Result<u32> {
        let at = mail.cursor();
        if self.has(target, at)? {
            return Ok(0);
        }
        let row = match self.mailbox(target)? {
            Some(row) => BoxRow {
                oldest: row.oldest.min(at),
                count: row.count + 1,
            },
            None => BoxRow {
                oldest: at,
                count: 1,
            },
        };
        self.boxes.insert(target, Some(row));
        self.entries.insert((target, at), true);
        self.need_body(mail)?;
        self.trim(target, policy, now)
    }

    /// Removes the oldest of what the policy no longer keeps, [`TRIM_STEP`] at most; answers how many.
    pub(super) fn trim(
        &mut self,
        target: Target,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> Result<u32> {
        let Some(row) = self.mailbox(target)? else {
            return Ok(0);
        };
        let kept = policy.oldest_kept(now);
        let excess = usize::try_from(policy.excess(row.count)).unwrap_or(usize::MAX);
        let limit = match row.oldest.accepted_at < kept {
            true => TRIM_STEP,
            false => excess.min(TRIM_STEP),
        };
        if limit == 0 {
            return Ok(0);
        }
        // One more: the oldest that stays.
        let mut oldest = self.entries_from(target, row.oldest, limit + 1)?;
        let stays = oldest
            .iter()
            .enumerate()
            .position(|(n, entry)| n == limit || n >= excess && entry.accepted_at >= kept);
        let next = stays.map(|n| oldest[n]);
        oldest.truncate(stays.unwrap_or(oldest.len()));
        self.remove(target, &oldest, next)?;
        Ok(oldest.len() as u32)
    }

    /// Removes these; answers which of them waited.
    pub(super) fn acknowledge(
        &mut self,
        target: Target,
        ids: &[MessageId],
    ) -> Result<Vec<MessageId>> {
        let Some(row) = self.mailbox(target)? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for at in self.locate(target, row, ids)? {
            if self.has(target, at)? && !found.contains(&at) {
                found.push(at);
            }
        }
        self.remove(target, &found, None)?;
        Ok(found.into_iter().map(|at| at.id).collect())
    }

    /// Where this one waits, if it does.
    pub(super) fn find(&self, target: Target, id: MessageId) -> Result<Option<MailCursor>> {
        let Some(row) = self.mailbox(target)? else {
            return Ok(None);
        };
        for at in self.locate(target, row, &[id])? {
            if self.has(target, at)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Where these ids would lie, in their order: the count of a body knows its accept time, and where
    /// it was lost the mailbox is searched.
    fn locate(&self, target: Target, row: BoxRow, ids: &[MessageId]) -> Result<Vec<MailCursor>> {
        let mut located = Vec::with_capacity(ids.len());
        let mut searched: Option<Vec<MailCursor>> = None;
        for &id in ids {
            if let Some(CountRow { accepted_at, .. }) = self.count(id)? {
                located.push(MailCursor { accepted_at, id });
                continue;
            }
            let entries = match &searched {
                Some(entries) => entries,
                None => searched.insert(self.entries_from(target, row.oldest, SEARCH_MAX)?),
            };
            located.extend(entries.iter().find(|at| at.id == id));
        }
        Ok(located)
    }

    /// Takes out entries that are there, and their claims on bodies. `next` is the oldest that stays, where
    /// it is known.
    fn remove(
        &mut self,
        target: Target,
        gone: &[MailCursor],
        next: Option<MailCursor>,
    ) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        for &at in gone {
            self.entries.insert((target, at), false);
            self.release_body(at.id)?;
        }
        if let Some(row) = self.mailbox(target)? {
            let count = row.count.saturating_sub(gone.len() as u64);
            let oldest = match next {
                Some(next) => Some(next),
                None if !gone.contains(&row.oldest) => Some(row.oldest),
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

    /// One more entry needs this body; a missing one is set.
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

    /// One entry fewer needs it; the last takes it along. A missing count deletes nothing.
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

    fn has(&self, target: Target, at: MailCursor) -> Result<bool> {
        match self.entries.get(&(target, at)) {
            Some(added) => Ok(*added),
            None => {
                let key = rows::entry_key(target, at);
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

    /// At most `limit` entries from `from` on.
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
        let removed = pending().filter(|(_, added)| !**added).count();
        let stored = limit.saturating_add(removed);
        let mut entries: BTreeSet<MailCursor> = read_entries(self.engine, target, from, stored)?
            .into_iter()
            .collect();
        for (&(_, at), &added) in pending() {
            match added {
                true => entries.insert(at),
                false => entries.remove(&at),
            };
        }
        Ok(entries.into_iter().take(limit).collect())
    }
}

pub(super) fn read_box(engine: &Engine, target: Target) -> Result<Option<BoxRow>> {
    let row = engine.get(Table::Session, &rows::box_key(target))?;
    row.map(|row| BoxRow::read(&row)).transpose()
}

/// At most `limit` stored entries from `from` on.
pub(super) fn read_entries(
    engine: &Engine,
    target: Target,
    from: MailCursor,
    limit: usize,
) -> Result<Vec<MailCursor>> {
    let (start, end) = (rows::entry_key(target, from), rows::entries_end(target));
    let range = start.as_slice()..end.as_slice();
    engine
        .range(Table::Mail, range, Order::Forward, limit)?
        .iter()
        .map(|(key, _)| Ok(rows::read_entry(key)?.1))
        .collect()
}

fn put(batch: &mut Batch, table: Table, key: Vec<u8>, value: Option<Bytes>) {
    match value {
        Some(value) => batch.put(table, key, value),
        None => batch.remove(table, key),
    }
}
