//! The connection: its nodes, deadlines, and bounds on requests in flight.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::row::DeserializeRow;
use scylla::errors::ExecutionError;
use scylla::policies::load_balancing::{DefaultPolicy, LoadBalancingPolicy};
use scylla::policies::speculative_execution::SpeculativeExecutionPolicy;
use scylla::response::query_result::QueryResult;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::{CqlValue, Row};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::access::ScyllaAccess;
use super::budget::{Budget, BudgetedRetry, BudgetedSpeculation};
use super::{ConsistencyLevel, SEAM, ScyllaConfig, Statement, error, schema};
use crate::credentials::Credentials;
use crate::{Error, Result};

/// Time without an answer after which a read is also sent to a second node.
const SPECULATE_AFTER: Duration = Duration::from_millis(100);
/// Retries and second reads, as a percentage of requests. Beyond it a request fails at its first
/// failure, so that a slow cluster does not get twice the load.
const RETRY_PERCENT: u8 = 10;

/// Connection to ScyllaDB or Cassandra, with all tables that this program needs. Clones share it.
///
/// A trait object for the reason that [`Engine`](crate::embedded::Engine) gives.
#[derive(Clone)]
pub struct Cql(Arc<dyn AsRef<Inner> + Send + Sync>);

struct Inner {
    session: Session,
    reads: ExecutionProfileHandle,
    writes: ExecutionProfileHandle,
    budget: Arc<Budget>,
    permits: Semaphore,
    config: ScyllaConfig,
    _reloader: Option<AbortOnDropHandle<()>>,
}

impl fmt::Debug for Cql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keyspace = &self.inner().config.keyspace;
        f.debug_struct("Cql")
            .field("keyspace", keyspace)
            .finish_non_exhaustive()
    }
}

impl AsRef<Inner> for Inner {
    fn as_ref(&self) -> &Inner {
        self
    }
}

impl Cql {
    fn inner(&self) -> &Inner {
        (*self.0).as_ref()
    }

    /// Connects and checks that the tables exist. `Unavailable` if no node answers in time,
    /// `Conflict` if the settings cannot work or tables are missing: the error names the remedy.
    pub async fn connect(config: &ScyllaConfig) -> Result<Cql> {
        let connect = async {
            let credentials = config.credentials()?;
            let session = open_with(config, &credentials).await?;
            schema::check_on(&session, config).await?;
            let keyspace = config.keyspace.as_str();
            session
                .use_keyspace(keyspace, false)
                .await
                .map_err(|error| Error::unavailable(SEAM, error))?;
            Ok(Cql::with_session(session, config, &credentials))
        };
        match timeout(config.connect_timeout, connect).await {
            Ok(outcome) => outcome,
            Err(_) => Err(timeout_error(SEAM, "connecting", config.connect_timeout)),
        }
    }

    fn with_session(
        session: Session,
        config: &ScyllaConfig,
        credentials: &Arc<Credentials>,
    ) -> Cql {
        let budget = Budget::new(RETRY_PERCENT);
        let speculation: Arc<dyn SpeculativeExecutionPolicy> = Arc::new(BudgetedSpeculation {
            budget: budget.clone(),
            delay: SPECULATE_AFTER,
        });
        let profile = |speculation: Option<_>| {
            ExecutionProfile::builder()
                .consistency(config.consistency.into())
                .serial_consistency(Some(serial(config.consistency).0))
                .request_timeout(Some(config.request_timeout))
                .load_balancing_policy(balance(config))
                .retry_policy(Arc::new(BudgetedRetry(budget.clone())))
                .speculative_execution_policy(speculation)
                .build()
                .into_handle()
        };
        Cql(Arc::new(Inner {
            reads: profile(Some(speculation)),
            writes: profile(None),
            session,
            budget: budget.clone(),
            permits: Semaphore::new(config.in_flight_max.min(Semaphore::MAX_PERMITS)),
            config: config.clone(),
            _reloader: credentials.spawn_reloader(),
        }))
    }

    pub(crate) fn config(&self) -> &ScyllaConfig {
        &self.inner().config
    }

    /// Returns the connection for one seam.
    pub(crate) fn at(self, seam: &'static str) -> SeamCql {
        SeamCql { cql: self, seam }
    }
}

/// Connection for one seam: errors bear its name.
pub(crate) struct SeamCql {
    cql: Cql,
    seam: &'static str,
}

