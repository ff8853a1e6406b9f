//! Operators' commands reach a running Packetboat through its admin port.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use backend::tls::{client_config, rustls_error};
use clap::Args;
use operator::answer::ErrorAnswer;
use reqwest::{Client, Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::OnceCell;

/// ALPN protocol of the commands.
const HTTP: &[u8] = b"http/1.1";
/// Time limit for connecting, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A refusal: a status, and the reason.
#[derive(Debug, Error)]
#[error("{status}: {message}")]
pub(super) struct DeskError {
    status: StatusCode,
    message: String,
}

impl DeskError {
    /// Reads a refusal of a desk. A proxy refuses in a form of its own, which is shown as it is.
    fn read(status: StatusCode, body: &str) -> DeskError {
        let answer = serde_json::from_str::<ErrorAnswer>(body);
        let message = answer.map_or_else(|_| body.trim().to_owned(), |answer| answer.error.message);
        DeskError { status, message }
    }

    /// Whether the desk does one thing at a time and is busy with another.
    pub(super) fn is_busy(&self) -> bool {
        self.status == StatusCode::TOO_MANY_REQUESTS
    }
}

/// Identity of the operator, if operators sign in.
#[derive(Clone, Debug, Args)]
pub struct OperatorToken {
    /// Token of admin.operators, if operators sign in. Visible in the process list: prefer a file.
    #[arg(
        id = "operator-token",
        long = "operator-token",
        env = "PACKETBOAT_ADMIN_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    text: Option<SecretString>,
    /// File whose first line is the token; wins over PACKETBOAT_ADMIN_TOKEN.
    #[arg(
        id = "operator-token-file",
        long = "operator-token-file",
        env = "PACKETBOAT_ADMIN_TOKEN_FILE",
        value_name = "FILE"
    )]
    file: Option<PathBuf>,
}

impl OperatorToken {
    fn read(&self) -> Result<Option<SecretString>> {
        let Some(file) = &self.file else {
            return Ok(self.text.clone());
        };
        let context = || {
            format!(
                "reading your token in {} (--operator-token-file)",
                file.display()
            )
        };
        let read = std::fs::read_to_string(file);
        let text = read.map(SecretString::from).with_context(context)?;
        let token = text.expose_secret().lines().next();
        let token = token.unwrap_or_default().trim();
        if token.is_empty() {
            bail!("{}: the first line is empty", context());
        }
        Ok(Some(token.into()))
    }
}

/// Credentials of the operator, and roots of the desk's certificate.
#[derive(Clone, Debug, Args)]
pub struct DeskCredentials {
    #[command(flatten)]
    token: OperatorToken,
    /// File of PEM certificates that sign those of desks (https). Default: those the operating
    /// system trusts.
    #[arg(long, env = "PACKETBOAT_ADMIN_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

impl DeskCredentials {
    fn client(&self, admin: &str) -> Result<Client> {
        // The first caller chooses for the process; all of ours choose the same.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            // A desk closes idle connections.
            .pool_max_idle_per_host(0);
        let is_tls = admin.starts_with("https://");
        let client = match &self.ca_file {
            Some(file) if !is_tls => bail!(
                "--ca-file {} needs TLS, and {admin} has none: use https://, or leave it out",
                file.display()
            ),
            Some(file) => {
                let config = client_config(Some(file), &[HTTP]).context("reading --ca-file")?;
                client.tls_backend_preconfigured(Arc::unwrap_or_clone(config))
            }
            None if is_tls => {
                let config = client_config(None, &[HTTP]).context(
                    "reading the root certificates of the operating system; use --ca-file FILE for others",
                )?;
                client.tls_backend_preconfigured(Arc::unwrap_or_clone(config))
            }
            None => client,
        };
        client.build().context("creating the HTTP client")
    }
}

/// Address of the admin port.
#[derive(Clone, Debug, Args)]
pub struct Desk {
    /// Admin port of a running Packetboat; https:// if it uses TLS.
    #[arg(
        long,
        env = "PACKETBOAT_ADMIN",
        default_value = "http://127.0.0.1:9190",
        value_name = "URL"
    )]
    admin: String,
    #[command(flatten)]
    credentials: DeskCredentials,
    /// Built at the first call.
    #[arg(skip)]
    client: OnceCell<Client>,
}

impl Desk {
    pub(super) fn at(admin: &str, credentials: DeskCredentials) -> Desk {
        Desk {
            admin: admin.to_owned(),
            credentials,
            client: OnceCell::new(),
        }
    }

    pub(super) async fn get<A: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<A> {
        self.call(Method::GET, path, query, &()).await
    }

    pub(super) async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A> {
        self.call(Method::POST, path, &(), body).await
    }

