//! Body of a letter, as JSON that a person can edit: the message of the wire itself, field by
//! field, so that even a body that our own decoding refuses can be seen.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, MessageDescriptor, ReflectMessage as _,
    SerializeOptions, Value,
};
use protocol::{Code, Refusal};

/// Limit of names of changed fields.
const MAX_FIELDS: usize = 100;

/// JSON of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Text with line breaks. Includes fields with their default, and no absent messages.
    pub text: String,
    /// Fields that this program does not know, and that the text leaves out: `body.message#24`.
    pub unknown: Vec<String>,
}

/// Reads bytes as the message of this full name.
///
/// # Errors
/// `Malformed` if they are no such message, `Unsupported` if there is no message of this name.
pub fn to_json(schema: &str, bytes: Bytes) -> Result<Envelope, Refusal> {
    let message = decode(schema, bytes)?;
    let mut unknown = Vec::new();
    find_unknown(&message, "", &mut unknown);
    Ok(Envelope {
        text: json_text(&message)?,
        unknown,
    })
}

/// Encodes a message that was written as JSON.
///
/// # Errors
/// `InvalidArgument` names the field or the line that cannot be read.
pub fn from_json(schema: &str, text: &str) -> Result<Bytes, Refusal> {
    let refuse = |error: serde_json::Error| {
        let text = format!("the envelope is not a {schema}: {error}");
        Refusal::new(Code::InvalidArgument, text)
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let message = DynamicMessage::deserialize(descriptor(schema)?, &mut json).map_err(refuse)?;
    json.end().map_err(refuse)?;
    Ok(message.encode_to_vec().into())
}

/// Names of the fields in which two messages differ, at most a hundred, without their content.
/// Bytes that are no such message differ from anything as a whole: `*`.
pub fn changed_fields(schema: &str, old: &Bytes, new: &Bytes) -> Vec<String> {
    let (Ok(old), Ok(new)) = (decode(schema, old.clone()), decode(schema, new.clone())) else {
        return vec!["*".to_owned()];
    };
    let mut fields = BTreeSet::new();
    compare(&old, &new, "", &mut fields);
    fields.into_iter().take(MAX_FIELDS).collect()
}

/// Everything in proto/, as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Everything in proto/.
pub(crate) fn descriptors() -> Option<&'static DescriptorPool> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| DescriptorPool::decode(DESCRIPTORS).ok());
    pool.as_ref()
}

fn descriptor(schema: &str) -> Result<MessageDescriptor, Refusal> {
    let descriptor = descriptors().and_then(|pool| pool.get_message_by_name(schema));
    descriptor.ok_or_else(|| {
        let text = format!("unknown message type {schema:?}");
        Refusal::new(Code::Unsupported, text)
    })
}

fn decode(schema: &str, bytes: Bytes) -> Result<DynamicMessage, Refusal> {
    DynamicMessage::decode(descriptor(schema)?, bytes)
        .map_err(|error| Refusal::new(Code::Malformed, format!("not a {schema}: {error}")))
}

fn json_text(message: &DynamicMessage) -> Result<String, Refusal> {
    let mut text = Vec::new();
    let mut json = serde_json::Serializer::pretty(&mut text);
    let options = SerializeOptions::new().skip_default_fields(false);
    let result = message.serialize_with_options(&mut json, &options);
    let refuse = |error: &dyn std::fmt::Display| {
        let text = format!("cannot write it as JSON: {error}");
        Refusal::new(Code::Malformed, text)
    };
    result.map_err(|error| refuse(&error))?;
    String::from_utf8(text).map_err(|error| refuse(&error))
}

fn field_path(parent: &str, name: &str) -> String {
    match parent {
        "" => name.to_owned(),
        parent => format!("{parent}.{name}"),
    }
}

fn find_unknown(message: &DynamicMessage, parent: &str, unknown: &mut Vec<String>) {
    for field in message.unknown_fields() {
        if unknown.len() < MAX_FIELDS {
            unknown.push(format!("{parent}#{}", field.number()));
        }
    }
    for (field, value) in message.fields() {
        let path = field_path(parent, field.json_name());
        match value {
            Value::Message(inner) => find_unknown(inner, &path, unknown),
            Value::List(items) => {
                for (number, item) in items.iter().enumerate() {
                    if let Value::Message(inner) = item {
                        find_unknown(inner, &format!("{path}[{number}]"), unknown);
                    }
                }
            }
            _ => {}
        }
    }
}

fn compare(
    old: &DynamicMessage,
    new: &DynamicMessage,
    parent: &str,
    changed_paths: &mut BTreeSet<String>,
) {
    if old.unknown_fields().ne(new.unknown_fields()) {
        changed_paths.insert(format!("{parent}#"));
    }
    for field in old.descriptor().fields() {
        if changed_paths.len() >= MAX_FIELDS {
            return;
        }
        let path = field_path(parent, field.json_name());
        compare_field(&field, old, new, &path, changed_paths);
    }
}

