//! What librdkafka tells, as log events and errors of ours.

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

/// A condition that lasts is told again after this long.
const AGAIN: Duration = Duration::from_secs(60);

/// Logs each condition once, and once more each minute that it lasts; and reads tokens.
#[derive(Default)]
pub(super) struct Reporter {
    told: Mutex<BTreeMap<String, Instant>>,
    /// Last reason for which a connection did not come about, with a remedy.
    refusal: Mutex<Option<(Instant, String)>>,
    /// File with the token that is shown, where one is.
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

    /// Says that brokers can be shown all that they want.
    pub(super) fn is_equipped(&self) -> bool {
        self.token_file.is_none() || self.has_token.load(Ordering::Acquire)
    }

    /// A token for librdkafka, which asks again before it ends.
    pub(super) fn token(&self) -> std::result::Result<OAuthToken, Box<dyn StdError>> {
        let file = self.token_file.as_deref();
        let token = file.ok_or("no token was asked for").map_err(Into::into);
        let token = token.and_then(read_token);
        match &token {
            Ok(_) => self.has_token.store(true, Ordering::Release),
            Err(error) if self.first("token", Instant::now()) => {
                tracing::warn!(target: "librdkafka", %error, "the brokers get no new token");
            }
            Err(_) => {}
        }
        token
    }

    /// The reason why a broker took no connection in the last minute, and what to do; once.
    pub(super) fn refusal(&self) -> Option<String> {
        let (at, refusal) = self.refusal.lock().take()?;
        (at.elapsed() < AGAIN).then_some(refusal)
    }

    fn first(&self, condition: &str, now: Instant) -> bool {
        let mut told = self.told.lock();
        if told.get(condition).is_some_and(|&at| now < at + AGAIN) {
            return false;
        }
        told.retain(|_, at| now < *at + AGAIN);
        told.insert(condition.to_owned(), now);
        true
    }

    /// Things that a broker may want of a connection that it ends without a word.
    pub(super) fn doubt(&self, error: &Error) -> Option<String> {
        let failure = error.source.downcast_ref::<Failure>()?;
        let code = failure.source.rdkafka_error_code()?;
        let is_transport = matches!(
            code,
            RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure
        );
        let ended = || {
            format!(
                "nobody is connected to; where a broker is there, {}",
                ended("kafka", self.is_tls)
            )
        };
        is_transport.then(ended)
    }

    pub(super) fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        use RDKafkaLogLevel::{Alert, Critical, Debug, Emerg, Error, Info, Notice, Warning};
        match level {
            Emerg | Alert | Critical | Error if self.first(facility, Instant::now()) => {
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
        if self.first(&condition, now) {
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

/// Remedy for a connection that did not come about because of credentials.
fn remedy(error: &KafkaError, reason: &str) -> Option<&'static str> {
    match error.rdkafka_error_code()? {
        RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => Some(
            "kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password_file have to be as the brokers have them",
        ),
        RDKafkaErrorCode::SSL => Some(
            "kafka.tls.ca_file has to hold the root of the broker's certificate, which has to bear the name that is \
             dialed; where brokers ask for a certificate, kafka.tls.cert_file has to be one that they trust",
        ),
        _ if reason.contains("security.protocol") => Some(
            "brokers may want TLS (kafka.tls.ca_file turns it on), or this port has none (leave kafka.tls out)",
        ),
        _ => None,
    }
}

impl rdkafka::consumer::ConsumerContext for Reporter {}

#[derive(Debug, thiserror::Error)]
#[error("{doing}: {source}")]
struct Failure {
    doing: String,
    #[source]
    source: KafkaError,
}

/// An error of the seam for what went wrong while `doing` something.
pub(super) fn failed(doing: impl Into<String>, source: KafkaError) -> Error {
    // A property's value may be a secret that stands under a misspelt name.
    if let KafkaError::ClientConfig(_, reason, name, _) = &source {
        return Error::conflict(SEAM, format!("the property {name} is refused: {reason}"));
    }
    let kind = source
        .rdkafka_error_code()
        .map_or(Kind::Unavailable, kind_of);
    let doing = doing.into();
    Error::new(SEAM, kind, Failure { doing, source })
}

fn kind_of(code: RDKafkaErrorCode) -> Kind {
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

/// Runs what blocks, off the runtime. The task goes on when the future is dropped.
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
    fn a_condition_that_lasts_is_told_once_a_minute() {
        let reporter = Reporter::default();
        let now = Instant::now();
        assert!(reporter.first("down", now));
        assert!(!reporter.first("down", now + AGAIN / 2));
        assert!(reporter.first("other", now + AGAIN / 2));
        assert!(reporter.first("down", now + AGAIN));
    }

    #[test]
    fn a_misspelt_secret_is_not_told() {
        let config = rdkafka::ClientConfig::new()
            .set("sasl.pasword", "hidden")
            .create_native_config();
        let error = failed("connecting", config.err().unwrap());
        assert_eq!(error.kind, Kind::Conflict);
        let told = format!("{:?} {}", error, error.source);
        assert!(told.contains("sasl.pasword") && !told.contains("hidden"));
    }
}
