//! Calls to etcd: none waits for ever, and a member that is away is not the end of one.

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, GetResponse, Identity, TlsOptions, Txn,
    TxnResponse, WatchOptions, WatchStream,
};
use secrecy::ExposeSecret;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::keys::Keys;
use super::{EtcdConfig, SEAM};
use crate::clock::Entropy;
use crate::credentials::Shown;
use crate::tls::{advice, ended};
use crate::{Error, Kind, Result};

/// Between the first and the second attempt; doubled each time, up to the second.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A connection that says nothing for so long is asked whether it is there. etcd takes more than one
/// question in 5 s for an attack.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// A lease as it was granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    pub(super) ttl: Duration,
    /// Before etcd was asked: the lease lives for `ttl` from then on at least.
    pub(super) asked: Instant,
}

/// The client, with the bounds of a call. Whatever is called here may be done twice.
pub(super) struct Calls {
    /// Another one after credentials changed; calls that are under way, and watches, keep theirs.
    client: Arc<ArcSwap<Client>>,
    call_deadline: Duration,
    attempt_deadline: Duration,
    entropy: Arc<dyn Entropy>,
    _keep: Option<AbortOnDropHandle<()>>,
    _renew: AbortOnDropHandle<()>,
}

impl Calls {
    /// Needs no server, except where somebody has to sign in.
    pub(super) async fn open(config: &EtcdConfig, entropy: Arc<dyn Entropy>) -> Result<Calls> {
        let credentials = config.credentials()?;
        let mut changes = credentials.changes();
        let client = dial(config, &credentials.current()).await?;
        let client = Arc::new(ArcSwap::from_pointee(client));
        let renew = {
            let (client, config) = (Arc::clone(&client), config.clone());
            async move {
                while changes.changed().await.is_ok() {
                    let shown = Arc::clone(&changes.borrow_and_update());
                    match renewed(&config, &shown).await {
                        Ok(new) => client.store(Arc::new(new)),
                        Err(error) => tracing::warn!(
                            %error, source = %error.source,
                            "etcd refuses new credentials; those of before stay"
                        ),
                    }
                }
            }
        };
        Ok(Calls {
            client,
            call_deadline: config.call_deadline,
            attempt_deadline: config.attempt_deadline,
            entropy,
            _keep: credentials.keep(),
            _renew: AbortOnDropHandle::new(tokio::spawn(renew)),
        })
    }

    /// All below `prefix`, as everybody has agreed on it.
    pub(super) async fn list(&self, prefix: &str) -> Result<GetResponse> {
        self.repeat(|mut client| async move {
            let below = GetOptions::new().with_prefix();
            client.get(prefix, Some(below)).await
        })
        .await
    }

    pub(super) async fn get(&self, key: &str) -> Result<GetResponse> {
        self.repeat(|mut client| async move { client.get(key, None).await })
            .await
    }

    /// One that is repeated may find what it has done itself.
    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnResponse> {
        self.repeat(|mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        })
        .await
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Result<Lease> {
        self.repeat(|mut client| async move {
            let asked = Instant::now();
            let granted = client.lease_grant(ttl.as_secs() as i64, None).await?;
            let granted_ttl = Duration::from_secs(granted.ttl().unsigned_abs());
            Ok(Lease {
                id: granted.id(),
                ttl: granted_ttl.min(ttl),
                asked,
            })
        })
        .await
    }