fn compare_field(
    field: &FieldDescriptor,
    old_message: &DynamicMessage,
    new_message: &DynamicMessage,
    path: &str,
    changed_paths: &mut BTreeSet<String>,
) {
    let is_present = (old_message.has_field(field), new_message.has_field(field));
    let (old, new) = (old_message.get_field(field), new_message.get_field(field));
    match (&*old, &*new) {
        (Value::Message(old), Value::Message(new)) if is_present == (true, true) => {
            compare(old, new, path, changed_paths);
        }
        (Value::List(old), Value::List(new)) if old.len() == new.len() => {
            for (number, (old, new)) in old.iter().zip(new).enumerate() {
                let path = format!("{path}[{number}]");
                match (old, new) {
                    (Value::Message(old), Value::Message(new)) => {
                        compare(old, new, &path, changed_paths);
                    }
                    (old, new) if old != new => {
                        changed_paths.insert(path);
                    }
                    _ => {}
                }
            }
        }
        (old, new) if old != new || is_present.0 != is_present.1 => {
            changed_paths.insert(path.to_owned());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::convert::arbitrary;
    use crate::task::Value;
    use crate::v1;

    const TASK: &str = "packetboat.v1.Task";
    const NOTIFICATION: &str = "packetboat.v1.NotificationTask";

    fn there_and_back(schema: &str, bytes: &Bytes) -> Bytes {
        let envelope = to_json(schema, bytes.clone()).expect("it is one");
        assert_eq!(envelope.unknown, Vec::<String>::new());
        from_json(schema, &envelope.text).expect("it comes back")
    }

    proptest! {
        #[test]
        fn tasks_survive_a_look(task in arbitrary::task()) {
            let bytes = task.encode();
            let back = there_and_back(TASK, &bytes);
            prop_assert_eq!(protocol::record::Task::decode(back.clone()), Ok(task));
            prop_assert_eq!(changed_fields(TASK, &bytes, &back), Vec::<String>::new());
        }

        #[test]
        fn notifications_survive_a_look(task in arbitrary::notification()) {
            let back = there_and_back(NOTIFICATION, &task.encode());
            prop_assert_eq!(crate::task::NotificationTask::decode(back), Ok(task));
        }

        #[test]
        fn arbitrary_bytes_are_shown_or_refused(bytes: Vec<u8>) {
            drop(to_json(TASK, bytes.clone().into()));
            drop(changed_fields(NOTIFICATION, &bytes.into(), &Bytes::new()));
        }
    }

    /// A task that our own decoding refuses: platforms that do not exist, invalid ids.
    fn damaged() -> Bytes {
        let target = v1::DeliverTarget {
            user: -7,
            platform: 99,
        };
        let deliver = v1::DeliverTask {
            targets: vec![target],
            ..v1::DeliverTask::default()
        };
        let task = v1::Task {
            body: Some(v1::task::Body::Deliver(deliver)),
            ..v1::Task::default()
        };
        task.encode_to_vec().into()
    }

    #[test]
    fn an_undecodable_task_is_shown_and_can_be_repaired() {
        let bytes = damaged();
        assert!(protocol::record::Task::decode(bytes.clone()).is_err());
        let text = to_json(TASK, bytes.clone()).expect("a message").text;
        assert!(text.contains("\"platform\": 99"), "{text}");
        assert!(text.contains("\"user\": \"-7\""), "{text}");
        assert_eq!(there_and_back(TASK, &bytes), bytes);
        let text = text.replace("99", "\"PLATFORM_WEB\"").replace("-7", "7");
        let repair = from_json(TASK, &text).expect("a task");
        assert_eq!(
            changed_fields(TASK, &bytes, &repair),
            ["deliver.targets[0].platform", "deliver.targets[0].user"]
        );
    }

    #[test]
    fn a_field_that_is_not_known_is_told_and_refused() {
        let mut bytes = damaged().to_vec();
        bytes.extend([0x98, 0x06, 0x01]); // field 99, a number
        let envelope = to_json(TASK, bytes.into()).expect("a message");
        assert_eq!(envelope.unknown, ["#99"]);
        let error_text = from_json(TASK, "{\n\"retryCuont\": 1}")
            .expect_err("a slip")
            .text;
        assert!(
            error_text.contains("retryCuont") && error_text.contains("line 2"),
            "{error_text}"
        );
        let error_text = from_json(TASK, "{\n\"retryCount\": }")
            .expect_err("no JSON")
            .text;
        assert!(error_text.contains("line 2"), "{error_text}");
        assert!(from_json(TASK, "{} {}").is_err());
        assert!(from_json("packetboat.v1.Nothing", "{}").is_err());
    }

    #[test]
    fn bytes_that_are_no_message_differ_as_a_whole() {
        let garbage = Bytes::from_static(b"\xff");
        assert!(to_json(TASK, garbage.clone()).is_err());
        assert_eq!(changed_fields(TASK, &garbage, &Bytes::new()), ["*"]);
    }
}
