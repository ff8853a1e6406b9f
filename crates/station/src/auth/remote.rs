//! Sign-in by a service of the platform team, which says whose a token is, within a deadline, a
//! bound and a circuit breaker.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::transport::outside;
use api::v1::authenticator_service_client::AuthenticatorServiceClient;
use api::v1::{AuthenticateRequest, AuthenticateResponse};
use async_trait::async_trait;
use backend::clock::{Clock, SystemClock, TimerClock};
use backend::tls::{CertificateFiles, Certificates, client_config, client_config_with};
use metrics::counter;
use parking_lot::Mutex;
use protocol::circuit::{Circuit, CircuitLimits, Pass};
use protocol::log_pace::LogPace;
use protocol::settings::{Link, Problems};
use protocol::{Code, Refusal, Timestamp, UserId};
use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::config::{Config, LEEWAY, LIFETIME_MAX, address};
use super::{Authenticator, Client, KeyError, Principal};

/// Time for an answer, including that for a connection.
const DEADLINE: Duration = Duration::from_secs(2);
const CIRCUIT_LIMITS: CircuitLimits = CircuitLimits {
    failures_max: 8,
    pause_min: Duration::from_secs(1),
    pause_max: Duration::from_secs(30),
};
/// Sign-ins that wait for an answer; further ones are `unavailable` at once.
const IN_FLIGHT_MAX: usize = 256;
/// Bytes of an answer, which has three numbers.
const ANSWER_BYTES_MAX: usize = 4096;
/// Characters of a refusal that clients get to see.
const TEXT_MAX: usize = 256;
/// Hint for a client that comes too often.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Section `station.auth.remote`: a service that identifies the user of a token (auth.proto).
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteConfig {
    /// Address of the service: https, or http on loopback. The station asks it about tokens that
    /// name none of `issuers`, so about all tokens if there are none. Unset: no service is asked.
    #[schemars(extend("examples" = ["https://sign-in.example:443"]))]
    pub address: Option<Link>,
    /// PEM file with the roots of its certificate. Unset: those of the operating system.
    #[schemars(extend("examples" = ["/etc/packetboat/sign-in/ca.crt"]))]
    pub ca_file: Option<PathBuf>,
    /// PEM file with the certificate that the station shows it, read again when it changes. Unset:
    /// that of section `identity`, if there is one.
    #[schemars(extend("examples" = ["/etc/packetboat/sign-in/tls.crt"]))]
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of `cert_file`, without a passphrase.
    #[schemars(extend("examples" = ["/etc/packetboat/sign-in/tls.key"]))]
    pub key_file: Option<PathBuf>,
    /// Maximum time from `issued_at` to `expires_at` of an answer.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("spanMaximum" = "90days"))]
    pub lifetime_max: Duration,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        RemoteConfig {
            address: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            lifetime_max: Duration::from_secs(24 * 3600),
        }
    }
}

impl RemoteConfig {
    pub fn is_on(&self) -> bool {
        self.address.is_some()
    }

    /// Takes the certificate of the station where no other is named.
    pub fn identify(&mut self, cert_file: Option<&PathBuf>, key_file: Option<&PathBuf>) {
        if self.is_on() && self.cert_file.is_none() && self.key_file.is_none() {
            self.cert_file = cert_file.cloned();
            self.key_file = key_file.cloned();
        }
    }

    /// Settings that cannot work, by names of this section. Reads no file.
    #[must_use]
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.cert_file.is_some() != self.key_file.is_some() {
            let reason = "a certificate and its key must be set together";
            problems.refuse("cert_file", "", reason, "Set both files or none");
        }
        if self.lifetime_max.is_zero() || self.lifetime_max > LIFETIME_MAX {
            let value = format!("{}s", self.lifetime_max.as_secs());
            let reason = "revocations are kept this long, and sessions need some lifetime";
            problems.refuse("lifetime_max", value, reason, "From 1s to 90days");
        }
        if let Some(link) = &self.address
            && let Err(reason) = address(link)
        {
            let remedy = "Such as https://host:port";
            problems.refuse("address", link, reason, remedy);
        }
        problems
    }
}

/// The service, as a station asks it. No answer is remembered.
pub(super) struct Remote {
    uri: tonic::codegen::http::Uri,
    tls: Option<Arc<ClientConfig>>,
    certificates: Option<Arc<Certificates>>,
    /// Made with the first call, as it needs a runtime.
    client: OnceLock<AuthenticatorServiceClient<Channel>>,
    permits: Semaphore,
    circuit: Mutex<Circuit>,
    /// Clock of `circuit`, which never steps.
    timer: TimerClock,
    pace: Mutex<LogPace>,
    lifetime_max: Duration,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl Remote {
    /// Reads certificates, without dialling.
    pub(super) fn open(config: &Config) -> Result<Option<Remote>, KeyError> {
        let remote = &config.remote;
        let Some(link) = &remote.address else {
            return Ok(None);
        };
        let unusable = || KeyError::Address(link.to_string());
        let uri: tonic::codegen::http::Uri = link.expose().parse().map_err(|_| unusable())?;
        let files = remote.cert_file.clone().zip(remote.key_file.clone());
        let load = |(cert_file, key_file)| {
            let files = [CertificateFiles {
                cert_file,
                key_file,
            }];
            Certificates::load(&files, Arc::new(SystemClock))
        };
        let certificates = files.map(load).transpose()?;
        let (ca_file, alpn): (_, &[&[u8]]) = (remote.ca_file.as_deref(), &[b"h2"]);
        let tls = match (&certificates, uri.scheme_str()) {
            (_, Some("http")) => None,
            (Some(certificate), _) => Some(client_config_with(ca_file, certificate.clone(), alpn)?),
            (None, _) => Some(client_config(ca_file, alpn)?),
        };
        Ok(Some(Remote {
            uri,
            tls,
            certificates,
            client: OnceLock::new(),
            permits: Semaphore::new(IN_FLIGHT_MAX),
            circuit: Mutex::new(Circuit::new(CIRCUIT_LIMITS)),
            timer: TimerClock::starting_at(Timestamp::ZERO),
            pace: Mutex::default(),
            lifetime_max: remote.lifetime_max,
        }))
    }

    /// Reads its own certificate again, until dropped.
    pub(super) async fn keep(&self) {
        if let Some(certificates) = self.certificates.clone() {
            certificates.keep("sign-in", "station.auth.remote").await;
        }
    }

    fn client(&self) -> Result<AuthenticatorServiceClient<Channel>, Status> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let channel = outside(&self.uri, self.tls.clone(), DEADLINE)
            .map_err(|error| Status::internal(error.to_string()))?;
        let client =
            AuthenticatorServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(self.client.get_or_init(|| client).clone())
    }

