//! Chooses who proves a token: keys of issuers, a service, or both.

use std::sync::Arc;

use async_trait::async_trait;
use backend::clock::{Clock, Entropy};
use protocol::{Refusal, Timestamp};

use super::remote::Remote;
use super::tokens::check_size;
use super::{Authenticator, Client, Config, KeyError, Principal, SignedTokens};

/// Entrance of every token. A token that names a known issuer is proved here, with that issuer's
/// keys alone; the service is asked for all others.
#[derive(Debug)]
pub struct TokenDoor {
    tokens: Arc<SignedTokens>,
    remote: Option<Remote>,
    token_bytes_max: usize,
}

impl TokenDoor {
    /// Reads all keys and certificates that the settings name in files. Makes no call, and may be
    /// called outside a runtime.
    ///
    /// # Errors
    /// An invalid setting or file.
    pub fn open(config: &Config) -> Result<TokenDoor, KeyError> {
        Ok(TokenDoor {
            tokens: Arc::new(SignedTokens::open(config)?),
            remote: Remote::open(config)?,
            token_bytes_max: config.token_bytes_max,
        })
    }

    /// As [`SignedTokens::restore`].
    pub fn restore(&self, now: Timestamp) {
        self.tokens.restore(now);
    }

    /// Reads changed keys and certificates again, until dropped.
    pub async fn keep(self: Arc<Self>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) {
        let certificates = async {
            if let Some(remote) = &self.remote {
                remote.keep().await;
            }
        };
        tokio::join!(self.tokens.clone().keep(clock, entropy), certificates);
    }
}

#[async_trait]
impl Authenticator for TokenDoor {
    async fn authenticate(
        &self,
        token: &str,
        client: &Client<'_>,
        now: Timestamp,
    ) -> Result<Principal, Refusal> {
        let Some(remote) = &self.remote else {
            return self.tokens.authenticate(token, client, now).await;
        };
        check_size(token, self.token_bytes_max)?;
        if self.tokens.knows(token) {
            self.tokens.authenticate(token, client, now).await
        } else {
            remote.authenticate(token, client, now).await
        }
    }
}
