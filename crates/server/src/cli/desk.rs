//! The operators' commands talk to a running Packetboat through its admin port.

use std::fmt;

use anyhow::{Context, Result};
use clap::Args;
use reqwest::{Method, StatusCode};
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

/// Where the admin port is.
#[derive(Clone, Args)]
pub struct Desk {
    /// The admin port of a running Packetboat.
    #[arg(
        long,
        env = "PACKETBOAT_ADMIN",
        default_value = "http://127.0.0.1:9190",
        value_name = "URL"
    )]
    admin: String,
    /// A token of admin.operators, where operators sign in.
    #[arg(
        long = "operator-token",
        env = "PACKETBOAT_ADMIN_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk")
            .field("admin", &self.admin)
            .field("token", &self.token.as_ref().map(protocol::Hidden::of))
            .finish()
    }
}

impl Desk {
    pub(super) fn at(admin: &str, token: Option<String>) -> Desk {
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
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
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
