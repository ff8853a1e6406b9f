//! WebSocket handshake (RFC 6455, 4.2): checks the request, and computes the key that answers it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use sha1::{Digest, Sha1};

/// Appended to the client's key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The only version there is.
pub const VERSION: &str = "13";

/// Refusal of a request to become a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub status: StatusCode,
    pub text: String,
}

impl Rejection {
    fn new(status: StatusCode, text: impl Into<String>) -> Rejection {
        Rejection {
            status,
            text: text.into(),
        }
    }
}

/// Returns the value of `Sec-WebSocket-Accept` for a request that asks for `subprotocol`.
///
/// # Errors
/// A [`Rejection`]: 405 for a method other than GET, 426 for a request without an upgrade or with
/// another version, 400 otherwise.
pub fn accept(
    method: &Method,
    headers: &HeaderMap,
    subprotocol: &str,
) -> Result<String, Rejection> {
    if method != Method::GET {
        let text = "WebSockets begin with GET\n";
        return Err(Rejection::new(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    let upgrades = lists(headers, &CONNECTION, "upgrade") && lists(headers, &UPGRADE, "websocket");
    if !upgrades {
        let text = "a WebSocket wants Connection: Upgrade and Upgrade: websocket\n";
        return Err(Rejection::new(StatusCode::UPGRADE_REQUIRED, text));
    }
    if headers
        .get(SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != VERSION)
    {
        let text = "a WebSocket wants Sec-WebSocket-Version: 13\n";
        return Err(Rejection::new(StatusCode::UPGRADE_REQUIRED, text));
    }
    let bad = |text: String| Err(Rejection::new(StatusCode::BAD_REQUEST, text));
    let key = headers.get(SEC_WEBSOCKET_KEY).map(|key| key.as_bytes());
    let is_nonce = |key: &&[u8]| {
        BASE64_STANDARD
            .decode(key)
            .is_ok_and(|nonce| nonce.len() == 16)
    };
    let Some(key) = key.filter(is_nonce) else {
        return bad("a WebSocket wants a Sec-WebSocket-Key of 16 bytes in base64\n".into());
    };
    if !lists_exactly(headers, &SEC_WEBSOCKET_PROTOCOL, subprotocol) {
        return bad(format!("ask for the WebSocket subprotocol {subprotocol}\n"));
    }
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    Ok(BASE64_STANDARD.encode(digest))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',').map(str::trim))
}

fn lists(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|it| it.eq_ignore_ascii_case(token))
}

/// Whether the header lists `token`; names of subprotocols are case-sensitive.
fn lists_exactly(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|it| it == token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// The request of RFC 6455, 1.3.
    fn request() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (CONNECTION, "keep-alive, Upgrade"),
            (UPGRADE, "WebSocket"),
            (SEC_WEBSOCKET_VERSION, "13"),
            (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
            (SEC_WEBSOCKET_PROTOCOL, "chat, superchat"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_example_of_the_standard_is_answered_as_it_says() {
        let key = accept(&Method::GET, &request(), "superchat");
        assert_eq!(key.as_deref(), Ok("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    }

    #[test]
    fn invalid_handshakes_are_rejected_with_their_status() {
        let status = |change: &dyn Fn(&mut HeaderMap)| {
            let mut headers = request();
            change(&mut headers);
            let error = accept(&Method::GET, &headers, "chat").err();
            error.map(|rejection| rejection.status)
        };
        let value = HeaderValue::from_static;
        assert_eq!(status(&|_| {}), None);
        let no_upgrade = Some(StatusCode::UPGRADE_REQUIRED);
        for name in [CONNECTION, UPGRADE, SEC_WEBSOCKET_VERSION] {
            assert_eq!(
                status(&|headers| _ = headers.remove(&name)),
                no_upgrade,
                "{name}"
            );
        }
        let old = |headers: &mut HeaderMap| _ = headers.insert(SEC_WEBSOCKET_VERSION, value("8"));
        assert_eq!(status(&old), no_upgrade);
        let bad = Some(StatusCode::BAD_REQUEST);
        for key in ["", "dGhlIHNhbXBsZQ==", "not base64 at all"] {
            let change =
                |headers: &mut HeaderMap| _ = headers.insert(SEC_WEBSOCKET_KEY, value(key));
            assert_eq!(status(&change), bad, "{key}");
        }
        let other =
            |headers: &mut HeaderMap| _ = headers.insert(SEC_WEBSOCKET_PROTOCOL, value("Chat"));
        assert_eq!(status(&other), bad);
        let post_result = accept(&Method::POST, &request(), "chat").map_err(|it| it.status);
        assert_eq!(post_result, Err(StatusCode::METHOD_NOT_ALLOWED));
    }
}
