//! Signatures per Standard Webhooks, so that receivers can verify them with a library: HMAC-SHA256
//! over `id.timestamp.body`, in base64 behind `v1,`.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use protocol::Timestamp;
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;
use thiserror::Error;

/// Prefix of a secret in the standard's own form; base64 follows.
const PREFIX: &str = "whsec_";

/// A shared secret. Never printed.
#[derive(Clone)]
pub struct Secret(SecretSlice<u8>);

/// Reason why a secret cannot be used.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("cannot read the webhook secret {0}")]
    Unreadable(PathBuf, #[source] std::io::Error),
    #[error("the webhook secret is empty")]
    Empty,
    #[error("the webhook secret begins with whsec_ but is not base64")]
    NotBase64,
}

impl Secret {
    /// Reads a secret from a file; surrounding white space is ignored.
    pub fn read(path: &Path) -> Result<Secret, SecretError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SecretError::Unreadable(path.to_owned(), error))?;
        Secret::parse(text.trim())
    }

    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let bytes = match text.strip_prefix(PREFIX) {
            Some(base64) => STANDARD
                .decode(base64)
                .map_err(|_| SecretError::NotBase64)?,
            None => text.as_bytes().to_vec(),
        };
        if bytes.is_empty() {
            return Err(SecretError::Empty);
        }
        Ok(Secret(bytes.into()))
    }

    /// Returns the value of the header `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: Timestamp, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret())
            .expect("HMAC takes a key of any length");
        mac.update(format!("{id}.{}.", seconds(timestamp)).as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// Seconds since 1970, as used in the header `webhook-timestamp`.
pub(super) fn seconds(timestamp: Timestamp) -> i64 {
    timestamp.millis().div_euclid(1000)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the standard's own libraries.
    #[test]
    fn a_signature_is_the_published_one() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        let signature = secret.sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            Timestamp::from_millis(1_614_265_330_000),
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_that_signs_nothing_is_refused() {
        assert!(matches!(Secret::parse(""), Err(SecretError::Empty)));
        assert!(matches!(Secret::parse("whsec_"), Err(SecretError::Empty)));
        let broken = Secret::parse("whsec_?");
        assert!(matches!(broken, Err(SecretError::NotBase64)));
        assert_eq!(
            format!("{:?}", Secret::parse("hush").expect("any text")),
            "Secret"
        );
    }
}
