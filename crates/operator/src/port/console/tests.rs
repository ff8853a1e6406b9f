use std::net::SocketAddr;

use axum::body::to_bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::port::{Config, Health, Parts, start};

fn sample(path: &str) -> Option<Cow<'static, [u8]>> {
    let text: &[u8] = match path {
        "index.html" => b"<title>the console</title>",
        "assets/index-4f2a.js" => b"export {}",
        "assets/index-4f2a.css" => b"body {}",
        "favicon.svg" => b"<svg/>",
        _ => return None,
    };
    Some(Cow::Borrowed(text))
}

fn none(_path: &str) -> Option<Cow<'static, [u8]>> {
    None
}

fn header(response: &Response, name: HeaderName) -> &str {
    let value = response.headers().get(&name).expect("a header");
    value.to_str().expect("text")
}

async fn text(response: Response) -> String {
    let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("read");
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[tokio::test]
async fn the_page_and_its_files_have_their_types_and_ages() {
    let page = answer(sample, INDEX);
    assert_eq!(page.status(), StatusCode::OK);
    assert_eq!(header(&page, CONTENT_TYPE), "text/html; charset=utf-8");
    assert_eq!(header(&page, CACHE_CONTROL), "no-cache");
    assert!(text(page).await.contains("the console"));

    let types = [
        ("assets/index-4f2a.js", "text/javascript; charset=utf-8"),
        ("assets/index-4f2a.css", "text/css; charset=utf-8"),
    ];
    for (path, media_type) in types {
        let file = answer(sample, path);
        assert_eq!(header(&file, CONTENT_TYPE), media_type);
        assert!(header(&file, CACHE_CONTROL).ends_with("immutable"));
    }
    let icon = answer(sample, "favicon.svg");
    assert_eq!(header(&icon, CONTENT_TYPE), "image/svg+xml");
    assert_eq!(header(&icon, CACHE_CONTROL), "no-cache");
}

#[test]
fn missing_files_are_not_found() {
    for path in [
        "trace/123",
        "assets",
        "assets/",
        "../Cargo.toml",
        ".gitignore",
    ] {
        assert_eq!(answer(sample, path).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(built, path).status(), StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn a_program_without_console_says_how_to_build_it() {
    let page = answer(none, INDEX);
    assert_eq!(page.status(), StatusCode::OK);
    assert_eq!(header(&page, CONTENT_TYPE), "text/html; charset=utf-8");
    assert!(text(page).await.contains("make console"));
    let file = answer(none, "assets/index-4f2a.js");
    assert_eq!(file.status(), StatusCode::NOT_FOUND);
}

#[test]
fn every_answer_is_guarded() {
    for response in [
        answer(sample, INDEX),
        answer(none, INDEX),
        answer(sample, "x"),
    ] {
        let policy = header(&response, CONTENT_SECURITY_POLICY);
        assert!(policy.contains("default-src 'self'"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(header(&response, X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(header(&response, X_FRAME_OPTIONS), "DENY");
    }
}

/// The head of the answer and its body.
async fn asked(port: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(port).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answered");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn the_console_takes_nothing_from_the_rest_of_the_admin_port() {
    let config = Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..Config::default()
    };
    let parts = Parts {
        health: Health::silent(),
        desk: None,
        doctor: None,
        certificates: None,
    };
    let stop = CancellationToken::new();
    let port = start(&config, parts, stop.clone()).await.expect("it binds");
    // Built or not, there is a page.
    assert!(asked(port, "/").await.contains("<title>"));
    assert!(asked(port, "/livez").await.ends_with("live\n"));
    assert!(asked(port, "/readyz").await.ends_with("starting\n"));
    for path in ["/api/v1/audit", "/api/v1", "/api/v1/"] {
        assert!(asked(port, path).await.contains("has no desk"), "{path}");
    }
    assert!(asked(port, "/trace/1").await.starts_with("HTTP/1.1 404"));
    stop.cancel();
}
