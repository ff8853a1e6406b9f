//! Reasons of dead letters, for `#[serde(with = …)]`.

use protocol::ledger::DeadReason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reason of a dead letter; docs/operations/dead-letters.md describes each.
#[derive(JsonSchema, Serialize, Deserialize)]
#[serde(remote = "DeadReason", rename_all = "snake_case")]
pub enum Reason {
    Undecodable,
    #[serde(alias = "too-large")]
    TooLarge,
    Misplaced,
    #[serde(alias = "max-retries")]
    MaxRetries,
    #[serde(alias = "store-rejected")]
    StoreRejected,
    #[serde(alias = "handler-panic")]
    HandlerPanic,
    Expired,
    Refused,
}

/// Reads a name of the API (`too_large`), or one of headers and commands (`too-large`).
pub fn from_name(name: &str) -> Option<DeadReason> {
    DeadReason::from_name(&name.replace('_', "-"))
}

/// Name in the API.
pub fn name(reason: DeadReason) -> String {
    reason.name().replace('-', "_")
}

/// The same for a reason that may be missing.
pub mod or_none {
    use protocol::ledger::DeadReason;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Reason;

    #[derive(Serialize, Deserialize)]
    struct NamedReason(#[serde(with = "Reason")] DeadReason);

    pub fn serialize<S: Serializer>(reason: &Option<DeadReason>, to: S) -> Result<S::Ok, S::Error> {
        reason.map(NamedReason).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DeadReason>, D::Error> {
        let named_reason = Option::<NamedReason>::deserialize(from)?;
        Ok(named_reason.map(|NamedReason(reason)| reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Death {
        #[serde(with = "Reason")]
        reason: DeadReason,
    }

    #[test]
    fn a_reason_has_one_name_in_answers_and_is_known_by_both() {
        for reason in DeadReason::ALL {
            let json = serde_json::to_value(Death { reason }).expect("JSON");
            assert_eq!(json["reason"], name(reason));
            for spelling in [name(reason), reason.name().to_owned()] {
                assert_eq!(from_name(&spelling), Some(reason));
                let read = serde_json::json!({ "reason": spelling });
                let read: Death = serde_json::from_value(read).expect("a reason");
                assert_eq!(read.reason, reason);
            }
        }
        assert_eq!(from_name("boredom"), None);
    }
}