    /// Renews once. `None`: there is no such lease any more; else when etcd was asked.
    ///
    /// Each time on a stream of its own: a longer one does not outlive the member that it goes to.
    pub(super) async fn renew(&self, lease: i64) -> Result<Option<Instant>> {
        self.repeat(|mut client| async move {
            let asked = Instant::now();
            match client.lease_keep_alive(lease).await {
                Ok(_) => Ok(Some(asked)),
                // Said of an answer without time to live, and of nothing else.
                Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Ends a lease and all that is under it, where it has not ended already.
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

    /// What happens below `prefix` from `revision` on. Not repeated: whoever lost a watch lists first.
    pub(super) async fn watch(&self, prefix: &str, revision: i64) -> Result<WatchStream> {
        let mut client = self.client.load().watch_client();
        let below = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision);
        timeout(self.attempt_deadline, client.watch(prefix, Some(below)))
            .await
            .map_err(|late| Error::unavailable(SEAM, late))?
            .map_err(judged)
    }

    /// Between two thirds of `mean` and a third more than it.
    pub(super) fn jittered(&self, mean: Duration) -> Duration {
        let span = u64::try_from(mean.as_micros()).unwrap_or(u64::MAX) * 2 / 3;
        mean * 2 / 3 + Duration::from_micros(self.entropy.next() % span.max(1))
    }

    async fn repeat<T, F>(&self, attempt: impl Fn(Client) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let end = Instant::now() + self.call_deadline;
        let mut mean = PAUSE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let most = self.attempt_deadline.min(left);
            let error = match timeout(most, attempt(Client::clone(&self.client.load()))).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => judged(error),
                Err(_) => Error::unavailable(SEAM, format!("no answer within {most:?}")),
            };
            let pause = self.jittered(mean);
            if error.kind != Kind::Unavailable || Instant::now() + pause >= end {
                return Err(error);
            }
            sleep(pause).await;
            mean = (mean * 2).min(PAUSE_MAX);
        }
    }
}

/// A client with these credentials. Needs no server, except where somebody has to sign in.
pub(super) async fn dial(config: &EtcdConfig, shown: &Shown) -> Result<Client> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(config.attempt_deadline)
        .with_keep_alive(PING_EVERY, PING_TIMEOUT)
        .with_keep_alive_while_idle(true)
        // A member that is cut off from the others says so, instead of answering from its past.
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((name, password)) = config.user(shown) {
        options = options.with_user(name, password.expose_secret());
    }
    if let Some(tls) = &shown.tls {
        let mut theirs = TlsOptions::new().ca_certificate(Certificate::from_pem(tls.ca_pem()));
        if let Some((cert, key)) = tls.own_pem() {
            theirs = theirs.identity(Identity::from_pem(cert, key));
        }
        options = options.with_tls(theirs);
    }
    let connecting = Client::connect(&config.endpoints, Some(options));
    timeout(config.call_deadline, connecting)
        .await
        .map_err(|late| Error::unavailable(SEAM, late))?
        .map_err(|error| {
            let is_tls = shown.tls.is_some();
            let is_ended = is_broken(&error) && remedy(&error, is_tls).is_none();
            let judged = judged_with(error, is_tls);
            match is_ended {
                false => judged,
                true => {
                    let ended = ended("etcd", is_tls);
                    Error::new(SEAM, judged.kind, format!("{}: {ended}", judged.source))
                }
            }
        })
}

/// Says that the connection came to an end, and no member refused.
fn is_broken(error: &etcd_client::Error) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.source().is_some(),
        etcd_client::Error::TransportError(_) => true,
        _ => false,
    }
}

/// A client with new credentials that a member has answered.
async fn renewed(config: &EtcdConfig, shown: &Shown) -> Result<Client> {
    let client = dial(config, shown).await?;
    let key = Keys::below(&config.prefix).cluster();
    let mut kv = client.kv_client();
    let asked = timeout(config.call_deadline, kv.get(key, None)).await;
    let asked = asked.map_err(|late| Error::unavailable(SEAM, late))?;
    asked.map_err(judged)?;
    Ok(client)
}

/// What the caller can do about it. What may pass by itself is `unavailable`.
pub(super) fn judged(error: etcd_client::Error) -> Error {
    judged_with(error, true)
}

/// As `judged`; the first call of a client without TLS may be one to a member that wants it.
fn judged_with(error: etcd_client::Error, is_tls: bool) -> Error {
    let refused = match &error {
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
    let kind = if refused {
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
        let said = status.message();
        if said.contains("authentication failed") || said.contains("user name is empty") {
            return Some("etcd.username and etcd.password_file have to be as etcd has them".into());
        }
        if status.code() == Code::PermissionDenied {
            return Some(
                "the role of etcd.username has to read and write below etcd.prefix".into(),
            );
        }
        return advice("etcd", is_tls, status);
    }
    advice("etcd", is_tls, error)
}
