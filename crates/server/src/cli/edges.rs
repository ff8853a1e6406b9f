//! Fetches a station's list of boats, for `--edges`.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use client::EdgeSource;
use protocol::edges::{EDGES_MAX, Edge, URL_BYTES_MAX};
use protocol::{Code, Refusal};
use reqwest::{Client, Url, redirect};

/// Largest list accepted, in bytes: room for each edge's address, and as much again for the rest.
const LIST_BYTES_MAX: usize = EDGES_MAX * URL_BYTES_MAX * 2;
const HTTP: &[u8] = b"http/1.1";

/// Client of a station's `GET /v1/edges`.
pub(super) struct EdgeList {
    url: Url,
    client: Client,
}

impl EdgeList {
    /// A client of the list at `url`. `trust` holds the trusted roots; `None` for a list without
    /// TLS.
    pub(super) fn new(url: Url, trust: Option<Arc<rustls::ClientConfig>>) -> Result<EdgeList> {
        if !matches!(url.scheme(), "http" | "https") {
            bail!(
                "--edges {url}: the URL must begin with https://, such as https://station.example/v1/edges"
            );
        }
        // The first caller chooses for the process; all of ours choose the same.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        // Redirects are not followed: the list itself names the addresses.
        let client = Client::builder().redirect(redirect::Policy::none());
        let client = match trust {
            Some(trust) => {
                let mut trust = Arc::unwrap_or_clone(trust);
                trust.alpn_protocols = vec![HTTP.to_vec()];
                client.tls_backend_preconfigured(trust)
            }
            None => client,
        };
        let client = client.build().context("creating the HTTP client")?;
        Ok(EdgeList { url, client })
    }

    async fn read(&self) -> Result<Vec<Edge>> {
        let response = self.client.get(self.url.clone()).send().await?;
        let mut response = response.error_for_status()?;
        let mut list = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if list.len() + chunk.len() > LIST_BYTES_MAX {
                bail!("more than {LIST_BYTES_MAX} bytes");
            }
            list.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&list).context("not a list of edges")
    }
}

#[async_trait]
impl EdgeSource for EdgeList {
    async fn edges(&self) -> std::result::Result<Vec<Edge>, Refusal> {
        let list = self.read().await;
        list.map_err(|error| {
            let text = format!("--edges {}: {error:#}", self.url);
            Refusal::new(Code::Unavailable, text)
        })
    }
}
