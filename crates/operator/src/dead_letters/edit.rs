//! Edits of letters by an operator, before a redrive.
//!
//! ```text
//! new bytes (beside the letter, a record that is none) ─▶ *edited* (in the log of operations)
//! ```
//!
//! The letter's own record stays as it is. Bytes without an entry do not count: a crash in between
//! leaves the letter as it was. The entry counts if the letter is open and still holds the version
//! that the edit was made from.

use std::time::Duration;

use api::dead_letter::schema;
use api::envelope;
use backend::Kind as Failure;
use backend::queue::NewRecord;
use bytes::Bytes;
use protocol::{Code, Refusal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use similar::TextDiff;

use super::recipients::RecordSubject;
use super::tasks::TaskRefusal;
use super::types::LetterEdit;
use super::{DeadLetters, EDIT_OF, LocatedLetter, Result, TaskOutcome};
use crate::desk::{EditPosition, EditRefusal, EditedLetter, LetterState, OperatorAction, Version};

/// Bytes of an operator's reason.
const WHY_MAX: usize = 500;
/// Bytes shown of a value that is no message.
const SHOWN: usize = 2000;
/// Time after which a difference gets coarser.
const DIFF_TIME: Duration = Duration::from_millis(500);
/// Lines of context around a difference.
const AROUND: usize = 3;

/// Body of a letter, for editing. It may hold what people wrote to each other.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Envelope {
    pub letter: String,
    /// Type of the bytes, such as `packetboat.v1.Task`.
    pub schema: String,
    /// Version of the bytes; an edit names the one that it was made from.
    pub version: Version,
    /// The bytes as JSON; `None` if they are no such message.
    pub text: Option<String>,
    /// Fields that this program does not know, and that the text leaves out.
    pub unknown_fields: Vec<String>,
    /// First part of bytes that are no such message, escaped.
    pub raw: Option<String>,
    /// Error that the letter would die of at once.
    pub flaw: Option<String>,
    /// Reason why the letter cannot be edited now.
    pub locked: Option<String>,
    pub edit: Option<LetterEdit>,
}

/// An edit as an operator asks for it.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LetterChange {
    /// Version that the edit is made from.
    pub base: Version,
    /// The whole envelope, as JSON.
    pub envelope: String,
    /// The operator's reason.
    #[serde(default)]
    pub why: String,
    /// Only preview the edit.
    #[serde(default)]
    pub dry_run: bool,
    /// Accept the loss of fields that this program does not know.
    #[serde(default)]
    pub drop_unknown: bool,
}

/// Result of an edit.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct EditResult {
    /// Version that the edit makes.
    pub version: Version,
    /// Difference by line; empty if nothing changes. It may hold what people wrote to each other.
    pub diff: String,
    /// Names of the changed fields.
    pub fields: Vec<String>,
    /// Error that the letter would die of at once.
    pub flaw: Option<String>,
    /// True if the edit counts.
    pub done: bool,
}

impl DeadLetters {
    /// Body of a letter, for editing; `None` if there is no such letter.
    ///
    /// # Errors
    /// `InvalidArgument` if its bytes are gone, or its time is over.
    pub async fn envelope(&self, id: &str) -> Result<Option<Envelope>, TaskRefusal> {
        let Some(found) = self.find(id).await? else {
            return Ok(None);
        };
        let desk = self.view.now().await?;
        if desk.standing(id, self.backends.clock.now()) == LetterState::Gone {
            return Err(refuse(Code::InvalidArgument, TaskOutcome::Final.text()));
        }
        let Some((key, value)) = self.bytes(&desk, &found).await? else {
            return Err(refuse(Code::InvalidArgument, TaskOutcome::BytesGone.text()));
        };
        let schema = schema(found.letter.origin.topic);
        let read = envelope::to_json(schema, value.clone()).ok();
        let shown = value.slice(..value.len().min(SHOWN));
        Ok(Some(Envelope {
            letter: id.to_owned(),
            schema: schema.to_owned(),
            version: Version::of(&value),
            raw: read.is_none().then(|| shown.escape_ascii().to_string()),
            unknown_fields: read.iter().flat_map(|read| read.unknown.clone()).collect(),
            text: read.map(|read| read.text),
            flaw: self.flaw(&found, key, value),
            locked: desk.may_be_edited(id).err().map(|why| why.to_string()),
            edit: desk.edit(id).map(LetterEdit::from),
        }))
    }

    /// Edits a letter, or previews the edit; `None` if there is no such letter.
    ///
    /// # Errors
    /// The reason for a refusal. A failure of the log leaves open whether the edit counts: look at
    /// the letter.
    pub async fn edit(
        &self,
        by: &str,
        id: &str,
        change: LetterChange,
    ) -> Result<Option<EditResult>, TaskRefusal> {
        let Some(found) = self.find(id).await? else {
            return Ok(None);
        };
        let desk = self.view.now().await?;
        desk.may_be_edited(id)?;
        let Some((key, before)) = self.bytes(&desk, &found).await? else {
            return Err(refuse(Code::InvalidArgument, TaskOutcome::BytesGone.text()));
        };
        if Version::of(&before) != change.base {
            return Err(EditRefusal::Changed.into());
        }
        let (after, diff) = self.draft(&found, &before, &change)?;
        stays_itself(&found, &after)?;
        let schema = schema(found.letter.origin.topic);
        let mut changed = EditResult {
            version: Version::of(&after),
            fields: envelope::changed(schema, &before, &after),
            flaw: self.flaw(&found, key, after.clone()),
            done: false,
            diff,
        };
        if change.dry_run || changed.diff.is_empty() {
            return Ok(Some(changed));
        }
        let mut edited = EditedLetter {
            letter: id.to_owned(),
            base: change.base,
            version: changed.version.clone(),
            at: EditPosition {
                topic: found.cursor.kind.topic(),
                partition: found.cursor.partition,
                offset: 0,
            },
            fields: changed.fields.clone(),
            why: change.why,
        };
        desk.admit_edit(&edited)?;
        edited.at.offset = self.put_beside(by, &found, after).await?;
        let at = edited.at;
        self.say(by, vec![OperatorAction::Edited(edited)]).await?;
        // Another edit, or a redrive, may have been faster.
        let desk = self.view.now().await?;
        match desk.edit(id) {
            Some(edit) if edit.edited.at == at => changed.done = true,
            _ => {
                desk.may_be_edited(id)?;
                return Err(EditRefusal::Changed.into());
            }
        }
        Ok(Some(changed))
    }

