//! Guard of the desk against foreign pages in browsers: only its own pages reach it, and only they
//! change anything.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use protocol::origin::Authority;

use super::refusal::DeskRefusal;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Header that a form of a foreign page cannot send.
pub(super) const OURS: HeaderName = HeaderName::from_static("x-packetboat");

/// Address and names of the desk.
pub(super) struct Guard {
    pub(super) local_address: SocketAddr,
    pub(super) hosts: Vec<String>,
    /// Whether the desk itself speaks TLS.
    pub(super) is_tls: bool,
}

pub(super) async fn guard(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    // HTTP/2 has the host in its URI.
    let authority = request.uri().authority().map(|host| host.as_str());
    match guard.check(request.method(), authority, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

impl Guard {
    fn check(
        &self,
        method: &Method,
        authority: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<(), DeskRefusal> {
        let host = text(headers, &HOST)
            .or(authority)
            .and_then(Authority::parse);
        let Some(host) = host.filter(|host| self.is_ours(host)) else {
            let text =
                "unknown host name: use the address or localhost, or list the name in admin.hosts";
            return Err(DeskRefusal::new(StatusCode::MISDIRECTED_REQUEST, text));
        };
        if matches!(*method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        self.may_change(&host, headers)
    }

    /// Whether `host` is a name of this desk. A foreign name that resolves to this address belongs
    /// to somebody else's page; an address belongs to nobody.
    fn is_ours(&self, host: &Authority<'_>) -> bool {
        let (local_ip, ip) = (self.local_address.ip(), host.ip());
        host.is_loopback()
            || ip.is_some_and(|ip| ip == local_ip || local_ip.is_unspecified())
            || self.is_named(host)
    }

    fn is_named(&self, host: &Authority<'_>) -> bool {
        self.hosts.iter().any(|name| host.is_named(name))
    }

    fn may_change(&self, host: &Authority<'_>, headers: &HeaderMap) -> Result<(), DeskRefusal> {
        let refuse = |reason: &str| Err(DeskRefusal::new(StatusCode::FORBIDDEN, reason));
        let site = text(headers, &SITE);
        if headers.contains_key(&SITE) && !matches!(site, Some("same-origin" | "none")) {
            return refuse("requests from other sites may not change anything");
        }
        let origin = text(headers, &ORIGIN);
        // A page without TLS may come from anybody between the browser and here.
        let origin = origin.filter(|origin| !self.is_tls || origin.starts_with("https://"));
        let origin = origin.and_then(Authority::from_origin);
        let is_own = |from: Authority<'_>| {
            (from.is_named(host.name) && from.port == host.port) || self.is_named(&from)
        };
        if headers.contains_key(ORIGIN) && !origin.is_some_and(is_own) {
            return refuse("requests from other origins may not change anything");
        }
        let is_json = text(headers, &CONTENT_TYPE).is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default();
            kind.trim().eq_ignore_ascii_case("application/json")
        });
        if !is_json && !headers.contains_key(&OURS) {
            return refuse(
                "send JSON (content-type: application/json), or the header X-Packetboat: 1",
            );
        }
        Ok(())
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn check_request(address: &str, method: Method, headers: &[(&'static str, &str)]) -> u16 {
        check_request_over(false, address, method, headers)
    }

    fn check_request_over(
        is_tls: bool,
        address: &str,
        method: Method,
        headers: &[(&'static str, &str)],
    ) -> u16 {
        let guard = Guard {
            local_address: address.parse().expect("an address"),
            hosts: vec!["desk.example".to_owned()],
            is_tls,
        };
        let headers = headers.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).expect("a value");
            (HeaderName::from_static(name), value)
        });
        match guard.check(&method, None, &headers.collect()) {
            Ok(()) => 200,
            Err(refusal) => refusal.status.as_u16(),
        }
    }

    #[test]
    fn a_foreign_name_for_this_address_is_misdirected() {
        let get = |bound, host| check_request(bound, Method::GET, &[("host", host)]);
        let local = "127.0.0.1:9190";
        assert_eq!(get(local, "evil.example"), 421);
        assert_eq!(get(local, "evil.example:9190"), 421);
        assert_eq!(get(local, "10.0.0.7:9190"), 421);
        assert_eq!(get("10.0.0.7:9190", "10.0.0.7:9190"), 200);
        assert_eq!(get("0.0.0.0:9190", "10.0.0.7:9190"), 200);
        assert_eq!(get("0.0.0.0:9190", "evil.example"), 421);
        for host in [
            "127.0.0.1:9190",
            "localhost:1234",
            "[::1]:9190",
            "Desk.Example",
        ] {
            assert_eq!(get(local, host), 200, "{host}");
        }
        assert_eq!(check_request(local, Method::GET, &[]), 421);
    }

    #[test]
    fn a_foreign_page_changes_nothing() {
        let post = |more: &[(&'static str, &str)]| {
            let mut headers = vec![("host", "localhost:9190")];
            headers.extend(more);
            check_request("127.0.0.1:9190", Method::POST, &headers)
        };
        let json = ("content-type", "application/json; charset=utf-8");
        assert_eq!(post(&[]), 403, "what a form without a body sends");
        assert_eq!(post(&[("content-type", "text/plain")]), 403);
        assert_eq!(post(&[json]), 200);
        assert_eq!(post(&[("x-packetboat", "1")]), 200);
        assert_eq!(post(&[json, ("sec-fetch-site", "cross-site")]), 403);
        assert_eq!(post(&[json, ("sec-fetch-site", "same-site")]), 403);
        assert_eq!(post(&[json, ("sec-fetch-site", "same-origin")]), 200);
        assert_eq!(post(&[json, ("origin", "http://evil.example")]), 403);
        assert_eq!(post(&[json, ("origin", "null")]), 403);
        assert_eq!(post(&[json, ("origin", "http://localhost:3000")]), 403);
        assert_eq!(post(&[json, ("origin", "http://localhost:9190")]), 200);
        assert_eq!(post(&[json, ("origin", "https://desk.example")]), 200);
    }

    #[test]
    fn a_page_without_tls_changes_nothing_at_a_desk_with_it() {
        let post = |host, origin| {
            let json = ("content-type", "application/json");
            let headers = [json, ("host", host), ("origin", origin)];
            check_request_over(true, "127.0.0.1:9190", Method::POST, &headers)
        };
        assert_eq!(post("localhost:9190", "https://localhost:9190"), 200);
        assert_eq!(post("localhost:9190", "http://localhost:9190"), 403);
        assert_eq!(post("desk.example", "https://desk.example"), 200);
        assert_eq!(post("desk.example:443", "https://desk.example"), 200);
        assert_eq!(post("desk.example", "http://desk.example"), 403);
        assert_eq!(post("desk.example", "https://evil.example"), 403);
        assert_eq!(post("evil.example", "https://evil.example"), 421);
    }

    // A gRPC client gets no exemption from the checks of host and content type.
    #[test]
    fn grpc_requests_are_checked_like_all_others() {
        let grpc = [
            ("content-type", "application/grpc"),
            ("host", "evil.example"),
        ];
        assert_eq!(check_request("127.0.0.1:9190", Method::GET, &grpc), 421);
        assert_eq!(check_request("127.0.0.1:9190", Method::POST, &grpc), 421);
        let local_headers = [
            ("content-type", "application/grpc"),
            ("host", "localhost:9190"),
        ];
        assert_eq!(
            check_request("127.0.0.1:9190", Method::POST, &local_headers),
            403
        );
    }
}
