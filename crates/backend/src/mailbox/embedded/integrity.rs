//! Audit of waiting mail: every entry has a body, each body is counted right, nothing is left over.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::MessageId;
use protocol::message::Target;

use super::rows::{self, BoxRow, CountRow, MARKER_KEY};
use crate::Result;
use crate::embedded::{Engine, ScanOrder, Table};

const STEP: usize = 1_024;

/// Counts and findings of an audit, which reads everything: for tests, and for operators on
/// request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntegrityCheck {
    pub mailboxes: u64,
    pub entries: u64,
    pub bodies: u64,
    /// Findings as text; empty if all is well.
    pub wrong: Vec<String>,
}

/// Reads all mail; the result holds only while nobody changes mail.
pub(super) fn audit(engine: &Engine) -> Result<IntegrityCheck> {
    let mut audit = IntegrityCheck::default();
    let mut references: BTreeMap<MessageId, u64> = BTreeMap::new();
    let mut boxes: BTreeMap<Target, BoxRow> = BTreeMap::new();
    each(engine, Table::Mail, |key, _| {
        if key == MARKER_KEY {
            return Ok(());
        }
        let (target, entry) = rows::read_entry(key)?;
        audit.entries += 1;
        *references.entry(entry.id).or_default() += 1;
        boxes
            .entry(target)
            .and_modify(|row| row.count += 1)
            .or_insert(BoxRow {
                oldest: entry,
                count: 1,
            });
        Ok(())
    })?;
    audit.check_boxes(engine, boxes)?;
    audit.check_bodies(engine, references)?;
    Ok(audit)
}

impl IntegrityCheck {
    fn check_boxes(&mut self, engine: &Engine, mut boxes: BTreeMap<Target, BoxRow>) -> Result<()> {
        let (mut cursor, end) = (rows::boxes_after(None), rows::BOXES_END);
        loop {
            let range = cursor.as_slice()..end;
            let step = engine.range(Table::Session, range, ScanOrder::Forward, STEP)?;
            for (key, value) in &step {
                let target = rows::read_box_key(key)?;
                let row = BoxRow::read(value)?;
                self.mailboxes += 1;
                if boxes.remove(&target) != Some(row) {
                    let finding = format!("the box of {target:?} says {row:?}, its entries do not");
                    self.wrong.push(finding);
                }
                cursor = rows::boxes_after(Some(target));
            }
            if step.len() < STEP {
                break;
            }
        }
        let without = |target| format!("entries of {target:?} have no box");
        self.wrong.extend(boxes.keys().map(without));
        Ok(())
    }

    fn check_bodies(
        &mut self,
        engine: &Engine,
        references: BTreeMap<MessageId, u64>,
    ) -> Result<()> {
        let mut counts: BTreeMap<MessageId, u64> = BTreeMap::new();
        let mut bodies: BTreeSet<MessageId> = BTreeSet::new();
        each(engine, Table::MailBody, |key, value| {
            match rows::read_body_key(key)? {
                (id, true) => {
                    bodies.insert(id);
                }
                (id, false) => {
                    counts.insert(id, CountRow::read(value)?.count);
                }
            }
            Ok(())
        })?;
        self.bodies = bodies.len() as u64;
        for (id, entries) in &references {
            if !bodies.contains(id) {
                self.wrong
                    .push(format!("message {id} waits without a body"));
            }
            let count = counts.get(id).copied().unwrap_or(0);
            if count != *entries {
                let finding = format!("message {id} is counted {count} times, {entries} hold it");
                self.wrong.push(finding);
            }
        }
        for id in bodies.iter().chain(counts.keys()) {
            if !references.contains_key(id) {
                self.wrong
                    .push(format!("nobody holds message {id}, its rows stay"));
            }
        }
        Ok(())
    }
}

fn each(
    engine: &Engine,
    table: Table,
    mut visit: impl FnMut(&[u8], &Bytes) -> Result<()>,
) -> Result<()> {
    let mut from: Vec<u8> = Vec::new();
    loop {
        let step = engine.range(table, from.as_slice().., ScanOrder::Forward, STEP)?;
        for (key, value) in &step {
            visit(key, value)?;
        }
        match step.last() {
            Some((last, _)) if step.len() == STEP => from = [last.as_ref(), &[0]].concat(),
            _ => return Ok(()),
        }
    }
}
