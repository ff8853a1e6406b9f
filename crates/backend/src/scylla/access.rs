//! Sign-in with the password in its file at the time of each connection.

use std::sync::Arc;

use async_trait::async_trait;
use scylla::authentication::{
    AuthError, AuthenticatorProvider, AuthenticatorSession, PlainTextAuthenticator,
};
use secrecy::ExposeSecret;

use super::config::PASSWORD;
use crate::credentials::Credentials;

pub(super) struct ScyllaAccess {
    pub(super) credentials: Arc<Credentials>,
    pub(super) username: String,
}

#[async_trait]
impl AuthenticatorProvider for ScyllaAccess {
    async fn start_authentication_session(
        &self,
        authenticator: &str,
    ) -> Result<(Option<Vec<u8>>, Box<dyn AuthenticatorSession>), AuthError> {
        let snapshot = self.credentials.current();
        let secret = snapshot.secret(PASSWORD).map(ExposeSecret::expose_secret);
        let secret = secret.unwrap_or_default().to_owned();
        let plain = PlainTextAuthenticator::new(self.username.clone(), secret);
        plain.start_authentication_session(authenticator).await
    }
}
