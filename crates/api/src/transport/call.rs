//! The caller's side of a call, near or far: its deadline, and one set of statuses for failures.

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::body::Body;
use tonic::{Code, Status};

use super::body::{BoundedBody, StatusSource};

const TIMEOUT_HEADER: &str = "grpc-timeout";

/// Paths of the methods that stream, in either direction.
const STREAMING: &[&str] = include!(concat!(env!("OUT_DIR"), "/streaming.rs"));

pub(super) fn is_streaming(path: &str) -> bool {
    STREAMING.contains(&path)
}

/// Returns the time that this call may take. Sets the header of a unary call without one, so that
/// the server knows it as well.
pub(super) fn call_timeout(
    headers: &mut HeaderMap,
    is_stream: bool,
    default: Duration,
) -> Option<Duration> {
    if let Some(timeout) = headers.get(TIMEOUT_HEADER).and_then(parse_timeout) {
        return Some(timeout);
    }
    if is_stream {
        return None;
    }
    headers.insert(TIMEOUT_HEADER, timeout_value(default));
    Some(default)
}

/// Formats a timeout: at most eight digits and a unit.
fn timeout_value(timeout: Duration) -> HeaderValue {
    let (digits, unit) = match timeout.as_micros() {
        micros @ 0..100_000_000 => (micros, 'u'),
        micros @ 100_000_000..100_000_000_000 => (micros / 1000, 'm'),
        micros => ((micros / 1_000_000).min(99_999_999), 'S'),
    };
    // Digits and a letter are always a header value.
    HeaderValue::try_from(format!("{digits}{unit}"))
        .unwrap_or_else(|_| HeaderValue::from_static("5S"))
}

fn parse_timeout(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = (digits.len() <= 8).then(|| digits.parse().ok())??;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

fn too_late(timeout: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "no answer within {timeout:?}: the call may or may not have been done"
    ))
}

/// Ends the requests of a stream once the guard, held by the reader of the answers, is dropped.
/// Without it, a network stream whose answers nobody reads stays open as long as its requests do.
pub(super) fn tie_to_reader(request: http::Request<Body>) -> (http::Request<Body>, DropGuard) {
    let cancellation = CancellationToken::new();
    let reader = cancellation.clone().drop_guard();
    let request = request.map(|body| {
        let end = Box::pin(async move {
            cancellation.cancelled().await;
            Status::cancelled("the call has ended")
        });
        Body::new(BoundedBody::new(body, end, StatusSource::Error))
    });
    (request, reader)
}

/// Answers of a stream, with the guard that ends its requests.
pub(super) async fn read_by<F>(reader: DropGuard, call: F) -> Result<http::Response<Body>, Status>
where
    F: Future<Output = Result<http::Response<Body>, Status>>,
{
    let response = call.await?;
    Ok(response.map(|body| {
        let never_ends = Box::pin(std::future::pending());
        Body::new(BoundedBody::new(body, never_ends, StatusSource::Error).read_by(reader))
    }))
}

/// Runs a call under its deadline, and puts the answer's body under the rest of it.
pub(super) async fn within<F>(
    timeout: Option<Duration>,
    call: F,
) -> Result<http::Response<Body>, Status>
where
    F: Future<Output = Result<http::Response<Body>, Status>>,
{
    let Some(timeout) = timeout else {
        return call.await;
    };
    // A deadline too far away to be represented is none.
    let Some(deadline) = Instant::now().checked_add(timeout) else {
        return call.await;
    };
    let mut call = pin!(call);
    // Many calls in process are answered at the first poll: those need no timer.
    let result = match poll!(&mut call) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => tokio::select! {
            biased;
            result = call => result,
            () = tokio::time::sleep_until(deadline) => return Err(too_late(timeout)),
        },
    };
    let response = result?;
    if server_gave_up_first(response.headers()) {
        return Err(too_late(timeout));
    }
    if http_body::Body::is_end_stream(response.body()) {
        return Ok(response);
    }
    Ok(response.map(|body| {
        let end = Box::pin(async move {
            tokio::time::sleep_until(deadline).await;
            too_late(timeout)
        });
        Body::new(BoundedBody::new(body, end, StatusSource::Error))
    }))
}

/// Whether the server saw the same deadline first: tonic reports that in words of its own.
fn server_gave_up_first(headers: &HeaderMap) -> bool {
    Status::from_header_map(headers).is_some_and(|status| {
        status.code() == Code::Cancelled && status.message() == "Timeout expired"
    })
}

/// Status for an error of a network channel: `UNAVAILABLE` for anything that keeps a call from its
/// answer, unless time has run out.
pub(super) fn unreachable(error: tonic::transport::Error) -> Status {
    let mut source: Option<&(dyn Error + 'static)> = Some(&error);
    let mut text = String::new();
    while let Some(error) = source {
        if error.is::<tonic::TimeoutExpired>() {
            return Status::deadline_exceeded(
                "no answer in time: the call may or may not have been done",
            );
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        source = error.source();
    }
    Status::unavailable(text)
}

/// Same for a body that breaks off.
pub(super) fn broken_off(status: Status) -> Status {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded => status,
        _ => Status::unavailable(format!("the connection broke: {}", status.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_survive_their_header() {
        for millis in [0, 1, 250, 5_000, 99_999, 100_000, 3_600_000, 20_000_000_000] {
            let timeout = Duration::from_millis(millis);
            assert_eq!(parse_timeout(&timeout_value(timeout)), Some(timeout));
        }
        let forever = timeout_value(Duration::MAX);
        assert_eq!(
            parse_timeout(&forever),
            Some(Duration::from_secs(99_999_999))
        );
    }

    #[test]
    fn nonsense_is_no_timeout() {
        for text in ["", "5", "S", "123456789m", "-1S", "5x", "ü"] {
            let value = HeaderValue::from_bytes(text.as_bytes()).expect("a header value");
            assert_eq!(parse_timeout(&value), None, "{text}");
        }
    }

    #[test]
    fn the_streams_of_the_protocol_are_known() {
        assert!(is_streaming("/packetboat.v1.BoatService/Deliver"));
        assert!(!is_streaming("/packetboat.v1.StationService/SendBatch"));
    }
}
