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
use super::rules::{EditPosition, EditRefusal, EditedLetter, LetterState, OperatorAction, Version};
use super::tasks::TaskRefusal;
use super::types::LetterEdit;
use super::{DeadLetters, EDIT_OF, LocatedLetter, Result, TaskOutcome};

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
    /// Whether the edit counts.
    pub done: bool,
}

impl DeadLetters {
    /// Body of a letter, for editing; `None` if there is no such letter.
    ///
    /// # Errors
    /// `InvalidArgument` if its bytes are gone, or its time is over.
    pub async fn envelope(&self, id: &str) -> Result<Option<Envelope>, TaskRefusal> {
        let Some(located_letter) = self.find(id).await? else {
            return Ok(None);
        };
        let operations = self.view.now().await?;
        if operations.standing(id, self.backends.clock.now()) == LetterState::Gone {
            return Err(refuse(Code::InvalidArgument, TaskOutcome::Final.text()));
        }
        let Some((key, value)) = self.bytes(&operations, &located_letter).await? else {
            return Err(refuse(Code::InvalidArgument, TaskOutcome::BytesGone.text()));
        };
        let schema = schema(located_letter.letter.origin.topic);
        let read = envelope::to_json(schema, value.clone()).ok();
        let excerpt = value.slice(..value.len().min(SHOWN));
        Ok(Some(Envelope {
            letter: id.to_owned(),
            schema: schema.to_owned(),
            version: Version::of(&value),
            raw: read.is_none().then(|| excerpt.escape_ascii().to_string()),
            unknown_fields: read.iter().flat_map(|read| read.unknown.clone()).collect(),
            text: read.map(|read| read.text),
            flaw: self.flaw(&located_letter, key, value),
            locked: operations
                .may_be_edited(id)
                .err()
                .map(|reason| reason.to_string()),
            edit: operations.edit(id).map(LetterEdit::from),
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
        let Some(located_letter) = self.find(id).await? else {
            return Ok(None);
        };
        let operations = self.view.now().await?;
        operations.may_be_edited(id)?;
        let Some((key, old_bytes)) = self.bytes(&operations, &located_letter).await? else {
            return Err(refuse(Code::InvalidArgument, TaskOutcome::BytesGone.text()));
        };
        if Version::of(&old_bytes) != change.base {
            return Err(EditRefusal::Changed.into());
        }
        let (new_bytes, diff) = self.draft(&located_letter, &old_bytes, &change)?;
        check_identity(&located_letter, &new_bytes)?;
        let schema = schema(located_letter.letter.origin.topic);
        let mut result = EditResult {
            version: Version::of(&new_bytes),
            fields: envelope::changed_fields(schema, &old_bytes, &new_bytes),
            flaw: self.flaw(&located_letter, key, new_bytes.clone()),
            done: false,
            diff,
        };
        if change.dry_run || result.diff.is_empty() {
            return Ok(Some(result));
        }
        let mut edited_letter = EditedLetter {
            letter: id.to_owned(),
            base: change.base,
            version: result.version.clone(),
            at: EditPosition {
                topic: located_letter.cursor.kind.topic(),
                partition: located_letter.cursor.partition,
                offset: 0,
            },
            fields: result.fields.clone(),
            why: change.why,
        };
        operations.admit_edit(&edited_letter)?;
        edited_letter.at.offset = self.append_edit(by, &located_letter, new_bytes).await?;
        let at = edited_letter.at;
        self.say(by, vec![OperatorAction::Edited(edited_letter)])
            .await?;
        // Another edit, or a redrive, may have been faster.
        let operations = self.view.now().await?;
        match operations.edit(id) {
            Some(edit) if edit.letter.at == at => result.done = true,
            _ => {
                operations.may_be_edited(id)?;
                return Err(EditRefusal::Changed.into());
            }
        }
        Ok(Some(result))
    }

    /// New bytes, and their difference from the current ones.
    fn draft(
        &self,
        located_letter: &LocatedLetter,
        old_bytes: &Bytes,
        change: &LetterChange,
    ) -> Result<(Bytes, String), TaskRefusal> {
        if change.why.len() > WHY_MAX {
            let text = format!("at most {WHY_MAX} bytes of text");
            return Err(refuse(Code::InvalidArgument, text));
        }
        let schema = schema(located_letter.letter.origin.topic);
        let new_bytes = envelope::from_json(schema, &change.envelope)?;
        let limit = self.bounds.record_bytes;
        if new_bytes.len() > limit {
            let text = format!("{} bytes, at most {limit} are taken", new_bytes.len());
            return Err(refuse(Code::TooLarge, text));
        }
        let old = match envelope::to_json(schema, old_bytes.clone()) {
            Ok(old) if !old.unknown.is_empty() && !change.drop_unknown => {
                let text = format!(
                    "the letter has fields unknown to this version, which an edit would lose: {}",
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
                let excerpt = &old_bytes[..old_bytes.len().min(SHOWN)];
                format!("# not a {schema}: {}", excerpt.escape_ascii())
            }
        };
        let new = envelope::to_json(schema, new_bytes.clone())?.text;
        Ok((new_bytes, difference(&old, &new)))
    }

    /// Appends the new bytes to the letter's partition, and returns their offset.
    async fn append_edit(
        &self,
        by: &str,
        located_letter: &LocatedLetter,
        value: Bytes,
    ) -> Result<u64, TaskRefusal> {
        let text = |name: &str, value: String| (name.to_owned(), Bytes::from(value));
        let record = NewRecord {
            partition: located_letter.record.partition,
            key: located_letter.record.key.clone(),
            headers: vec![
                text(EDIT_OF, located_letter.letter.id()),
                text("by", by.to_owned()),
                text("at", self.backends.clock.now().to_string()),
                text(
                    "schema",
                    schema(located_letter.letter.origin.topic).to_owned(),
                ),
            ],
            value,
        };
        let answers = self.backends.queue.producer().publish(vec![record]).await;
        match answers.into_iter().next() {
            Some(Ok(offset)) => Ok(offset),
            Some(Err(error)) if error.kind == Failure::Conflict => Err(refuse(
                Code::TooLarge,
                "the log refused it, most likely because it is too large",
            )),
            Some(Err(error)) => Err(error.into()),
            None => Err(backend::Error::unavailable("queue", "no answer for a record").into()),
        }
    }
}

/// Refuses to make another message of a letter. The ledger waits for the message that the letter
/// names, in its conversation: with another one in the letter, the ledger would never learn what
/// became of it.
fn check_identity(located_letter: &LocatedLetter, new_bytes: &Bytes) -> Result<(), TaskRefusal> {
    let letter = &located_letter.letter;
    let Some(message) = letter.message else {
        return Ok(());
    };
    let subject = RecordSubject::of(located_letter.cursor.kind, new_bytes);
    let is_same = subject.message == Some(message)
        && (letter.conversation.is_none() || subject.conversation == letter.conversation);
    if is_same {
        return Ok(());
    }
    let identity = match letter.conversation {
        Some(conversation) => format!("message {message} in conversation {conversation}"),
        None => format!("message {message}"),
    };
    let text = format!(
        "the letter is {identity}, and an edit must not turn it into another message, or its outcome \
         would be lost. Keep its id, sender and recipient; to send something else, send a new \
         message"
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
    let mut unified_diff = diff.unified_diff();
    unified_diff
        .context_radius(AROUND)
        .missing_newline_hint(false)
        .header("before", "after")
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_by_line() {
        let diff = difference(
            "{\n  \"a\": 1,\n  \"b\": 2\n}",
            "{\n  \"a\": 1,\n  \"b\": 3\n}",
        );
        assert!(diff.contains("-  \"b\": 2\n+  \"b\": 3"), "{diff}");
        assert_eq!(difference("{}", "{}"), "");
    }
}
