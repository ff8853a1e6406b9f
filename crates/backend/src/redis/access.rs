//! Credentials for new connections to a server.

use std::sync::Arc;

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisConnectionInfo, TlsCertificates,
};
use secrecy::ExposeSecret;

use super::failure::Failure;
use super::node::read_address;
use crate::credentials::Credentials;
use crate::tls::{ClientTls, advice};

/// User, password and certificates, as the files have them when a connection is made.
pub(crate) struct RedisAccess {
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) username: Option<String>,
    /// Setting that names the password file.
    pub(crate) password: &'static str,
}

impl RedisAccess {
    /// Connection parameters for `address`, `host:port`, with the current credentials.
    pub(crate) fn info(&self, address: &str) -> Result<ConnectionInfo, Failure> {
        let info = self.address(address)?.into_connection_info()?;
        let info = info.set_redis_settings(self.sign_in());
        match self.certificates() {
            None => Ok(info),
            Some(certificates) => {
                let client = Client::build_with_tls(info, certificates)?;
                Ok(client.get_connection_info().clone())
            }
        }
    }

    /// Address alone, without certificates.
    pub(crate) fn address(&self, address: &str) -> Result<ConnectionAddr, Failure> {
        let (host, port) = read_address(address)
            .ok_or_else(|| Failure::NoMaster(format!("{address:?} is not host:port")))?;
        Ok(if self.is_tls() {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        })
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.credentials.current().tls.is_some()
    }

    pub(crate) fn certificates(&self) -> Option<TlsCertificates> {
        let snapshot = self.credentials.current();
        snapshot.tls.as_ref().map(certificates)
    }

    pub(crate) fn secret(&self) -> Option<String> {
        let snapshot = self.credentials.current();
        let secret = snapshot.secret(self.password)?;
        Some(secret.expose_secret().to_owned())
    }

    fn sign_in(&self) -> RedisConnectionInfo {
        let mut info = RedisConnectionInfo::default();
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        if let Some(secret) = self.secret() {
            info = info.set_password(secret);
        }
        info
    }

    /// Failure of an attempt to connect to `address`.
    pub(crate) fn failure(&self, address: &str, error: redis::RedisError) -> Failure {
        match advice("redis", self.is_tls(), &error) {
            Some(advice) => Failure::Tls {
                address: address.to_owned(),
                advice,
                source: error,
            },
            None => error.into(),
        }
    }
}

fn certificates(tls: &ClientTls) -> TlsCertificates {
    let own = tls.own_pem().map(|(cert, key)| ClientTlsConfig {
        client_cert: cert.to_vec(),
        client_key: key.to_vec(),
    });
    TlsCertificates {
        client_tls: own,
        root_cert: Some(tls.ca_pem().to_vec()),
    }
}
