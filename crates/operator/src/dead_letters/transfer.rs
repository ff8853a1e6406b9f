//! Export and import of letters: for a colleague, or beyond the retention of the log. Letters leave
//! the log as they are, and come back only into the log that they came from, as their names are
//! places in it.

use std::collections::BTreeSet;

use api::dead_letter::DeadLetter;
use backend::Kind;
use backend::queue::NewRecord;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use protocol::keys::Topic;
use protocol::{Code, Refusal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::OperatorAction;
use super::tasks::TaskRefusal;
use super::types::{Filter, LetterCursor, Selection};
use super::{DeadLetters, EDIT_OF, LocatedLetter, Result, STEPS};
use crate::answer::id;

/// Bytes of letters in one package, roughly; a single letter may be larger.
const PACKAGE_BYTES: usize = 1 << 20;
/// Letters of one package at most.
pub const PACKAGE_MAX: usize = 500;

/// A complete letter. Its bytes may be what people wrote. It lies in files of operators: this form is
/// stored.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct LetterPackage {
    /// Installation that it came from.
    // A number in files of earlier versions.
    #[serde(with = "id")]
    #[schemars(with = "String")]
    pub cluster: u64,
    pub id: String,
    pub headers: Vec<(String, HeaderValue)>,
    /// Key of the record, in base64.
    pub key: String,
    /// Original bytes, in base64; empty if neither letter nor log has them.
    pub value: String,
}

/// Value of a header, byte for byte: a text, or `{"base64": …}` if it is none.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(untagged)]
#[schemars(rename = "PackageHeaderValue")]
pub enum HeaderValue {
    Text(String),
    Bytes { base64: String },
}

impl HeaderValue {
    fn from_bytes(value: &Bytes) -> HeaderValue {
        match std::str::from_utf8(value) {
            Ok(text) => HeaderValue::Text(text.to_owned()),
            Err(_) => HeaderValue::Bytes {
                base64: BASE64_STANDARD.encode(value),
            },
        }
    }

    /// `None` if it is not base64.
    fn bytes(&self) -> Option<Bytes> {
        match self {
            HeaderValue::Text(text) => Some(text.clone().into()),
            HeaderValue::Bytes { base64 } => Some(BASE64_STANDARD.decode(base64).ok()?.into()),
        }
    }
}

/// Some letters, and the place to go on from; `None` at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Package {
    pub letters: Vec<LetterPackage>,
    pub next: Option<LetterCursor>,
}

/// Result of an import: ids of the letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ImportResult {
    /// Added to the log.
    pub imported: Vec<String>,
    /// Present already, and left alone.
    pub present: Vec<String>,
    /// Refused by the log: too large, most likely.
    pub refused: Vec<String>,
}

impl DeadLetters {
    /// Exports the next letters that pass the filter, with their bodies. Logs before who takes
    /// them, and why.
    pub async fn pack(
        &self,
        by: &str,
        cluster: u64,
        filter: &Filter,
        cursor: Option<LetterCursor>,
        reason: &str,
    ) -> Result<Package> {
        let package = self.package(cluster, filter, cursor).await?;
        if let Some(first) = package.letters.first() {
            let action = OperatorAction::Exported {
                from: first.id.clone(),
                letters: package.letters.len() as u64,
                why: reason.to_owned(),
            };
            self.say(by, vec![action]).await?;
        }
        Ok(package)
    }

    async fn package(
        &self,
        cluster: u64,
        filter: &Filter,
        cursor: Option<LetterCursor>,
    ) -> Result<Package> {
        let (operations, now) = (self.view.now().await?, self.backends.clock.now());
        let (mut package, mut bytes) = (Package::default(), 0);
        let mut walk = self.walk(cursor).at_most(STEPS);
        while bytes < PACKAGE_BYTES && package.letters.len() < PACKAGE_MAX {
            let Some(located_letter) = walk.next().await? else {
                package.next = walk.rest();
                return Ok(package);
            };
            let letter = located_letter.to_letter(&operations, now);
            if filter.lets_through(&letter) && !letter.gone {
                let letter_package = self.pack_letter(cluster, &located_letter).await?;
                bytes += letter_package.value.len();
                package.letters.push(letter_package);
            }
        }
        package.next = walk.place();
        Ok(package)
    }

    async fn pack_letter(
        &self,
        cluster: u64,
        located_letter: &LocatedLetter,
    ) -> Result<LetterPackage> {
        // As the letter died: edits stay at the desk. If it was too large for its bytes, the record
        // that died may still have them.
        let bytes = self.original(located_letter).await?;
        let (key, value) =
            bytes.unwrap_or_else(|| (located_letter.record.key.clone(), Bytes::new()));
        let headers = located_letter.record.headers.iter();
        Ok(LetterPackage {
            cluster,
            id: located_letter.letter.id(),
            headers: headers
                .map(|(name, value)| (name.clone(), HeaderValue::from_bytes(value)))
                .collect(),
            key: BASE64_STANDARD.encode(key),
            value: BASE64_STANDARD.encode(value),
        })
    }

