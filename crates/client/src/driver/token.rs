//! New tokens from the application, before the current one ends.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use protocol::{Code, Refusal};
use tokio::time::timeout;

use super::ClientConfig;

/// Application's source of new tokens, such as its own server.
#[async_trait]
pub trait TokenSource: Send + Sync {
    /// Fetches a token of the same user, newer than those before. Dropped if it takes longer than
    /// [`connect_timeout`](ClientConfig::connect_timeout).
    ///
    /// # Errors
    /// After a refusal with a retryable code, the client asks again a minute later, or before the
    /// next connection; any other refusal ends a client that has no token.
    async fn token(&self) -> Result<String, Refusal>;
}

pub(super) type Fetch = Pin<Box<dyn Future<Output = Result<String, Refusal>> + Send>>;

/// Asks the source once.
pub(super) fn fetch(config: &ClientConfig) -> Fetch {
    let (source, connect_timeout) = (config.token_source.clone(), config.connect_timeout);
    Box::pin(async move {
        let Some(source) = source else {
            return Err(Refusal::new(Code::TokenExpired, "no new token available"));
        };
        let late = |_| Err(unavailable(connect_timeout));
        timeout(connect_timeout, source.token())
            .await
            .unwrap_or_else(late)
    })
}

fn unavailable(connect_timeout: Duration) -> Refusal {
    let text = format!("the application gave no new token within {connect_timeout:?}");
    Refusal::new(Code::Unavailable, text)
}