impl SeamCql {
    /// Name of the seam, for errors.
    pub(crate) fn seam(&self) -> &'static str {
        self.seam
    }

    /// Writes one row.
    pub(crate) async fn write(
        &self,
        statement: &Statement,
        values: impl SerializeRow + Send,
    ) -> Result<()> {
        let inner = self.cql.inner();
        let write = async {
            let statement = statement
                .prepared(self.seam, &inner.session, &inner.writes)
                .await?;
            let outcome = inner.session.execute_unpaged(statement, values).await;
            self.map_error(outcome).map(drop)
        };
        self.in_turn(write).await
    }

    /// Writes columns of one partition, all of them or none.
    pub(crate) async fn write_together<V: SerializeRow + Send + Sync>(
        &self,
        writes: Vec<(&Statement, V)>,
    ) -> Result<()> {
        let inner = self.cql.inner();
        let write = async {
            let mut batch = Batch::new(BatchType::Unlogged);
            batch.set_is_idempotent(true);
            batch.set_execution_profile_handle(Some(inner.writes.clone()));
            let mut all_values = Vec::with_capacity(writes.len());
            for (statement, values) in writes {
                let statement = statement
                    .prepared(self.seam, &inner.session, &inner.writes)
                    .await?;
                batch.append_statement(statement.clone());
                all_values.push(values);
            }
            let outcome = inner.session.batch(&batch, all_values).await;
            self.map_error(outcome).map(drop)
        };
        self.in_turn(write).await
    }

    /// Writes one row if its condition holds; returns whether it did. A retry after a lost answer
    /// is refused because of the first try's own write: read the row to tell.
    pub(crate) async fn write_if(
        &self,
        statement: &Statement,
        values: impl SerializeRow + Send,
    ) -> Result<bool> {
        let inner = self.cql.inner();
        let write = async {
            let statement = statement
                .prepared(self.seam, &inner.session, &inner.writes)
                .await?;
            let outcome = inner.session.execute_unpaged(statement, values).await;
            // The first column holds the result; other columns differ between servers.
            let rows: Vec<Row> = self.decode_rows(self.map_error(outcome)?)?;
            let first = rows.first().and_then(|row| row.columns.first());
            match first {
                Some(Some(CqlValue::Boolean(applied))) => Ok(*applied),
                _ => Err(Error::corrupt(self.seam, "a condition without an answer")),
            }
        };
        self.in_turn(write).await
    }

    /// As [`SeamCql::rows`], but sees the effects of every [`SeamCql::write_if`], even an
    /// interrupted one.
    pub(crate) async fn rows_after_conditions<R>(
        &self,
        statement: &Statement,
        values: impl SerializeRow + Send,
    ) -> Result<Vec<R>>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata> + Send,
    {
        let inner = self.cql.inner();
        let read = async {
            let mut statement = statement
                .prepared(self.seam, &inner.session, &inner.reads)
                .await?
                .clone();
            statement.set_consistency(serial(inner.config.consistency).1);
            let answer = inner.session.execute_unpaged(&statement, values).await;
            self.decode_rows(self.map_error(answer)?)
        };
        self.in_turn(read).await
    }

    /// All rows of an answer that is small by nature.
    pub(crate) async fn rows<R>(
        &self,
        statement: &Statement,
        values: impl SerializeRow + Send,
    ) -> Result<Vec<R>>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata> + Send,
    {
        let inner = self.cql.inner();
        let read = async {
            let statement = statement
                .prepared(self.seam, &inner.session, &inner.reads)
                .await?;
            let start = Instant::now();
            let answer = inner.session.execute_unpaged(statement, values).await;
            self.charge_if_slow(start);
            self.decode_rows(self.map_error(answer)?)
        };
        self.in_turn(read).await
    }

    /// One page of an answer that may be large, and the state to continue from; `None` at the end.
    pub(crate) async fn page<R>(
        &self,
        statement: &Statement,
        values: impl SerializeRow + Send,
        from: PagingState,
        size: usize,
    ) -> Result<(Vec<R>, Option<PagingState>)>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata> + Send,
    {
        let inner = self.cql.inner();
        let read = async {
            let mut statement = statement
                .prepared(self.seam, &inner.session, &inner.reads)
                .await?
                .clone();
            statement.set_page_size(i32::try_from(size.max(1)).unwrap_or(i32::MAX));
            let start = Instant::now();
            let answer = inner
                .session
                .execute_single_page(&statement, values, from)
                .await;
            self.charge_if_slow(start);
            let (answer, next) = self.map_error(answer)?;
            let next = match next {
                PagingStateResponse::HasMorePages { state } => Some(state),
                PagingStateResponse::NoMorePages => None,
            };
            Ok((self.decode_rows(answer)?, next))
        };
        self.in_turn(read).await
    }

    /// Runs the calls concurrently, within the bound of one call; returns their results in order.
    pub(crate) async fn all<T>(
        &self,
        calls: Vec<impl Future<Output = Result<T>> + Send>,
    ) -> Result<Vec<T>>
    where
        T: Send,
    {
        bounded(calls, self.cql.inner().config.call_in_flight_max).await
    }

    /// Runs one request: its wait for a turn and its work share one deadline. Boxed, so that
    /// callers do not prove that the driver's deep futures are `Send`.
    fn in_turn<'a, T: Send>(
        &'a self,
        request: impl Future<Output = Result<T>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        let inner = self.cql.inner();
        let request_timeout = inner.config.request_timeout;
        let request = async move {
            let permit = inner.permits.acquire().await;
            let _permit = permit.map_err(|error| Error::unavailable(self.seam, error))?;
            inner.budget.earn();
            request.await
        };
        Box::pin(async move {
            match timeout(request_timeout, request).await {
                Ok(answer) => answer,
                Err(_) => Err(timeout_error(self.seam, "a request", request_timeout)),
            }
        })
    }

    /// Charges the budget for a read slow enough that a second node was asked, too.
    fn charge_if_slow(&self, start: Instant) {
        if start.elapsed() >= SPECULATE_AFTER {
            self.cql.inner().budget.spend();
        }
    }

    fn map_error<T>(&self, answer: Result<T, ExecutionError>) -> Result<T> {
        answer.map_err(|error| error::request(self.seam, error))
    }

    fn decode_rows<R>(&self, answer: QueryResult) -> Result<Vec<R>>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
    {
        decode_rows(self.seam, answer)
    }
}