    /// New bytes, and their difference from the current ones.
    fn draft(
        &self,
        found: &LocatedLetter,
        before: &Bytes,
        change: &LetterChange,
    ) -> Result<(Bytes, String), TaskRefusal> {
        if change.why.len() > WHY_MAX {
            let text = format!("at most {WHY_MAX} bytes of text");
            return Err(refuse(Code::InvalidArgument, text));
        }
        let schema = schema(found.letter.origin.topic);
        let after = envelope::from_json(schema, &change.envelope)?;
        let most = self.bounds.record_bytes;
        if after.len() > most {
            let text = format!("{} bytes, at most {most} are taken", after.len());
            return Err(refuse(Code::TooLarge, text));
        }
        let old = match envelope::to_json(schema, before.clone()) {
            Ok(old) if !old.unknown.is_empty() && !change.drop_unknown => {
                let text = format!(
                    "the letter has fields that this program does not know, and an edit would lose them: {}",
                    old.unknown.join(", ")
                );
                return Err(refuse(Code::InvalidArgument, text));
            }
            Ok(old) => {
                let unknown = old
                    .unknown
                    .iter()
                    .map(|field| format!("\n# unknown: {field}"));
                old.text + &unknown.collect::<String>()
            }
            Err(_) => {
                let shown = &before[..before.len().min(SHOWN)];
                format!("# no {schema}: {}", shown.escape_ascii())
            }
        };
        let new = envelope::to_json(schema, after.clone())?.text;
        Ok((after, difference(&old, &new)))
    }

    /// Appends the new bytes to the letter's partition, and returns their offset.
    async fn put_beside(
        &self,
        by: &str,
        found: &LocatedLetter,
        value: Bytes,
    ) -> Result<u64, TaskRefusal> {
        let text = |name: &str, value: String| (name.to_owned(), Bytes::from(value));
        let record = NewRecord {
            partition: found.record.partition,
            key: found.record.key.clone(),
            headers: vec![
                text(EDIT_OF, found.letter.id()),
                text("by", by.to_owned()),
                text("at", self.backends.clock.now().to_string()),
                text("schema", schema(found.letter.origin.topic).to_owned()),
            ],
            value,
        };
        let answers = self.backends.queue.producer().publish(vec![record]).await;
        match answers.into_iter().next() {
            Some(Ok(offset)) => Ok(offset),
            Some(Err(error)) if error.kind == Failure::Conflict => Err(refuse(
                Code::TooLarge,
                "the log does not take it: it is too large, most likely",
            )),
            Some(Err(error)) => Err(error.into()),
            None => Err(backend::Error::unavailable("queue", "no answer for a record").into()),
        }
    }
}

/// Refuses to make another message of a letter. The ledger waits for the message that the letter
/// names, in its conversation: with another one in the letter, the ledger would never learn what
/// became of it.
fn stays_itself(found: &LocatedLetter, after: &Bytes) -> Result<(), TaskRefusal> {
    let letter = &found.letter;
    let Some(message) = letter.message else {
        return Ok(());
    };
    let sent = RecordSubject::of(found.cursor.kind, after);
    let is_same = sent.message == Some(message)
        && (letter.conversation.is_none() || sent.conversation == letter.conversation);
    if is_same {
        return Ok(());
    }
    let of = match letter.conversation {
        Some(conversation) => format!("message {message} in conversation {conversation}"),
        None => format!("message {message}"),
    };
    let text = format!(
        "the letter is {of}, and an edit may not make another one of it, or none: nobody would learn what \
         became of it. Keep its id, sender and recipient; send a new message where another one is meant"
    );
    Err(refuse(Code::InvalidArgument, text))
}

fn refuse(code: Code, text: impl Into<String>) -> TaskRefusal {
    Refusal::new(code, text).into()
}

/// Unified difference of two texts, by line.
fn difference(old: &str, new: &str) -> String {
    let mut config = TextDiff::configure();
    let diff = config.timeout(DIFF_TIME).diff_lines(old, new);
    let mut told = diff.unified_diff();
    told.context_radius(AROUND)
        .missing_newline_hint(false)
        .header("before", "after")
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_by_line() {
        let told = difference(
            "{\n  \"a\": 1,\n  \"b\": 2\n}",
            "{\n  \"a\": 1,\n  \"b\": 3\n}",
        );
        assert!(told.contains("-  \"b\": 2\n+  \"b\": 3"), "{told}");
        assert_eq!(difference("{}", "{}"), "");
    }
}
