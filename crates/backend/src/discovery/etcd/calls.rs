//! Calls to etcd: each has a deadline, and survives the loss of a member.

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, GetResponse, Identity, TlsOptions, Txn,
    TxnResponse, WatchOptions, WatchStream,
};
use protocol::pause::{Backoff, between};
use secrecy::ExposeSecret;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::keys::Keys;
use super::{EtcdConfig, SEAM};
use crate::clock::Entropy;
use crate::credentials::CredentialSnapshot;
use crate::tls::{advice, ended};
use crate::{Error, Kind, Result};

/// Pause between the first two attempts; doubles each time, up to `RETRY_PAUSE_MAX`.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Silence after which a connection is pinged. etcd treats more than one ping in 5 s as an attack.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// A granted lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    pub(super) ttl: Duration,
    /// Time before etcd was asked: the lease lives for at least `ttl` from then on.
    pub(super) requested_at: Instant,
}

/// The client, with the deadlines of calls. Every call may take effect twice.
pub(super) struct Calls {
    /// Replaced when credentials change; calls in progress, and watches, keep the old one.
    client: Arc<ArcSwap<Client>>,
    call_deadline: Duration,
    attempt_deadline: Duration,
    entropy: Arc<dyn Entropy>,
    _reloader: Option<AbortOnDropHandle<()>>,
    _renew: AbortOnDropHandle<()>,
}

impl Calls {
    /// Opens the client. Contacts a server only if it has to sign in.
    pub(super) async fn open(config: &EtcdConfig, entropy: Arc<dyn Entropy>) -> Result<Calls> {
        let credentials = config.credentials()?;
        let mut changes = credentials.changes();
        let client = dial(config, &credentials.current()).await?;
        let client = Arc::new(ArcSwap::from_pointee(client));
        let renew = {
            let (client, config) = (Arc::clone(&client), config.clone());
            async move {
                while changes.changed().await.is_ok() {
                    let snapshot = Arc::clone(&changes.borrow_and_update());
                    match reconnect(&config, &snapshot).await {
                        Ok(new) => client.store(Arc::new(new)),
                        Err(error) => tracing::warn!(
                            %error, source = %error.source,
                            "etcd rejected the new credentials; keeping the current ones"
                        ),
                    }
                }
            }
        };
        Ok(Calls {
            client,
            call_deadline: config.call_deadline,
            attempt_deadline: config.attempt_deadline(),
            entropy,
            _reloader: credentials.spawn_reloader(),
            _renew: AbortOnDropHandle::new(tokio::spawn(renew)),
        })
    }

    /// Lists all keys below `prefix`, linearizably.
    pub(super) async fn list(&self, prefix: &str) -> Result<GetResponse> {
        self.repeat(|mut client| async move {
            let options = GetOptions::new().with_prefix();
            client.get(prefix, Some(options)).await
        })
        .await
    }

    pub(super) async fn get(&self, key: &str) -> Result<GetResponse> {
        self.repeat(|mut client| async move { client.get(key, None).await })
            .await
    }

    /// Runs a transaction. A repeated one may find its own effects.
    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnResponse> {
        self.repeat(|mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        })
        .await
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Result<Lease> {
        self.repeat(|mut client| async move {
            let requested_at = Instant::now();
            let response = client.lease_grant(ttl.as_secs() as i64, None).await?;
            let granted_ttl = Duration::from_secs(response.ttl().unsigned_abs());
            Ok(Lease {
                id: response.id(),
                ttl: granted_ttl.min(ttl),
                requested_at,
            })
        })
        .await
    }

