//! librdkafka's reports as log events and errors of the seam.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::time::Instant;

use super::SEAM;
use super::config::KafkaConfig;
use super::sasl::read_token;
use crate::tls::ended;
use crate::{Error, Kind};

/// Interval at which a lasting condition is logged again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Logs each condition once, and once more per minute while it lasts; also reads tokens.
#[derive(Default)]
pub(super) struct Reporter {
    logged_at: Mutex<BTreeMap<String, Instant>>,
    /// Latest reason why a connection failed, with a remedy.
    refusal: Mutex<Option<(Instant, String)>>,
    /// File with the token to present, if sign-in uses one.
    token_file: Option<PathBuf>,
    is_tls: bool,
    has_token: AtomicBool,
}

impl Reporter {
    pub(super) fn new(config: &KafkaConfig) -> Reporter {
        let token_file = config.sasl.token_file.clone();
        Reporter {
            token_file: token_file.filter(|_| config.sasl.by_token()),
            is_tls: config.tls.is_on(),
            ..Reporter::default()
        }
    }

    /// True once everything brokers ask for can be presented.
    pub(super) fn is_equipped(&self) -> bool {
        self.token_file.is_none() || self.has_token.load(Ordering::Acquire)
    }

    /// Token for librdkafka, which asks for the next one before this one expires.
    pub(super) fn token(&self) -> std::result::Result<OAuthToken, Box<dyn StdError>> {
        let file = self.token_file.as_deref();
        let token = file.ok_or("no token was asked for").map_err(Into::into);
        let token = token.and_then(read_token);
        match &token {
            Ok(_) => self.has_token.store(true, Ordering::Release),
            Err(error) if self.should_log("token", Instant::now()) => {
                tracing::warn!(target: "librdkafka", %error, "no new token for the brokers");
            }
            Err(_) => {}
        }
        token
    }

    /// Takes the reason why a broker refused a connection within the last minute, and the remedy.
    pub(super) fn refusal(&self) -> Option<String> {
        let (at, refusal) = self.refusal.lock().take()?;
        (at.elapsed() < REPEAT_INTERVAL).then_some(refusal)
    }

    fn should_log(&self, condition: &str, now: Instant) -> bool {
        let mut logged_at = self.logged_at.lock();
        if logged_at
            .get(condition)
            .is_some_and(|&at| now < at + REPEAT_INTERVAL)
        {
            return false;
        }
        logged_at.retain(|_, at| now < *at + REPEAT_INTERVAL);
        logged_at.insert(condition.to_owned(), now);
        true
    }

    /// Suggests what brokers may demand when they close a connection without a reason.
    pub(super) fn suspected_cause(&self, error: &Error) -> Option<String> {
        let failure = error.source.downcast_ref::<KafkaFailure>()?;
        let code = failure.source.rdkafka_error_code()?;
        let is_transport = matches!(
            code,
            RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure
        );
        let hint = || {
            format!(
                "no broker connection; if a broker is running, {}",
                ended("kafka", self.is_tls)
            )
        };
        is_transport.then(hint)
    }

    pub(super) fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        use RDKafkaLogLevel::{Alert, Critical, Debug, Emerg, Error, Info, Notice, Warning};
        match level {
            Emerg | Alert | Critical | Error if self.should_log(facility, Instant::now()) => {
                tracing::warn!(target: "librdkafka", facility, "{message}");
            }
            Emerg | Alert | Critical | Error | Warning | Notice => {
                tracing::info!(target: "librdkafka", facility, "{message}");
            }
            Info | Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
        }
    }

    pub(super) fn error(&self, error: &KafkaError, reason: &str) {
        let (condition, now) = (error.to_string(), Instant::now());
        let remedy = remedy(error, reason);
        if let Some(remedy) = remedy {
            *self.refusal.lock() = Some((now, format!("{reason}: {remedy}")));
        }
        if self.should_log(&condition, now) {
            tracing::warn!(target: "librdkafka", %error, remedy, "{reason}");
        } else {
            tracing::debug!(target: "librdkafka", %error, "{reason}");
        }
    }
}

impl ClientContext for Reporter {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        Reporter::log(self, level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        Reporter::error(self, &error, reason);
    }

    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> std::result::Result<OAuthToken, Box<dyn StdError>> {
        self.token()
    }
}

/// Remedy for a connection that failed because of credentials.
fn remedy(error: &KafkaError, reason: &str) -> Option<&'static str> {
    match error.rdkafka_error_code()? {
        RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => Some(
            "kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password_file must match the brokers",
        ),
        RDKafkaErrorCode::SSL => Some(
            "kafka.tls.ca_file must contain the root of the broker's certificate, which must cover \
             the broker's host name; if brokers ask for a certificate, kafka.tls.cert_file must be \
             one that they trust",
        ),
        _ if reason.contains("security.protocol") => Some(
            "the brokers may require TLS (turn it on with kafka.tls.ca_file), or this port has no \
             TLS (remove kafka.tls)",
        ),
        _ => None,
    }
}

impl rdkafka::consumer::ConsumerContext for Reporter {}

#[derive(Debug, thiserror::Error)]
#[error("{doing}: {source}")]
struct KafkaFailure {
    doing: String,
    #[source]
    source: KafkaError,
}

/// Wraps a Kafka error that occurred while `doing` something into an error of the seam.
pub(super) fn failed(doing: impl Into<String>, source: KafkaError) -> Error {
    // The value of a property may be a secret under a misspelt name.
    if let KafkaError::ClientConfig(_, reason, name, _) = &source {
        return Error::conflict(
            SEAM,
            format!("librdkafka rejected the property {name}: {reason}"),
        );
    }
    let kind = source
        .rdkafka_error_code()
        .map_or(Kind::Unavailable, error_kind);
    let doing = doing.into();
    Error::new(SEAM, kind, KafkaFailure { doing, source })
}

fn error_kind(code: RDKafkaErrorCode) -> Kind {
    use RDKafkaErrorCode as Code;
    match code {
        Code::FencedInstanceId
        | Code::FencedMemberEpoch
        | Code::IllegalGeneration
        | Code::InvalidRecord
        | Code::MessageSizeTooLarge
        | Code::UnknownMemberId => Kind::Conflict,
        Code::BadMessage | Code::InvalidMessage => Kind::Corrupt,
        _ => Kind::Unavailable,
    }
}

/// Runs blocking work off the runtime. The task continues if the future is dropped.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> crate::Result<T> + Send + 'static,
) -> crate::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::unavailable(SEAM, error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_condition_is_logged_once_a_minute() {
        let reporter = Reporter::default();
        let now = Instant::now();
        assert!(reporter.should_log("down", now));
        assert!(!reporter.should_log("down", now + REPEAT_INTERVAL / 2));
        assert!(reporter.should_log("other", now + REPEAT_INTERVAL / 2));
        assert!(reporter.should_log("down", now + REPEAT_INTERVAL));
    }

    #[test]
    fn misspelt_secret_is_not_logged() {
        let config = rdkafka::ClientConfig::new()
            .set("sasl.pasword", "hidden")
            .create_native_config();
        let error = failed("connecting", config.err().unwrap());
        assert_eq!(error.kind, Kind::Conflict);
        let text = format!("{:?} {}", error, error.source);
        assert!(text.contains("sasl.pasword") && !text.contains("hidden"));
    }
}
