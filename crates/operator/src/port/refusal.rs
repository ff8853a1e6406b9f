//! Refusals of the desk: a status, and a body in the form of all refusals.

use axum::Json;
use axum::body::to_bytes;
use axum::http::StatusCode;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use protocol::{Code, Refusal};

use crate::answer::{ErrorAnswer, ErrorDetail};

/// Bytes of a sentence that the router or an extractor writes.
const MESSAGE_MAX: usize = 64 << 10;

/// A refusal of the desk.
#[derive(Clone, Debug)]
pub(crate) struct DeskRefusal {
    pub(crate) status: StatusCode,
    pub(crate) error: ErrorDetail,
}

impl DeskRefusal {
    /// Refusal with the code of its status.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> DeskRefusal {
        let is_busy = status == StatusCode::TOO_MANY_REQUESTS;
        DeskRefusal {
            status,
            error: ErrorDetail {
                code: status_code_name(status).to_owned(),
                message: message.into(),
                retry: is_busy || status.is_server_error(),
            },
        }
    }

    /// Refusal by a rule or by another service, with its own code.
    pub(crate) fn of(status: StatusCode, refusal: &Refusal) -> DeskRefusal {
        DeskRefusal {
            status,
            error: ErrorDetail::from(refusal),
        }
    }

    /// The same refusal with a longer sentence.
    pub(crate) fn and(mut self, more: &str) -> DeskRefusal {
        self.error.message += more;
        self
    }
}

impl IntoResponse for DeskRefusal {
    fn into_response(self) -> Response {
        let DeskRefusal { status, error } = self;
        (status, Json(ErrorAnswer { error })).into_response()
    }
}

fn status_code_name(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Code::InvalidArgument.name(),
        StatusCode::UNAUTHORIZED => Code::Unauthenticated.name(),
        StatusCode::FORBIDDEN => Code::Forbidden.name(),
        StatusCode::NOT_FOUND => Code::NotFound.name(),
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            Code::Unsupported.name()
        }
        StatusCode::CONFLICT => "conflict",
        StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge.name(),
        StatusCode::MISDIRECTED_REQUEST => "misdirected",
        StatusCode::TOO_MANY_REQUESTS => Code::RateLimited.name(),
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable.name(),
        _ => "internal",
    }
}

/// Gives refusals of the router and of extractors, which are text, the form of all others.
pub(crate) async fn uniform(response: Response) -> Response {
    let status = response.status();
    let is_json = |kind: &[u8]| kind.starts_with(b"application/json");
    let kind = response.headers().get(CONTENT_TYPE);
    let is_ours = kind.is_some_and(|kind| is_json(kind.as_bytes()));
    if is_ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let text = to_bytes(body, MESSAGE_MAX).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let message = match text.trim() {
        "" => status.canonical_reason().unwrap_or_default(),
        text => text,
    };
    let mut answer = DeskRefusal::new(status, message).into_response();
    if let Some(methods) = head.headers.remove(ALLOW) {
        answer.headers_mut().insert(ALLOW, methods);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_whether_to_ask_again() {
        let retry = |status| DeskRefusal::new(status, "no").error.retry;
        for status in [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::INTERNAL_SERVER_ERROR,
            StatusCode::SERVICE_UNAVAILABLE,
        ] {
            assert!(retry(status), "{status}");
        }
        for status in [StatusCode::BAD_REQUEST, StatusCode::CONFLICT] {
            assert!(!retry(status), "{status}");
        }
        let refusal = Refusal::new(Code::Draining, "not now");
        let answer = DeskRefusal::of(StatusCode::SERVICE_UNAVAILABLE, &refusal);
        assert_eq!(answer.error.code, "draining");
        assert!(answer.error.retry);
    }

    #[tokio::test]
    async fn router_errors_have_the_form_of_refusals() {
        let read_refusal = async |response: Response| {
            let answer = uniform(response).await;
            let allow = answer.headers().get(ALLOW).cloned();
            let body = to_bytes(answer.into_body(), 1000).await.expect("read");
            let error_answer: ErrorAnswer = serde_json::from_slice(&body).expect("a refusal");
            (error_answer.error, allow)
        };
        let text = (StatusCode::BAD_REQUEST, "unknown field `x`\n").into_response();
        let (error, _) = read_refusal(text).await;
        assert_eq!(error.code, "invalid_argument");
        assert_eq!(error.message, "unknown field `x`");
        let silent = (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET")]).into_response();
        let (error, allow) = read_refusal(silent).await;
        assert_eq!(
            (&*error.code, &*error.message),
            ("unsupported", "Method Not Allowed")
        );
        assert_eq!(allow.expect("kept"), "GET");
        let own = DeskRefusal::new(StatusCode::CONFLICT, "changed").into_response();
        assert_eq!(read_refusal(own).await.0.code, "conflict");
    }
}
