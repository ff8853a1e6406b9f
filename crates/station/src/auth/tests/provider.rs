//! The provider at a URL, over real sockets: possible answers of a server, and how much of them is
//! read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::settings::Link;
use rcgen::{CertificateParams, KeyPair};
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use super::*;
use crate::auth::provider::{Answer, Https, Provider, ProviderError};
use crate::test_time::{advance_until, freeze_time};

/// Behaviour of a server.
#[derive(Clone)]
enum Conduct {
    /// Sends these bytes, and ends.
    Say(String),
    /// Sends these bytes, then the others again and again for as long as they are read.
    Stream(String, &'static str),
    /// Sends a byte now and then.
    Trickle(String),
}

/// A server on loopback, and its number of connections.
struct Server {
    address: SocketAddr,
    calls: Arc<AtomicUsize>,
    written_bytes: Arc<AtomicUsize>,
}

impl Server {
    async fn start(conduct: Conduct) -> Server {
        Server::over(conduct, None).await
    }

    async fn over(conduct: Conduct, tls: Option<TlsAcceptor>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (calls, byte_count) = (Arc::default(), Arc::default());
        let server = Server {
            address,
            calls: Arc::clone(&calls),
            written_bytes: Arc::clone(&byte_count),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                calls.fetch_add(1, Ordering::SeqCst);
                let (conduct, byte_count) = (conduct.clone(), Arc::clone(&byte_count));
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream, conduct, &byte_count).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => answer(stream, conduct, &byte_count).await,
                            Err(_) => Ok(()),
                        },
                    }
                });
            }
        });
        server
    }

    fn url(&self, scheme: &str, host: &str) -> String {
        format!("{scheme}://{host}:{}/keys?tenant=1", self.address.port())
    }

    async fn fetch(&self) -> Result<Answer, ProviderError> {
        let url = self.url("http", "127.0.0.1");
        let https = Https::open("id", &Link::from(url.as_str())).expect("an address");
        https.fetch().await
    }
}

