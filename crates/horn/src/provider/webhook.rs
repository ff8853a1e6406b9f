//! Notifies a business back end over HTTP: one JSON POST per notification, without the message's
//! body.
//!
//! | answer | means |
//! | --- | --- |
//! | 2xx | notified |
//! | 410 | no recipient is left: done |
//! | 429 | retried later, and all other calls wait, too (honours `Retry-After` in seconds) |
//! | 408, 5xx, none in time | retried later |
//! | any other | refused for good: a dead letter |

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backend::clock::Clock;
use protocol::notify::NotifyFailure;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::Serialize;
use thiserror::Error;

use super::signature::{Secret, seconds};
use super::{Provider, ProviderError, ProviderPush};

/// Bytes read of an answer, so that the connection can be reused; the rest is not waited for.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Reason why a webhook cannot be called at all.
#[derive(Debug, Error)]
pub enum WebhookError {
    #[error("horn.url is not a webhook URL: {0}")]
    Url(String),
    #[error("cannot create an HTTP client")]
    Client(#[from] reqwest::Error),
}

/// Provider that calls one URL.
pub struct Webhook {
    client: Client,
    url: Url,
    secret: Option<Secret>,
    clock: Arc<dyn Clock>,
}

/// Ids are strings: they exceed the integers that a JavaScript number holds exactly.
#[derive(Serialize)]
struct Body {
    r#type: &'static str,
    message: String,
    conversation: String,
    from: String,
    user: String,
    platform: &'static str,
    /// Milliseconds since 1970.
    accepted_at: i64,
    attempt: u32,
}

impl Webhook {
    /// Checks the URL; connects at the first call.
    pub fn open(
        url: &str,
        secret: Option<Secret>,
        timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Webhook, WebhookError> {
        let url = Url::parse(url).map_err(|error| WebhookError::Url(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            let scheme = url.scheme();
            return Err(WebhookError::Url(format!(
                "{scheme}:// is not http or https"
            )));
        }
        // The first caller chooses for the process; all of ours choose the same.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("packetboat/", env!("CARGO_PKG_VERSION")))
            .timeout(timeout)
            .redirect(redirect::Policy::none())
            .build()?;
        Ok(Webhook {
            client,
            url,
            secret,
            clock,
        })
    }

    fn headers(&self, push: &ProviderPush, body: &[u8]) -> HeaderMap {
        let (id, now) = (push.id(), self.clock.now());
        let signature = self
            .secret
            .as_ref()
            .map(|secret| secret.sign(&id, now, body));
        let texts = [
            (CONTENT_TYPE, Some("application/json".to_owned())),
            (HeaderName::from_static("webhook-id"), Some(id)),
            (
                HeaderName::from_static("webhook-timestamp"),
                Some(seconds(now).to_string()),
            ),
            (HeaderName::from_static("webhook-signature"), signature),
            (
                HeaderName::from_static("traceparent"),
                push.trace.map(|trace| trace.to_string()),
            ),
        ];
        texts
            .into_iter()
            .filter_map(|(name, text)| Some((name, HeaderValue::try_from(text?).ok()?)))
            .collect()
    }
}

#[async_trait]
impl Provider for Webhook {
    fn name(&self) -> &'static str {
        "webhook"
    }

    async fn send(&self, push: &ProviderPush) -> Result<(), ProviderError> {
        let body = serde_json::to_vec(&Body::new(push))
            .map_err(|error| ProviderError::new(NotifyFailure::Refused, error.to_string()))?;
        let response = self
            .client
            .post(self.url.clone())
            .headers(self.headers(push, &body))
            .body(body)
            .send()
            .await
            .map_err(|error| unreachable(&error))?;
        let answer = judge(&response);
        read_some(response).await;
        answer
    }
}

impl Body {
    fn new(push: &ProviderPush) -> Body {
        let notification = push.notification;
        Body {
            r#type: "mail.waits",
            message: notification.message.to_string(),
            conversation: notification.conversation.to_string(),
            from: notification.from.to_string(),
            user: notification.target.user.to_string(),
            platform: notification.target.platform.name(),
            accepted_at: notification.accepted_at.millis(),
            attempt: push.attempt,
        }
    }
}

/// Leaves the URL out of the text: it may hold a token.
fn unreachable(error: &reqwest::Error) -> ProviderError {
    let reason = if error.is_timeout() {
        "the webhook did not answer in time"
    } else if error.is_connect() {
        "the webhook cannot be reached"
    } else {
        "the connection to the webhook broke"
    };
    ProviderError::new(NotifyFailure::Unavailable, reason)
}

fn judge(response: &Response) -> Result<(), ProviderError> {
    let status = response.status();
    let failure = match status {
        status if status.is_success() => return Ok(()),
        StatusCode::GONE => NotifyFailure::Gone,
        StatusCode::TOO_MANY_REQUESTS => NotifyFailure::Throttled,
        StatusCode::REQUEST_TIMEOUT => NotifyFailure::Unavailable,
        status if status.is_server_error() => NotifyFailure::Unavailable,
        _ => NotifyFailure::Refused,
    };
    Err(ProviderError {
        failure,
        retry_after: retry_after(response.headers()),
        text: format!("the webhook answered {status}"),
    })
}

/// Reads a delay in seconds; a date is ignored, and the horn's own delay applies.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

async fn read_some(mut response: Response) {
    let mut read_count = 0;
    while read_count < ANSWER_BYTES_MAX {
        match response.chunk().await {
            Ok(Some(chunk)) => read_count += chunk.len(),
            _ => break,
        }
    }
}
