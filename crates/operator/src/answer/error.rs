//! Refusals.

use protocol::Refusal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of every refusal; the status says the rest.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ErrorAnswer {
    pub error: ErrorDetail,
}

/// Reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// Name for programs: a code of docs/protocol.md, `conflict`, `misdirected` or `internal`.
    pub code: String,
    /// Sentence for people.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retry: bool,
}

impl From<&Refusal> for ErrorDetail {
    fn from(refusal: &Refusal) -> ErrorDetail {
        ErrorDetail {
            code: refusal.code.name().to_owned(),
            message: refusal.text.clone(),
            retry: refusal.code.retryable(),
        }
    }
}
