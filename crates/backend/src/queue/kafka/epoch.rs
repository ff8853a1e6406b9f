//! The log's epoch, stored in topic `meta`: the newest record under one key counts.

use std::time::Duration;

use rdkafka::Message;
use rdkafka::client::OAuthToken;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::config::KafkaConfig;
use super::reader::{self, Client};
use super::report::{Reporter, failed};
use super::{SEAM, settings};
use crate::{Error, Result};

const KEY: &[u8] = b"epoch";

/// Reads the epoch; `None` if none was ever written. Blocks.
pub(super) fn read(client: &Client, meta: &str, timeout: Duration) -> Result<Option<u32>> {
    let (first, end) = reader::bounds(client, meta, 0, timeout)?;
    if first == end {
        return Ok(None);
    }
    let value = |message: &rdkafka::message::BorrowedMessage<'_>| {
        let is_epoch = message.key() == Some(KEY);
        is_epoch.then(|| message.payload().unwrap_or_default().to_vec())
    };
    let epochs = reader::read(client, meta, 0, first..end, usize::MAX, timeout, value)?;
    let Some(newest) = epochs.last() else {
        return Ok(None);
    };
    let epoch = std::str::from_utf8(newest)
        .ok()
        .and_then(|text| text.parse().ok());
    let unreadable = || Error::corrupt(SEAM, format!("the epoch in topic {meta} is not a number"));
    epoch.map(Some).ok_or_else(unreadable)
}

/// Reports the outcome of the one record to its waiter.
struct EpochReport(Reporter);

impl rdkafka::ClientContext for EpochReport {
    fn log(&self, level: rdkafka::config::RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.log(level, facility, message);
    }

    fn error(&self, error: rdkafka::error::KafkaError, reason: &str) {
        self.0.error(&error, reason);
    }

    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> std::result::Result<OAuthToken, Box<dyn std::error::Error>> {
        self.0.token()
    }
}

impl ProducerContext for EpochReport {
    type DeliveryOpaque = Box<oneshot::Sender<Result<()>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, waiter: Self::DeliveryOpaque) {
        let outcome = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(failed("writing the log's epoch", error.clone())),
        };
        // The waiter is gone after a timeout.
        let _ = waiter.send(outcome);
    }
}

/// Writes a new epoch and waits until it is acknowledged.
pub(super) async fn write(config: &KafkaConfig, meta: &str, epoch: u32) -> Result<()> {
    let write_failed = |error| failed("writing the log's epoch", error);
    let producer: ThreadedProducer<EpochReport> = settings::producer(config)?
        .create_with_context(EpochReport(Reporter::new(config)))
        .map_err(write_failed)?;
    let (waiter, outcome) = oneshot::channel();
    let value = epoch.to_string();
    let record = BaseRecord::with_opaque_to(meta, Box::new(waiter))
        .partition(0)
        .key(KEY)
        .payload(&value);
    producer
        .send(record)
        .map_err(|(error, _)| write_failed(error))?;
    let request_timeout = config.request_timeout;
    let outcome = match timeout(request_timeout, outcome).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) | Err(_) => {
            let why = format!("the log's epoch was not acknowledged within {request_timeout:?}");
            Err(Error::unavailable(SEAM, why))
        }
    };
    let end = tokio::task::spawn_blocking(move || {
        // Only a timed-out record can be left, and it is not worth waiting for.
        producer.purge(rdkafka::producer::PurgeConfig::default().queue().inflight());
        drop(producer);
    });
    let _ = end.await;
    outcome
}
