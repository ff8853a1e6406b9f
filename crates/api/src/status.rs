//! Refusals as gRPC statuses and back: a caller gets code, text and delay unchanged.
//!
//! The refusal travels in the metadata beside the status, not in its details: ordinary tools take
//! those for `google.rpc.Status`.

use prost::Message as _;
use protocol::{Code, Refusal};
use tonic::metadata::{BinaryMetadataKey, MetadataMap, MetadataValue};
use tonic::{Code as Grpc, Status};

use crate::v1;

/// The metadata that holds the encoded `v1.Refusal`.
pub const REFUSAL_KEY: &str = "packetboat-refusal-bin";
/// A status is a header: its text is cut to this many bytes.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Makes the status with which a service refuses.
pub fn from_refusal(refusal: &Refusal) -> Status {
    let text = clip(&refusal.text, TEXT_BYTES_MAX);
    let wire = v1::Refusal {
        text: text.to_owned(),
        ..refusal.into()
    };
    let mut metadata = MetadataMap::with_capacity(1);
    metadata.insert_bin(
        BinaryMetadataKey::from_static(REFUSAL_KEY),
        MetadataValue::from_bytes(&wire.encode_to_vec()),
    );
    Status::with_metadata(grpc_code(refusal.code), text, metadata)
}

/// As [`from_refusal`], under a code that tells more to callers who look at that alone.
pub fn from_refusal_as(code: Grpc, refusal: &Refusal) -> Status {
    let status = from_refusal(refusal);
    Status::with_metadata(code, status.message(), status.metadata().clone())
}

/// Reads a status as a refusal: the one it carries, or else the nearest one.
pub fn to_refusal(status: &Status) -> Refusal {
    carried_refusal(status).unwrap_or_else(|| {
        let text = format!("{:?}: {}", status.code(), status.message());
        Refusal::new(nearest_code(status.code()), text)
    })
}

/// Whether a service of ours made the status, rather than the transport to it.
pub fn carries_refusal(status: &Status) -> bool {
    status.metadata().contains_key(REFUSAL_KEY)
}

fn carried_refusal(status: &Status) -> Option<Refusal> {
    let bytes = status.metadata().get_bin(REFUSAL_KEY)?.to_bytes().ok()?;
    v1::Refusal::decode(bytes).ok()?.try_into().ok()
}

/// Longest beginning of `text` of at most `max` bytes that ends between characters.
pub(crate) fn clip(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// Returns the gRPC code that tools and proxies understand best.
pub const fn grpc_code(code: Code) -> Grpc {
    match code {
        Code::Draining
        | Code::Reconnect
        | Code::HeartbeatMissed
        | Code::Unavailable
        | Code::Full
        | Code::Replaced => Grpc::Unavailable,
        Code::Slow | Code::RateLimited | Code::WindowFull | Code::TooManySessions => {
            Grpc::ResourceExhausted
        }
        Code::EarlierSendFailed | Code::Displaced | Code::KickedOut => Grpc::Aborted,
        Code::DeadlineExceeded | Code::HandshakeTimeout => Grpc::DeadlineExceeded,
        Code::Malformed | Code::InvalidArgument | Code::ToSelf => Grpc::InvalidArgument,
        Code::TooLarge => Grpc::OutOfRange,
        Code::UnsupportedVersion | Code::Reset => Grpc::FailedPrecondition,
        Code::Unauthenticated | Code::TokenExpired => Grpc::Unauthenticated,
        Code::NotFound => Grpc::NotFound,
        Code::Forbidden | Code::Muted => Grpc::PermissionDenied,
        Code::Unsupported => Grpc::Unimplemented,
    }
}

/// Code for statuses that no service of ours made: transport, proxies, tonic itself.
const fn nearest_code(code: Grpc) -> Code {
    match code {
        Grpc::DeadlineExceeded => Code::DeadlineExceeded,
        Grpc::ResourceExhausted => Code::RateLimited,
        Grpc::InvalidArgument | Grpc::FailedPrecondition | Grpc::AlreadyExists => {
            Code::InvalidArgument
        }
        Grpc::OutOfRange => Code::TooLarge,
        Grpc::Unauthenticated => Code::Unauthenticated,
        Grpc::PermissionDenied => Code::Forbidden,
        Grpc::NotFound => Code::NotFound,
        Grpc::Unimplemented => Code::Unsupported,
        Grpc::Ok
        | Grpc::Cancelled
        | Grpc::Unknown
        | Grpc::Aborted
        | Grpc::Internal
        | Grpc::Unavailable
        | Grpc::DataLoss => Code::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_refusal_comes_back_as_it_was_said() {
        for code in Code::ALL {
            let plain = Refusal::new(code, "why: ünïcode, 100 %");
            assert_eq!(to_refusal(&from_refusal(&plain)), plain);
            let refusal_with_delay = plain.retry_after(Duration::from_millis(1500));
            assert_eq!(
                to_refusal(&from_refusal(&refusal_with_delay)),
                refusal_with_delay
            );
        }
    }

    #[test]
    fn the_nearest_code_of_a_bare_status_agrees_on_whether_to_retry() {
        for code in Code::ALL {
            let bare = Status::new(grpc_code(code), "no metadata");
            let expected = match code {
                // Ends of a connection, not answers to a call.
                Code::Displaced | Code::KickedOut => true,
                _ => code.retryable(),
            };
            assert_eq!(to_refusal(&bare).code.retryable(), expected, "{code}");
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let refusal = Refusal::new(Code::NotFound, "ü".repeat(TEXT_BYTES_MAX));
        let back = to_refusal(&from_refusal(&refusal));
        assert_eq!(back.text, "ü".repeat(TEXT_BYTES_MAX / 2));
    }

    #[test]
    fn foreign_metadata_under_our_name_is_not_believed() {
        let mut status = Status::not_found("gone");
        let nonsense = MetadataValue::from_bytes(b"\xff\xff");
        status.metadata_mut().insert_bin(REFUSAL_KEY, nonsense);
        assert_eq!(to_refusal(&status).code, Code::NotFound);
    }
}
