//! Sign-in at the brokers: settings, and tokens that expire.

use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use protocol::Timestamp;
use protocol::settings::Problems;
use rdkafka::client::OAuthToken;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::{Clock, SystemClock};

/// Lifetime assumed for a token without expiry. librdkafka asks for the next one at four fifths of
/// it.
const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_secs(300);

/// Section `sasl` of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SaslConfig {
    /// SASL mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`. The first and
    /// the last show the secret itself and require `kafka.tls`; `packetboat topics apply` does not
    /// support the last. Unset: no authentication, except by a certificate of `kafka.tls`.
    #[schemars(extend("examples" = ["SCRAM-SHA-512"]))]
    pub mechanism: Option<SaslMechanism>,
    /// User name for the brokers. Not with `OAUTHBEARER`, whose token names the user.
    #[schemars(extend("examples" = ["packetboat"]))]
    pub username: Option<String>,
    /// File that holds only the password; a line end after it is ignored. Read again when it
    /// changes.
    #[schemars(extend("examples" = ["/etc/packetboat/kafka/password"]))]
    pub password_file: Option<PathBuf>,
    /// File with the token for `OAUTHBEARER`. Read again at four fifths of each token's life.
    #[schemars(extend("examples" = ["/var/run/secrets/tokens/kafka"]))]
    pub token_file: Option<PathBuf>,
}

/// SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub enum SaslMechanism {
    /// The password itself: only with `kafka.tls`.
    #[serde(rename = "PLAIN")]
    Plain,
    /// Proof of the password.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Proof of the password.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
    /// A token: only with `kafka.tls`. `packetboat topics` needs another mechanism, as the
    /// administrator's client takes no token.
    #[serde(rename = "OAUTHBEARER")]
    OauthBearer,
}

impl SaslMechanism {
    pub(super) fn name(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
            SaslMechanism::OauthBearer => "OAUTHBEARER",
        }
    }
}

impl SaslConfig {
    pub(super) fn is_on(&self) -> bool {
        self.mechanism.is_some()
    }

    /// Whether a token takes the place of a password.
    pub(super) fn by_token(&self) -> bool {
        self.mechanism == Some(SaslMechanism::OauthBearer)
    }

    /// Lists the settings of this section that cannot work. Reads no file.
    pub(super) fn problems(&self, is_tls: bool) -> Problems {
        let mut problems = Problems::default();
        let (has_username, has_password) = (self.username.is_some(), self.password_file.is_some());
        let has_token = self.token_file.is_some();
        let Some(mechanism) = self.mechanism else {
            if has_username || has_password || has_token {
                let remedy = "Use SCRAM-SHA-512, or a mechanism that the brokers accept";
                problems.refuse(
                    "mechanism",
                    "unset",
                    "credentials are set, but no mechanism",
                    remedy,
                );
            }
            return problems;
        };
        let value = mechanism.name();
        if self.by_token() {
            if !has_token || has_username || has_password {
                let reason = "it needs a token, and neither user nor password";
                let remedy = "Set kafka.sasl.token_file only";
                problems.refuse("mechanism", value, reason, remedy);
            }
        } else if !has_username || !has_password || has_token {
            let reason = "it needs user and password, and no token";
            let remedy = "Set kafka.sasl.username and kafka.sasl.password_file only";
            problems.refuse("mechanism", value, reason, remedy);
        }
        if !is_tls && matches!(mechanism, SaslMechanism::Plain | SaslMechanism::OauthBearer) {
            let reason = "the secret would be sent in cleartext";
            let remedy =
                "Set kafka.tls.ca_file to the brokers' root certificates, or use SCRAM-SHA-512";
            problems.refuse("mechanism", value, reason, remedy);
        }
        problems
    }
}

/// Reads the token that the file holds now.
///
/// # Errors
/// The file cannot be read or is empty, or the token has expired; messages never contain the token.
pub(super) fn read_token(path: &Path) -> Result<OAuthToken, Box<dyn StdError>> {
    let file = path.display();
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read the token file {file}: {error}"))?;
    let token = SecretString::from(text.trim());
    if token.expose_secret().is_empty() {
        return Err(format!("the token file {file} is empty").into());
    }
    let now = SystemClock.now();
    let claims = claims(token.expose_secret()).unwrap_or_default();
    let end = match claims["exp"].as_f64() {
        Some(seconds) => Timestamp::from_millis((seconds * 1e3) as i64),
        None => now + DEFAULT_TOKEN_LIFETIME,
    };
    if end <= now {
        return Err(format!("the token in {file} has expired: renew it").into());
    }
    Ok(OAuthToken {
        token: token.expose_secret().to_owned(),
        principal_name: claims["sub"].as_str().unwrap_or_default().to_owned(),
        lifetime_ms: end.millis(),
    })
}

/// Claims of a JWT, unverified: brokers verify them. `None` for an opaque token.
fn claims(token: &str) -> Option<Value> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&payload).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sasl_settings_must_fit_the_mechanism() {
        let has_problems = |mechanism, parts: &str, is_tls| {
            let part = |name: &str| parts.contains(name).then(|| name.to_owned());
            let sasl = SaslConfig {
                mechanism,
                username: part("user"),
                password_file: part("password").map(Into::into),
                token_file: part("token").map(Into::into),
            };
            !sasl.problems(is_tls).is_empty()
        };
        use SaslMechanism::{OauthBearer, Plain, ScramSha512};
        for (mechanism, parts, is_tls, is_refused) in [
            (None, "", false, false),
            (None, "user", true, true),
            (Some(ScramSha512), "user password", false, false),
            (Some(ScramSha512), "user", true, true),
            (Some(ScramSha512), "user password token", true, true),
            (Some(Plain), "user password", true, false),
            (Some(Plain), "user password", false, true),
            (Some(OauthBearer), "token", true, false),
            (Some(OauthBearer), "token", false, true),
            (Some(OauthBearer), "user password", true, true),
        ] {
            assert_eq!(
                has_problems(mechanism, parts, is_tls),
                is_refused,
                "{mechanism:?} {parts} {is_tls}"
            );
        }
    }

    #[test]
    fn a_token_ends_when_it_says_so() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |text: &str| std::fs::write(file.path(), text).expect("written");
        let token = |claims: &str| format!("e30.{}.", URL_SAFE_NO_PAD.encode(claims));
        write(&token(r#"{"sub":"boat","exp":4102444800}"#));
        let read = read_token(file.path()).expect("a token");
        assert_eq!(read.principal_name, "boat");
        assert_eq!(read.lifetime_ms, 4_102_444_800_000);

        write("opaque\n");
        let read = read_token(file.path()).expect("a token");
        assert_eq!(read.token, "opaque");
        let lifetime = Timestamp::from_millis(read.lifetime_ms).since(SystemClock.now());
        assert!(
            lifetime <= DEFAULT_TOKEN_LIFETIME && lifetime > DEFAULT_TOKEN_LIFETIME / 2,
            "{lifetime:?}"
        );

        for (text, expected) in [
            (token(r#"{"exp":1}"#), "has expired"),
            (String::new(), "is empty"),
        ] {
            write(&text);
            let Err(error) = read_token(file.path()) else {
                panic!("{expected}");
            };
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