    async fn call<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: &impl Serialize,
        body: &impl Serialize,
    ) -> Result<A> {
        let url = format!("{}{path}", self.admin.trim_end_matches('/'));
        let query = serde_json::to_value(query)?;
        let query: Vec<(String, String)> = query
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), parameter(value)))
            .collect();
        let connect = async || self.credentials.client(&self.admin);
        let client = self.client.get_or_try_init(connect).await?;
        let mut request = client.request(method.clone(), &url);
        if !query.is_empty() {
            request = request.query(&query);
        }
        if let Some(token) = self.credentials.token.read()? {
            request = request.bearer_auth(token.expose_secret());
        }
        if method != Method::GET {
            request = request.json(body);
        }
        let send_result = request.send().await;
        let response = send_result.map_err(|error| {
            let text = format!("reaching {} ({})", self.admin, advice(&self.admin, &error));
            anyhow::Error::from(error).context(text)
        })?;
        let status = response.status();
        let text = response.text().await.context("reading the answer")?;
        match status {
            StatusCode::OK => serde_json::from_str(&text).context(
                "cannot parse the answer: does \
                                                                   the process run another \
                                                                   version?",
            ),
            _ => Err(DeskError::read(status, &text).into()),
        }
    }
}

/// Value of a parameter; that of a time is its milliseconds.
fn parameter(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(time) => time.get("ms").unwrap_or(value).to_string(),
        other => other.to_string(),
    }
}

/// Remedy for a call without an answer.
fn advice(admin: &str, error: &reqwest::Error) -> &'static str {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = rustls_error(error) {
            return tls_advice(error);
        }
        next = error.source();
    }
    if error.is_connect() {
        return "is Packetboat running? Set its admin port with --admin or PACKETBOAT_ADMIN";
    }
    if admin.starts_with("https://") {
        "it closed the connection: try again"
    } else {
        "this is not an admin port, or it needs TLS: try https://"
    }
}

fn tls_advice(error: &rustls::Error) -> &'static str {
    use rustls::{CertificateError as Reason, Error};
    match error {
        Error::InvalidCertificate(Reason::UnknownIssuer | Reason::BadSignature) => {
            "its certificate has an unknown issuer: set --ca-file or PACKETBOAT_ADMIN_CA_FILE to a \
             file with its root. If the issuer should be known, someone may be intercepting the \
             connection"
        }
        Error::InvalidCertificate(
            Reason::NotValidForName | Reason::NotValidForNameContext { .. },
        ) => {
            "its certificate does not cover this host name: use one that it lists, or have this one added"
        }
        Error::InvalidCertificate(Reason::Expired | Reason::ExpiredContext { .. }) => {
            "its certificate has expired: renew the files of its admin.tls, or check the clock here"
        }
        Error::InvalidCertificate(_) => "its certificate is not valid",
        Error::InvalidMessage(_) => "it does not speak TLS: try http://",
        _ => "TLS failed",
    }
}

#[cfg(test)]
mod tests {
    use operator::answer::Time;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_says_its_message_and_a_strangers_text_is_shown() {
        let error_text = |body: &str| DeskError::read(StatusCode::NOT_FOUND, body).to_string();
        let desk = r#"{"error":{"code":"not_found","message":"no dead letter x","retry":false}}"#;
        assert_eq!(error_text(desk), "404 Not Found: no dead letter x");
        assert_eq!(error_text("no such page\n"), "404 Not Found: no such page");
        assert!(DeskError::read(StatusCode::TOO_MANY_REQUESTS, desk).is_busy());
    }

    #[test]
    fn a_parameter_is_text_and_a_time_its_milliseconds() {
        let time = serde_json::to_value(Time::from_ms(7)).expect("JSON");
        for (value, text) in [
            (json!("p:1:2"), "p:1:2"),
            (json!(true), "true"),
            (time, "7"),
        ] {
            assert_eq!(parameter(&value), text);
        }
    }

    #[test]
    fn a_token_comes_from_the_first_line_of_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ann");
        let token = OperatorToken {
            text: Some("from the environment".into()),
            file: Some(file.clone()),
        };
        let missing_file = format!("{:#}", token.read().expect_err("no file"));
        assert!(
            missing_file.contains("--operator-token-file"),
            "{missing_file}"
        );
        std::fs::write(&file, "\n").expect("written");
        let empty = format!("{:#}", token.read().expect_err("an empty line"));
        assert!(empty.contains("first line is empty"), "{empty}");
        std::fs::write(&file, " a-token-of-some-length \nwhose it is\n").expect("written");
        let read = token.read().expect("read");
        let read = read.as_ref().map(ExposeSecret::expose_secret);
        assert_eq!(read, Some("a-token-of-some-length"));
        assert!(!format!("{token:?}").contains("environment"));
    }
}