/// Reads the head of a request, and answers by its conduct.
async fn answer<S>(mut stream: S, conduct: Conduct, byte_count: &AtomicUsize) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).expect("ASCII");
    assert!(
        head.starts_with("GET /keys?tenant=1 HTTP/1.1\r\n"),
        "{head}"
    );
    match conduct {
        Conduct::Say(text) => stream.write_all(text.as_bytes()).await?,
        Conduct::Stream(text, more) => {
            stream.write_all(text.as_bytes()).await?;
            loop {
                stream.write_all(more.as_bytes()).await?;
                byte_count.fetch_add(more.len(), Ordering::SeqCst);
            }
        }
        Conduct::Trickle(text) => {
            for byte in text.into_bytes() {
                stream.write_all(&[byte]).await?;
                stream.flush().await?;
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
    stream.shutdown().await
}

fn http(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
}

async fn answer_to(status: &str, headers: &str, body: &str) -> Result<Answer, ProviderError> {
    let server = Server::start(Conduct::Say(http(status, headers, body))).await;
    server.fetch().await
}

#[tokio::test]
async fn a_set_comes_with_the_time_for_which_it_is_good() {
    let _frozen = freeze_time();
    for (headers, seconds) in [
        ("", None),
        ("cache-control: public, max-age=300\r\n", Some(300)),
        (
            "cache-control: max-age=300\r\ncache-control: no-cache\r\n",
            Some(0),
        ),
    ] {
        let answer = answer_to("200 OK", headers, "{\"keys\":[]}").await;
        let answer = answer.expect("a set");
        assert_eq!(answer.content, b"{\"keys\":[]}");
        assert_eq!(
            answer.fresh_for,
            seconds.map(Duration::from_secs),
            "{headers}"
        );
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let _frozen = freeze_time();
    let target = Server::start(Conduct::Say(http("200 OK", "", "{\"keys\":[]}"))).await;
    let location = format!("location: {}\r\n", target.url("http", "127.0.0.1"));
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let error = answer_to(status, &location, "").await;
        let error = error.expect_err("no set");
        assert!(matches!(error, ProviderError::Refused(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("the provider answered 30"), "{text}");
        assert!(!text.contains("tenant"), "{text}");
    }
    assert_eq!(target.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_answer_that_is_no_set_is_refused_and_an_error_is_none() {
    let _frozen = freeze_time();
    for status in ["204 None", "206 Partial", "403 Forbidden", "404 Not Found"] {
        let error = answer_to(status, "", "{\"keys\":[]}").await;
        let error = error.expect_err("no set");
        assert!(matches!(error, ProviderError::Refused(_)), "{error}");
    }
    let error = answer_to("503 Unavailable", "", "{\"keys\":[]}").await;
    assert!(matches!(error, Err(ProviderError::Unanswered(_))));
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"keys\"".to_owned();
    let half = Server::start(Conduct::Say(half)).await.fetch().await;
    assert!(matches!(half, Err(ProviderError::Unanswered(_))));
    let nobody = Server::start(Conduct::Say(String::new())).await;
    assert!(matches!(
        nobody.fetch().await,
        Err(ProviderError::Unanswered(_))
    ));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/keys", listener.local_addr().expect("bound"));
    drop(listener);
    let https = Https::open("id", &Link::from(url.as_str())).expect("an address");
    let error = https.fetch().await.expect_err("nobody").to_string();
    assert_eq!(error, "the provider cannot be reached");
}

#[tokio::test]
async fn no_more_than_256_kib_of_an_answer_is_read() {
    const MAX_BYTES: usize = 256 * 1024;
    let _frozen = freeze_time();
    let whole = answer_to("200 OK", "", &" ".repeat(MAX_BYTES)).await;
    assert_eq!(whole.expect("a set").content.len(), MAX_BYTES);
    let more = answer_to("200 OK", "", &" ".repeat(MAX_BYTES + 1)).await;
    let error = more.expect_err("too much").to_string();
    assert_eq!(error, "the set has more than 256 KiB");
    // An answer without an end is not read forever.
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    let chunk = "8\r\n        \r\n";
    let endless = Server::start(Conduct::Stream(head, chunk)).await;
    let error = endless.fetch().await.expect_err("too much").to_string();
    assert_eq!(error, "the set has more than 256 KiB");
    let byte_count = endless.written_bytes.load(Ordering::SeqCst);
    // Sockets hold some megabytes more.
    assert!(byte_count < 64 << 20, "{byte_count}");
}

#[tokio::test]
async fn an_answer_has_five_seconds_to_its_last_byte() {
    let _frozen = freeze_time();
    let slow = Server::start(Conduct::Trickle(http("200 OK", "", &" ".repeat(100)))).await;
    let begin = Instant::now();
    let error = advance_until(slow.fetch())
        .await
        .expect_err("no set")
        .to_string();
    assert_eq!(error, "the provider did not answer in time");
    let elapsed = begin.elapsed();
    let bounds = Duration::from_millis(4_900)..Duration::from_millis(6_000);
    assert!(bounds.contains(&elapsed), "{elapsed:?}");
}

#[tokio::test]
async fn a_provider_proves_who_it_is() {
    let _frozen = freeze_time();
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let der = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], der.into())
        .expect("a pair");
    let tls = TlsAcceptor::from(Arc::new(config));
    let set = http("200 OK", "", "{\"keys\":[]}");
    let server = Server::over(Conduct::Say(set), Some(tls)).await;
    let authority = || reqwest::Certificate::from_der(certificate.der()).expect("DER");
    let at = |host: &str| Url::parse(&server.url("https", host)).expect("a URL");
    let answer = Https::trusting(at("localhost"), authority()).fetch().await;
    assert_eq!(answer.expect("a set").content, b"{\"keys\":[]}");
    // Another name than the certificate's, and an authority that nobody knows.
    let other = Https::trusting(at("127.0.0.1"), authority()).fetch().await;
    assert!(matches!(other, Err(ProviderError::Unanswered(_))));
    let url = server.url("https", "localhost");
    let unknown = Https::open("id", &Link::from(url.as_str())).expect("an address");
    let error = unknown.fetch().await.expect_err("nobody").to_string();
    assert_eq!(error, "the provider cannot be reached");
}