/// Runs calls concurrently, at most `at_once`; returns their results in order.
async fn bounded<T>(
    calls: Vec<impl Future<Output = Result<T>> + Send>,
    at_once: usize,
) -> Result<Vec<T>>
where
    T: Send,
{
    stream::iter(calls).buffered(at_once).try_collect().await
}

pub(super) fn decode_rows<R>(seam: &'static str, answer: QueryResult) -> Result<Vec<R>>
where
    R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
{
    let answer = answer
        .into_rows_result()
        .map_err(|error| error::decode(seam, error))?;
    let rows = answer
        .rows::<R>()
        .map_err(|error| error::decode(seam, error))?;
    rows.map(|row| row.map_err(|error| error::decode(seam, error)))
        .collect()
}

/// Opens a session without a keyspace, with the credentials of this moment.
pub(super) async fn open(config: &ScyllaConfig) -> Result<Session> {
    open_with(config, &config.credentials()?).await
}

/// Opens a session without a keyspace. Each of its connections uses `credentials` as they are then.
async fn open_with(config: &ScyllaConfig, credentials: &Arc<Credentials>) -> Result<Session> {
    config.check()?;
    let profile = ExecutionProfile::builder()
        .consistency(config.consistency.into())
        .request_timeout(Some(config.request_timeout))
        .load_balancing_policy(balance(config))
        .build()
        .into_handle();
    let mut builder = SessionBuilder::new()
        .known_nodes(&config.contact_points)
        .default_execution_profile_handle(profile)
        .connection_timeout(config.connect_timeout)
        .hostname_resolution_timeout(Some(config.connect_timeout))
        .schema_agreement_timeout(config.schema_timeout)
        .keepalive_interval(Duration::from_secs(5))
        .keepalive_timeout(config.request_timeout)
        .keyspaces_to_fetch([&config.keyspace]);
    if !config.username.is_empty() {
        builder = builder.authenticator_provider(Arc::new(ScyllaAccess {
            credentials: Arc::clone(credentials),
            username: config.username.clone(),
        }));
    }
    if config.tls.files().is_on() {
        let tls = credentials.rustls(config.tls.names);
        builder = builder.tls_context(Some(tls.map_err(|error| Error::conflict(SEAM, error))?));
    }
    if !config.datacenter.is_empty() {
        builder = builder.prefer_datacenter(config.datacenter.clone());
    }
    let session = builder.build().await;
    let is_tls = config.tls.files().is_on();
    session.map_err(|failure| error::open_error(failure, is_tls))
}

/// Policy that prefers the replicas of a row, on nodes of the own datacenter only.
fn balance(config: &ScyllaConfig) -> Arc<dyn LoadBalancingPolicy> {
    let builder = DefaultPolicy::builder().token_aware(true);
    if config.datacenter.is_empty() {
        builder.build()
    } else {
        builder
            .prefer_datacenter(config.datacenter.clone())
            .permit_dc_failover(false)
            .build()
    }
}

/// Consistency of conditional writes: decided among the replicas whose quorum counts.
fn serial(level: ConsistencyLevel) -> (SerialConsistency, Consistency) {
    match level {
        ConsistencyLevel::LocalQuorum => (SerialConsistency::LocalSerial, Consistency::LocalSerial),
        ConsistencyLevel::Quorum => (SerialConsistency::Serial, Consistency::Serial),
    }
}

fn timeout_error(seam: &'static str, action: &str, limit: Duration) -> Error {
    Error::unavailable(seam, format!("no answer to {action} within {limit:?}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::sleep;

    use super::*;

    /// As many as a poll of a carrier has records, each of a group of its own.
    #[tokio::test(start_paused = true)]
    async fn calls_run_side_by_side_within_their_bound() {
        const TIME: Duration = Duration::from_millis(150);
        let (in_flight, max_in_flight) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let call = |number: usize| {
            let (in_flight, max_in_flight) = (&in_flight, &max_in_flight);
            async move {
                let previous = in_flight.fetch_add(1, Ordering::Relaxed);
                max_in_flight.fetch_max(previous + 1, Ordering::Relaxed);
                sleep(TIME).await;
                in_flight.fetch_sub(1, Ordering::Relaxed);
                Ok(number)
            }
        };
        let start = Instant::now();
        let at_once = ScyllaConfig::default().call_in_flight_max;
        let results = bounded((0..512).map(call).collect(), at_once).await;
        assert_eq!(results.expect("done"), Vec::from_iter(0..512));
        assert_eq!(max_in_flight.load(Ordering::Relaxed), at_once);
        assert_eq!(start.elapsed(), TIME * 4);
    }
}