    /// Imports letters that are missing. Logs before who does so, and why. Two imports at once may
    /// both add a letter. That harms nobody: readers take the first record of a name, and
    /// operations name their letters.
    ///
    /// # Errors
    /// `InvalidArgument` names the first package that is no letter, and nothing was done. After a
    /// failure of the log some letters may be there: ask again.
    pub async fn unpack(
        &self,
        by: &str,
        cluster: u64,
        letters: Vec<LetterPackage>,
        reason: &str,
    ) -> Result<ImportResult, TaskRefusal> {
        if letters.len() > PACKAGE_MAX {
            let text = format!("at most {PACKAGE_MAX} letters at a time");
            return Err(Refusal::new(Code::InvalidArgument, text).into());
        }
        let mut records = Vec::with_capacity(letters.len());
        for letter in &letters {
            records.push((letter.id.clone(), self.unpack_letter(cluster, letter)?));
        }
        let ids = letters.into_iter().map(|letter| letter.id).collect();
        let present_ids = self.choose(&Selection::ids(ids)).await?;
        let present_ids = present_ids.into_iter().filter(|(_, at)| at.is_some());
        let mut present_ids: BTreeSet<String> = present_ids.map(|(id, _)| id).collect();
        let mut result = ImportResult::default();
        let mut new = Vec::new();
        for (id, record) in records {
            if present_ids.insert(id.clone()) {
                result.imported.push(id);
                new.push(record);
            } else {
                result.present.push(id);
            }
        }
        if new.is_empty() {
            return Ok(result);
        }
        let action = OperatorAction::Imported {
            letters: result.imported.clone(),
            why: reason.to_owned(),
        };
        self.say(by, vec![action]).await?;
        let outcome = self.backends.queue.producer().publish(new).await;
        let new_ids = std::mem::take(&mut result.imported);
        for (id, outcome) in new_ids.into_iter().zip(outcome) {
            match outcome {
                Ok(_) => result.imported.push(id),
                Err(error) if error.kind == Kind::Conflict => result.refused.push(id),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(result)
    }

    fn unpack_letter(&self, cluster: u64, package: &LetterPackage) -> Result<NewRecord, Refusal> {
        let refuse = |problem: &str| {
            let text = format!("{} is not a dead letter: {problem}", package.id);
            Refusal::new(Code::InvalidArgument, text)
        };
        let headers = package.headers.iter();
        let headers = headers.map(|(name, value)| Some((name.clone(), value.bytes()?)));
        let headers: Option<Vec<(String, Bytes)>> = headers.collect();
        let headers = headers.ok_or_else(|| refuse("a header is not base64"))?;
        if headers.iter().any(|(name, _)| name == EDIT_OF) {
            return Err(refuse("it is an edit of a dead letter"));
        }
        let letter = DeadLetter::from_headers(&headers).map_err(|r| refuse(&r.text))?;
        if package.cluster != cluster {
            return Err(refuse("it comes from another installation"));
        }
        if letter.id() != package.id {
            return Err(refuse("its headers belong to another letter"));
        }
        let bytes = |text: &str| BASE64_STANDARD.decode(text).map(Bytes::from);
        let key = bytes(&package.key).map_err(|_| refuse("its key is not base64"))?;
        let value = bytes(&package.value).map_err(|_| refuse("its value is not base64"))?;
        if value.is_empty() {
            return Err(refuse("its bytes are missing"));
        }
        let topic = match letter.origin.topic {
            Topic::Notification => Topic::NotificationDead,
            Topic::Message | Topic::Retry(_) => Topic::Dead,
            Topic::Dead | Topic::NotificationDead | Topic::Operation => {
                return Err(refuse("that topic has no dead letters"));
            }
        };
        Ok(NewRecord {
            headers,
            ..NewRecord::keyed(&*self.backends.queue, topic, key, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = r#"{"cluster":"18446744073709551615","id":"message-0-0","headers":[["reason","too-large"],["raw",{"base64":"AP8="}]],"key":"a2V5","value":"AA=="}"#;

    /// Files of operators keep this form.
    #[test]
    fn the_stored_form_of_a_package_stays() {
        let package: LetterPackage = serde_json::from_str(FORM).expect("a package");
        assert_eq!(package.cluster, u64::MAX);
        assert_eq!(serde_json::to_string(&package).expect("JSON"), FORM);
    }

    // Programs whose numbers have 53 bits rounded it, and the import was refused.
    #[test]
    fn a_file_that_was_written_with_a_number_is_read() {
        let package: LetterPackage = serde_json::from_str(FORM).expect("a package");
        let number_form = FORM.replace(r#""18446744073709551615""#, "18446744073709551615");
        let read: LetterPackage = serde_json::from_str(&number_form).expect("a package");
        assert_eq!(read, package);
        let small = FORM.replace(r#""18446744073709551615""#, "7");
        let read: LetterPackage = serde_json::from_str(&small).expect("a package");
        assert_eq!(read.cluster, 7);
    }
}