    /// Renews a lease once. Returns the time at which etcd was asked, or `None` if the lease no
    /// longer exists.
    ///
    /// Uses a new stream each time: a long-lived one would not survive its member.
    pub(super) async fn renew(&self, lease: i64) -> Result<Option<Instant>> {
        self.repeat(|mut client| async move {
            let requested_at = Instant::now();
            match client.lease_keep_alive(lease).await {
                Ok(_) => Ok(Some(requested_at)),
                // Raised only for an answer without a time to live.
                Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Ends a lease and all keys under it, if it has not ended already.
    pub(super) async fn revoke(&self, lease: i64) -> Result<()> {
        self.repeat(|mut client| async move {
            match client.lease_revoke(lease).await {
                Err(etcd_client::Error::GRpcStatus(status)) if status.code() == Code::NotFound => {
                    Ok(())
                }
                answer => answer.map(|_| ()),
            }
        })
        .await
    }

    /// Watches events below `prefix` from `revision` on. Not repeated: after losing a watch, list
    /// first.
    pub(super) async fn watch(&self, prefix: &str, revision: i64) -> Result<WatchStream> {
        let mut client = self.client.load().watch_client();
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision);
        timeout(self.attempt_deadline, client.watch(prefix, Some(options)))
            .await
            .map_err(|late| Error::unavailable(SEAM, late))?
            .map_err(classify)
    }

    /// Random duration between two thirds and four thirds of `mean`.
    pub(super) fn jitter(&self, mean: Duration) -> Duration {
        between(mean * 2 / 3, mean * 4 / 3, self.entropy.next())
    }

    async fn repeat<T, F>(&self, attempt: impl Fn(Client) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let deadline = Instant::now() + self.call_deadline;
        let mut backoff = Backoff::new(RETRY_PAUSE, RETRY_PAUSE_MAX);
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let attempt_timeout = self.attempt_deadline.min(remaining);
            let error = match timeout(attempt_timeout, attempt(Client::clone(&self.client.load())))
                .await
            {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => classify(error),
                Err(_) => Error::unavailable(SEAM, format!("no answer within {attempt_timeout:?}")),
            };
            let pause = self.jitter(backoff.failed());
            if error.kind != Kind::Unavailable || Instant::now() + pause >= deadline {
                return Err(error);
            }
            sleep(pause).await;
        }
    }
}

/// Creates a client with these credentials. Contacts a server only if it has to sign in.
pub(super) async fn dial(config: &EtcdConfig, snapshot: &CredentialSnapshot) -> Result<Client> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(config.attempt_deadline())
        .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
        .with_keep_alive_while_idle(true)
        // A member that is cut off from the others reports it, instead of answering with stale
        // data.
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((name, password)) = config.user(snapshot) {
        options = options.with_user(name, password.expose_secret());
    }
    if let Some(tls) = &snapshot.tls {
        let mut tls_options = TlsOptions::new().ca_certificate(Certificate::from_pem(tls.ca_pem()));
        if let Some((cert, key)) = tls.own_pem() {
            tls_options = tls_options.identity(Identity::from_pem(cert, key));
        }
        options = options.with_tls(tls_options);
    }
    let connect = Client::connect(&config.endpoints, Some(options));
    timeout(config.call_deadline, connect)
        .await
        .map_err(|late| Error::unavailable(SEAM, late))?
        .map_err(|error| {
            let is_tls = snapshot.tls.is_some();
            let is_ended = is_broken(&error) && remedy(&error, is_tls).is_none();
            let failure = classify_with(error, is_tls);
            if is_ended {
                let hint = ended("etcd", is_tls);
                Error::new(SEAM, failure.kind, format!("{}: {hint}", failure.source))
            } else {
                failure
            }
        })
}

/// Whether the connection broke, as opposed to a member's refusal.
fn is_broken(error: &etcd_client::Error) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.source().is_some(),
        etcd_client::Error::TransportError(_) => true,
        _ => false,
    }
}

/// Creates a client with new credentials, and checks that a member answers it.
async fn reconnect(config: &EtcdConfig, snapshot: &CredentialSnapshot) -> Result<Client> {
    let client = dial(config, snapshot).await?;
    let key = Keys::below(&config.prefix).cluster();
    let mut kv = client.kv_client();
    let reply = timeout(config.call_deadline, kv.get(key, None)).await;
    let reply = reply.map_err(|late| Error::unavailable(SEAM, late))?;
    reply.map_err(classify)?;
    Ok(client)
}

/// Classifies an error by the caller's options: `unavailable` if it may pass by itself.
pub(super) fn classify(error: etcd_client::Error) -> Error {
    classify_with(error, true)
}

/// Classifies like `classify`. Without TLS, the first call of a client may reach a member that
/// requires it.
fn classify_with(error: etcd_client::Error, is_tls: bool) -> Error {
    let is_refusal = match &error {
        etcd_client::Error::GRpcStatus(status) => matches!(
            status.code(),
            Code::InvalidArgument
                | Code::PermissionDenied
                | Code::FailedPrecondition
                | Code::Unimplemented
        ),
        etcd_client::Error::InvalidArgs(_) | etcd_client::Error::InvalidUri(_) => true,
        _ => false,
    };
    let kind = if is_refusal {
        Kind::Conflict
    } else {
        Kind::Unavailable
    };
    match remedy(&error, is_tls) {
        Some(remedy) => Error::new(SEAM, kind, format!("{error}: {remedy}")),
        None => Error::new(SEAM, kind, error),
    }
}

fn remedy(error: &etcd_client::Error, is_tls: bool) -> Option<String> {
    if let etcd_client::Error::GRpcStatus(status) = error {
        let message = status.message();
        if message.contains("authentication failed") || message.contains("user name is empty") {
            return Some("etcd.username and etcd.password_file must match the user in etcd".into());
        }
        if status.code() == Code::PermissionDenied {
            return Some(
                "the role of etcd.username must be allowed to read and write below etcd.prefix"
                    .into(),
            );
        }
        return advice("etcd", is_tls, status);
    }
    advice("etcd", is_tls, error)
}