    async fn ask(&self, token: &str, client: &Client<'_>) -> Result<AuthenticateResponse, Status> {
        let mut request = Request::new(AuthenticateRequest {
            token: token.to_owned(),
            platform: client.platform.name().to_owned(),
            device: client.device.as_str().to_owned(),
            address: client.address.to_owned(),
        });
        request.set_timeout(DEADLINE);
        let call = async { self.client()?.authenticate(request).await };
        match timeout(DEADLINE, call).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer within two seconds")),
        }
    }

    /// Notes the outcome of a call, and logs changes of the circuit.
    fn note_outcome(&self, pass: Pass, is_answered: bool) {
        let mut circuit = self.circuit.lock();
        if is_answered && circuit.answered() {
            tracing::info!("station.auth.remote is back");
        }
        if !is_answered && circuit.failed(pass, self.timer.now()) {
            tracing::warn!("station.auth.remote keeps failing: backing off");
        }
    }

    /// Logs a reason, now and then.
    fn log_failure(&self, reason: &str) {
        if let Some(count) = self.pace.lock().count(self.timer.now()) {
            tracing::warn!(
                reason,
                count,
                "no answer from station.auth.remote to sign-ins"
            );
        }
    }

    /// Checks the service's answer.
    fn check(
        &self,
        answer: AuthenticateResponse,
        now: Timestamp,
    ) -> Result<Principal, &'static str> {
        let user = UserId::new(answer.user).map_err(|_| "the answer has no valid user")?;
        let issued_at = Timestamp::from_millis(answer.issued_at);
        let expires_at = Timestamp::from_millis(answer.expires_at);
        if answer.issued_at <= 0 || issued_at > now + LEEWAY {
            return Err("the answer has an invalid or future issued_at");
        }
        if expires_at <= now {
            return Err("the answer has already expired");
        }
        if expires_at > issued_at + self.lifetime_max {
            return Err("the answer expires after lifetime_max");
        }
        Ok(Principal {
            user,
            platform: None,
            device: None,
            issued_at,
            expires_at,
        })
    }
}

#[async_trait]
impl Authenticator for Remote {
    async fn authenticate(
        &self,
        token: &str,
        client: &Client<'_>,
        now: Timestamp,
    ) -> Result<Principal, Refusal> {
        let Ok(_permit) = self.permits.try_acquire() else {
            count("busy");
            return Err(unavailable());
        };
        let pass = match self.circuit.lock().pass(self.timer.now()) {
            Ok(pass) => pass,
            Err(pause) => {
                count("broken");
                return Err(unavailable().retry_after(pause));
            }
        };
        let answer = self.ask(token, client).await;
        let refusal = answer.as_ref().err().and_then(status_refusal);
        self.note_outcome(pass, answer.is_ok() || refusal.is_some());
        match (answer, refusal) {
            (_, Some(refusal)) => {
                count("refused");
                Err(refusal)
            }
            (Ok(answer), None) => match self.check(answer, now) {
                Ok(identity) => {
                    count("accepted");
                    Ok(identity)
                }
                Err(reason) => {
                    count("malformed");
                    self.log_failure(reason);
                    Err(unavailable())
                }
            },
            (Err(status), None) => {
                count("unanswered");
                self.log_failure(&format!("{:?}: {}", status.code(), status.message()));
                Err(unavailable())
            }
        }
    }
}

/// Refusal that a status stands for; `None` if the status says nothing about the token.
fn status_refusal(status: &Status) -> Option<Refusal> {
    let (code, text) = match status.code() {
        tonic::Code::Unauthenticated => (Code::Unauthenticated, "unknown token"),
        tonic::Code::PermissionDenied => (Code::Forbidden, "this user may not sign in"),
        tonic::Code::ResourceExhausted => (Code::RateLimited, "too many sign-ins at the moment"),
        _ => return None,
    };
    let words = status.message().chars().filter(|char| !char.is_control());
    let words: String = words.take(TEXT_MAX).collect();
    let text = if words.is_empty() {
        text.to_owned()
    } else {
        words
    };
    let refusal = Refusal::new(code, text);
    Some(match code {
        Code::RateLimited => refusal.retry_after(RETRY_AFTER),
        _ => refusal,
    })
}

fn unavailable() -> Refusal {
    Refusal::new(
        Code::Unavailable,
        "sign-ins cannot be verified now: try again",
    )
}

fn count(result: &'static str) {
    counter!("station_remote_sign_ins_total", "result" => result).increment(1);
}
