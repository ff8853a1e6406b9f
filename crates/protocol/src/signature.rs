//! Signatures of tokens and assertions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Algorithm of a signature; names of RFC 7518 and RFC 8037.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub enum Algorithm {
    /// Ed25519.
    EdDSA,
    /// ECDSA on P-256 with SHA-256.
    ES256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    RS256,
    /// HMAC with SHA-256.
    HS256,
}
