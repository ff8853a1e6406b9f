//! New tokens of the application, before the one at hand ends.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use protocol::{Code, Refusal};
use tokio::time::timeout;

use super::ClientConfig;

/// The application's way to a new token, as by asking its own server.
#[async_trait]
pub trait TokenSource: Send + Sync {
    /// A token of the same user, younger than those before. Dropped where it takes longer than
    /// [`connect_timeout`](ClientConfig::connect_timeout).
    ///
    /// # Errors
    /// A refusal with a retryable code is asked again a minute later, or before the next connection; another one ends a
    /// client that has no token.
    async fn token(&self) -> Result<String, Refusal>;
}

pub(super) type Fetch = Pin<Box<dyn Future<Output = Result<String, Refusal>> + Send>>;

/// Asks once.
pub(super) fn fetch(config: &ClientConfig) -> Fetch {
    let (source, within) = (config.token_source.clone(), config.connect_timeout);
    Box::pin(async move {
        let Some(source) = source else {
            return Err(Refusal::new(Code::TokenExpired, "nobody has a new token"));
        };
        let late = |_| Err(unavailable(within));
        timeout(within, source.token()).await.unwrap_or_else(late)
    })
}

fn unavailable(within: Duration) -> Refusal {
    let text = format!("the application had no new token within {within:?}");
    Refusal::new(Code::Unavailable, text)
}
