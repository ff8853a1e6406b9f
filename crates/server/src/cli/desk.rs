//! The operators' commands talk to a running Packetboat through its admin port.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// An answer that is none: a status, and why.
#[derive(Debug, Error)]
#[error("{status}: {text}")]
pub(super) struct Refused {
    status: StatusCode,
    text: String,
}

impl Refused {
    /// It does one thing at a time, and something else now.
    pub(super) fn is_busy(&self) -> bool {
        self.status == StatusCode::TOO_MANY_REQUESTS
    }
}

/// Who asks, where operators sign in.
#[derive(Clone, Debug, Args)]
pub struct Token {
    /// A token of admin.operators, where operators sign in. It stands in the process list: prefer a file.
    #[arg(
        id = "operator-token",
        long = "operator-token",
        env = "PACKETBOAT_ADMIN_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    text: Option<SecretString>,
    /// A file whose first line is the token; wins over PACKETBOAT_ADMIN_TOKEN.
    #[arg(
        id = "operator-token-file",
        long = "operator-token-file",
        env = "PACKETBOAT_ADMIN_TOKEN_FILE",
        value_name = "FILE"
    )]
    file: Option<PathBuf>,
}

impl Token {
    fn read(&self) -> Result<Option<SecretString>> {
        let Some(file) = &self.file else {
            return Ok(self.text.clone());
        };
        let named = || {
            format!(
                "reading your token in {} (--operator-token-file)",
                file.display()
            )
        };
        let read = std::fs::read_to_string(file);
        let text = read.map(SecretString::from).with_context(named)?;
        let token = text.expose_secret().lines().next();
        let token = token.unwrap_or_default().trim();
        if token.is_empty() {
            bail!("{}: its first line is empty", named());
        }
        Ok(Some(token.into()))
    }
}

/// Where the admin port is.
#[derive(Clone, Debug, Args)]
pub struct Desk {
    /// The admin port of a running Packetboat.
    #[arg(
        long,
        env = "PACKETBOAT_ADMIN",
        default_value = "http://127.0.0.1:9190",
        value_name = "URL"
    )]
    admin: String,
    #[command(flatten)]
    token: Token,
}

impl Desk {
    pub(super) fn at(admin: &str, token: Token) -> Desk {
        let admin = admin.to_owned();
        Desk { admin, token }
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
            .map(|(name, value)| {
                (
                    name.clone(),
                    value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned),
                )
            })
            .collect();
        let mut request = reqwest::Client::new().request(method.clone(), &url);
        if !query.is_empty() {
            request = request.query(&query);
        }
        if let Some(token) = self.token.read()? {
            request = request.bearer_auth(token.expose_secret());
        }
        if method != Method::GET {
            request = request.json(body);
        }
        let response = request.send().await.with_context(|| {
            format!("reaching {} (is Packetboat running? --admin or PACKETBOAT_ADMIN names its admin port)", self.admin)
        })?;
        let status = response.status();
        let text = response.text().await.context("reading the answer")?;
        match status {
            StatusCode::OK => serde_json::from_str(&text).context("an answer of another version?"),
            _ => {
                let text = text.trim().to_owned();
                Err(Refused { status, text }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_from_the_first_line_of_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ann");
        let token = Token {
            text: Some("from the environment".into()),
            file: Some(file.clone()),
        };
        let missing = format!("{:#}", token.read().expect_err("no file"));
        assert!(missing.contains("--operator-token-file"), "{missing}");
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
