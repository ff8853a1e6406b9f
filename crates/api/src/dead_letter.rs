//! Headers of a dead letter, which ordinary tools show beside a record of the topics `dead` and
//! `notification-dead`. The record's value is the original one, byte for byte, so that a redrive is
//! exact.

use bytes::Bytes;
use protocol::delivery::Source;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::message::Target;
use protocol::{
    Code, ConversationId, GroupId, MessageId, Refusal, Timestamp, TraceContext, UserId,
};

use crate::status::clip;
use crate::trace::TRACEPARENT;

/// Longest `error-message`, in bytes; longer ones are cut.
pub const ERROR_BYTES_MAX: usize = 512;

/// Position of the record that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterOrigin {
    pub topic: Topic,
    pub partition: u32,
    pub offset: u64,
}

/// Facts about a dead letter that need no look into its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    pub origin: LetterOrigin,
    /// `None` if the record could not be read.
    pub message: Option<MessageId>,
    pub conversation: Option<ConversationId>,
    /// Targets that failed; empty if the whole record did.
    pub targets: Vec<Target>,
    pub retry_count: u32,
    pub first_failed_at: Timestamp,
    pub last_failed_at: Timestamp,
    pub reason: DeadReason,
    /// Error text for a person; never a body. Control characters become spaces, and it is cut to
    /// [`ERROR_BYTES_MAX`].
    pub error_message: String,
    /// Name of the carrier that gave up; for a notification, `horn` and the provider's name.
    pub carrier: String,
    pub build: String,
    pub trace: Option<TraceContext>,
    /// Letter whose redrive died again as this one.
    pub parent: Option<String>,
}

/// Header of a letter's own record: the letter's name, whatever else this version can read of it.
pub const ID: &str = "dlq-id";

/// Header of a record that redrives a letter: the letter's name.
pub const LETTER: &str = "letter";

/// Letter that a record redrives.
pub fn parent(headers: &[(String, Bytes)]) -> Option<String> {
    Headers(headers).optional(LETTER, parsed).ok()?
}

impl DeadLetter {
    /// Name of the letter, the same for the same record and targets however often it is written:
    /// `message-3-1042`, followed by a hash of the targets if there are any.
    pub fn id(&self) -> String {
        letter_id(self.origin, &self.targets)
    }

    /// Encodes the letter in plain UTF-8, one header per fact.
    pub fn to_headers(&self) -> Vec<(String, Bytes)> {
        let mut headers = vec![
            header(ID, self.id()),
            header("origin-topic", self.origin.topic.name()),
            header("origin-partition", self.origin.partition.to_string()),
            header("origin-offset", self.origin.offset.to_string()),
            header("retry-count", self.retry_count.to_string()),
            header("first-failed-at", self.first_failed_at.to_string()),
            header("last-failed-at", self.last_failed_at.to_string()),
            header("reason", self.reason.name()),
            header("error-message", readable(&self.error_message)),
            header("carrier-id", self.carrier.clone()),
            header("build", self.build.clone()),
            header("schema", schema(self.origin.topic)),
        ];
        let optional = [
            ("msg-id", self.message.map(|id| id.to_string())),
            ("conversation", self.conversation.map(|c| c.to_string())),
            ("platforms", targets_text(&self.targets)),
            (TRACEPARENT, self.trace.map(|trace| trace.to_string())),
            ("redriven-from", self.parent.clone()),
        ];
        headers.extend(
            optional
                .into_iter()
                .filter_map(|(name, value)| Some(header(name, value?))),
        );
        headers
    }

    /// Reads a letter from the headers of its record.
    ///
    /// # Errors
    /// `Malformed`, naming the header that is missing or invalid. Unknown headers are skipped.
    pub fn from_headers(headers: &[(String, Bytes)]) -> Result<DeadLetter, Refusal> {
        let headers = Headers(headers);
        Ok(DeadLetter {
            origin: LetterOrigin {
                topic: headers.required("origin-topic", Topic::from_name)?,
                partition: headers.required("origin-partition", parsed)?,
                offset: headers.required("origin-offset", parsed)?,
            },
            message: headers.optional("msg-id", parsed)?,
            conversation: headers.optional("conversation", parse_conversation)?,
            targets: headers
                .optional("platforms", parse_targets)?
                .unwrap_or_default(),
            retry_count: headers.required("retry-count", parsed)?,
            first_failed_at: headers.required("first-failed-at", parse_time)?,
            last_failed_at: headers.required("last-failed-at", parse_time)?,
            reason: headers.required("reason", DeadReason::from_name)?,
            error_message: headers.required("error-message", parsed)?,
            carrier: headers.required("carrier-id", parsed)?,
            build: headers.required("build", parsed)?,
            trace: headers.trace(),
            parent: headers.optional("redriven-from", parsed)?,
        })
    }
}

/// See [`DeadLetter::id`].
pub fn letter_id(origin: LetterOrigin, targets: &[Target]) -> String {
    let source = Source {
        topic: origin.topic,
        partition: origin.partition,
        offset: origin.offset,
    };
    source.letter(targets)
}

