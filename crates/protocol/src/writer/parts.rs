//! Parts: records that are decided and written together.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::event::is_group_command;
use crate::record::{TaskRecord, Work};
use crate::{ConversationId, GroupId};

/// Group commands of one part: each is a call of its own, side by side, and lists of all their members are stamped
/// together.
const COMMANDS_MAX: usize = 64;

/// Parts of a poll, in order. A part is of group commands, at most one of each group, or has none: what is before a
/// command in the log takes effect before the command is judged, and the command before what is behind it.
///
/// A part that a store refuses falls into halves until one record is to blame.
#[derive(Debug)]
pub struct Parts {
    /// Index ranges of the records, the next one last.
    open: Vec<Range<usize>>,
}

impl Parts {
    /// Parts of at most `most` records: fewer where a store was too slow for more.
    pub fn of(records: &[TaskRecord<'_>], most: usize) -> Parts {
        let mut open = Vec::new();
        let (mut from, mut commanded_groups) = (0, BTreeSet::new());
        for (index, record) in records.iter().enumerate() {
            let command = command(record);
            let follows = index > from
                && match command {
                    Some(group) => {
                        !commanded_groups.is_empty() && !commanded_groups.contains(&group)
                    }
                    None => commanded_groups.is_empty(),
                };
            let has_room = index - from < most.max(1) && commanded_groups.len() < COMMANDS_MAX;
            if index > from && !(follows && has_room) {
                open.push(from..index);
                from = index;
                commanded_groups.clear();
            }
            commanded_groups.extend(command);
        }
        if from < records.len() {
            open.push(from..records.len());
        }
        open.reverse();
        Parts { open }
    }

    /// Takes the next part, which is planned, [put back](Parts::put_back) or [refused](Parts::refused).
    pub fn take(&mut self) -> Option<Range<usize>> {
        self.open.pop()
    }

    /// The first records of the part are dealt with, as many as its plan has outcomes: the others come next.
    pub fn planned(&mut self, part: Range<usize>, count: usize) {
        let rest = part.start + count..part.end;
        if !rest.is_empty() {
            self.open.push(rest);
        }
    }

    /// The part comes next again.
    pub fn put_back(&mut self, part: Range<usize>) {
        self.open.push(part);
    }

    /// A store refused the part: its halves come next. `Some`: it is one record, to be [buried](super::bury).
    pub fn refused(&mut self, part: Range<usize>) -> Option<usize> {
        if part.len() < 2 {
            return Some(part.start);
        }
        let middle = part.start + part.len() / 2;
        self.open.push(middle..part.end);
        self.open.push(part.start..middle);
        None
    }

    /// Index of the first record that is not dealt with; those behind it are not, either.
    pub fn rest(&self) -> Option<usize> {
        self.open.last().map(|part| part.start)
    }
}

/// Group of a command.
fn command(record: &TaskRecord<'_>) -> Option<GroupId> {
    match (&record.task.work, record.task.work.conversation()) {
        (Work::Message(task), Some(ConversationId::Group(group))) => {
            is_group_command(&task.message).then_some(group)
        }
        _ => None,
    }
}