/// Type of a letter's value, by the topic of the record that died.
pub fn schema(topic: Topic) -> &'static str {
    match topic {
        Topic::Notification | Topic::NotificationDead => "packetboat.v1.NotificationTask",
        Topic::Message | Topic::Retry(_) | Topic::Dead | Topic::Operation => "packetboat.v1.Task",
    }
}

fn header(name: &str, value: impl Into<String>) -> (String, Bytes) {
    (name.to_owned(), Bytes::from(value.into()))
}

fn readable(text: &str) -> String {
    clip(text, ERROR_BYTES_MAX).replace(char::is_control, " ")
}

/// Text such as `12/ios,12/web`.
fn targets_text(targets: &[Target]) -> Option<String> {
    let texts: Vec<String> = targets
        .iter()
        .map(|target| format!("{}/{}", target.user, target.platform))
        .collect();
    (!texts.is_empty()).then(|| texts.join(","))
}

fn parse_targets(text: &str) -> Option<Vec<Target>> {
    text.split(',')
        .map(|target| {
            let (user, platform) = target.split_once('/')?;
            Some(Target {
                user: user.parse().ok()?,
                platform: platform.parse().ok()?,
            })
        })
        .collect()
}

fn parsed<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok().map(Timestamp::from_millis)
}

/// Parses the text of [`ConversationId`]'s `Display`.
fn parse_conversation(text: &str) -> Option<ConversationId> {
    let (tag, rest) = text.split_once(':')?;
    match tag {
        "p" => {
            let (low, high) = rest.split_once(':')?;
            let (low, high): (UserId, UserId) = (low.parse().ok()?, high.parse().ok()?);
            ConversationId::private(low, high)
        }
        "g" => rest.parse::<GroupId>().ok().map(ConversationId::Group),
        "s" => rest.parse::<UserId>().ok().map(ConversationId::System),
        _ => None,
    }
}

struct Headers<'a>(&'a [(String, Bytes)]);

impl Headers<'_> {
    fn optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some((_, value)) = self.0.iter().find(|(n, _)| n == name) else {
            return Ok(None);
        };
        let value = std::str::from_utf8(value).ok().and_then(read);
        value.map(Some).ok_or_else(|| {
            Refusal::new(
                Code::Malformed,
                format!("cannot parse the dead letter's header {name}"),
            )
        })
    }

    /// An invalid trace is no reason to refuse the letter.
    fn trace(&self) -> Option<TraceContext> {
        let read = |text: &str| Some(TraceContext::parse(text));
        self.optional(TRACEPARENT, read).ok()?.flatten()
    }

    fn required<T>(&self, name: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<T, Refusal> {
        self.optional(name, read)?.ok_or_else(|| {
            Refusal::new(
                Code::Malformed,
                format!("the dead letter has no header {name}"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::convert::arbitrary;

    proptest! {
        #[test]
        fn letters_survive_their_headers(letter in arbitrary::dead_letter()) {
            prop_assert_eq!(DeadLetter::from_headers(&letter.to_headers()), Ok(letter));
        }

        #[test]
        fn the_id_does_not_depend_on_the_order_of_targets(letter in arbitrary::dead_letter()) {
            let mut other_order = letter.clone();
            other_order.targets.reverse();
            prop_assert_eq!(other_order.id(), letter.id());
        }

        #[test]
        fn the_error_is_one_short_readable_line(mut letter in arbitrary::dead_letter(), text: String) {
            letter.error_message = text.repeat(20);
            let back = DeadLetter::from_headers(&letter.to_headers()).expect("well-formed");
            prop_assert!(back.error_message.len() <= ERROR_BYTES_MAX);
            prop_assert!(!back.error_message.contains(char::is_control));
        }
    }

    #[test]
    fn ids_tell_records_and_targets_apart() {
        let origin = |offset| LetterOrigin {
            topic: Topic::Retry(2),
            partition: 3,
            offset,
        };
        let target = |user, platform: &str| Target {
            user: UserId::new(user).expect("positive"),
            platform: platform.parse().expect("known"),
        };
        assert_eq!(letter_id(origin(7), &[]), "retry-2-3-7");
        let ios = letter_id(origin(7), &[target(1, "ios")]);
        assert!(ios.starts_with("retry-2-3-7-"), "{ios}");
        assert_ne!(ios, letter_id(origin(7), &[target(1, "web")]));
        assert_ne!(ios, letter_id(origin(8), &[target(1, "ios")]));
    }

    #[test]
    fn a_missing_or_nonsensical_header_is_named() {
        let refusal = DeadLetter::from_headers(&[]).expect_err("nothing there");
        assert!(refusal.text.contains("origin-topic"), "{refusal}");
        let headers = [header("origin-topic", "mesage")];
        let refusal = DeadLetter::from_headers(&headers).expect_err("no such topic");
        assert!(refusal.text.contains("header origin-topic"), "{refusal}");
    }
}
