//! Contract of a TLS stream, checked on the adapter and on tokio-rustls as the reference: an echo
//! over an in-memory pipe.

use std::future::Future;
use std::io::ErrorKind;
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_rustls::TlsAcceptor;

use super::*;

/// Capacity of the pipe, large enough that neither side blocks.
const PIPE_BYTES: usize = 8 * 1024 * 1024;

/// End of a server's connection.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The client sent its close.
    Clean,
    Cut,
    Refused,
}

/// A connection as the server saw it.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    end: End,
    bytes: usize,
    is_resumed: bool,
}

/// Echoes until the client closes, then closes its side as well.
async fn adapter(
    mut pipe: impl AsyncRead + AsyncWrite + Unpin,
    config: Arc<ServerConfig>,
) -> Report {
    let mut tls = Tls::new(config).expect("a connection");
    let mut bytes = 0;
    let mut buffer = vec![0; 17 * 1024];
    let end = loop {
        let count = pipe.read(&mut buffer).await.expect("a pipe");
        if count == 0 {
            break End::Cut;
        }
        let mut plain = BytesMut::new();
        let result = tls.receive(&mut buffer[..count], &mut plain);
        bytes += plain.len();
        if !plain.is_empty() && result.is_ok() {
            tls.send(&plain).expect("an open connection");
        }
        if tls.has_ended() {
            tls.close();
        }
        flush(&mut tls, &mut pipe).await;
        match result {
            Err(_) => break End::Refused,
            Ok(()) if tls.has_ended() => break End::Clean,
            Ok(()) => {}
        }
    };
    Report {
        end,
        bytes,
        is_resumed: tls.is_resumed(),
    }
}

/// Flushes in short writes, like a socket that takes only a part.
async fn flush(tls: &mut Tls, pipe: &mut (impl AsyncWrite + Unpin)) {
    while !tls.unwritten().is_empty() {
        let len = tls.unwritten().len().min(10_000);
        match pipe.write(&tls.unwritten()[..len]).await {
            Ok(count) => tls.wrote(count),
            Err(_) => return,
        }
    }
}

async fn judge(pipe: DuplexStream, config: Arc<ServerConfig>) -> Report {
    let mut report = Report {
        end: End::Clean,
        bytes: 0,
        is_resumed: false,
    };
    let end_of = |error: std::io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => End::Cut,
        _ => End::Refused,
    };
    let mut stream = match TlsAcceptor::from(config).accept(pipe).await {
        Ok(stream) => stream,
        Err(error) => {
            report.end = end_of(error);
            return report;
        }
    };
    report.is_resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
    let mut buffer = vec![0; 17 * 1024];
    report.end = loop {
        match stream.read(&mut buffer).await {
            Ok(0) => {
                let _ = stream.shutdown().await;
                break End::Clean;
            }
            Ok(count) => {
                report.bytes += count;
                let result = stream.write_all(&buffer[..count]).await;
                result.expect("an open connection");
                stream.flush().await.expect("an open connection");
            }
            Err(error) => break end_of(error),
        }
    };
    report
}

/// A client at the other end of the pipe.
struct Caller {
    client: ClientConnection,
    pipe: DuplexStream,
    plain: Vec<u8>,
    has_ended: bool,
}

impl Caller {
    fn ciphertext(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes).expect("a vector");
        }
        bytes
    }

    async fn flush(&mut self) {
        let bytes = self.ciphertext();
        let _ = self.pipe.write_all(&bytes).await;
    }

    fn say(&mut self, bytes: &[u8]) {
        self.client.writer().write_all(bytes).expect("room");
    }

    /// The next plaintext; empty at a clean end, an error at any other.
    async fn read(&mut self) -> Result<Vec<u8>, String> {
        let mut buffer = vec![0; 4000];
        loop {
            self.flush().await;
            if !self.plain.is_empty() || self.has_ended {
                return Ok(std::mem::take(&mut self.plain));
            }
            let count = self.pipe.read(&mut buffer).await.expect("a pipe");
            if count == 0 {
                return Err("cut".into());
            }
            let mut bytes = &buffer[..count];
            while !bytes.is_empty() {
                self.client.read_tls(&mut bytes).expect("room");
                self.decrypt()?;
            }
        }
    }

    fn decrypt(&mut self) -> Result<(), String> {
        let state = self.client.process_new_packets();
        let state = state.map_err(|error| error.to_string())?;
        let start = self.plain.len();
        self.plain
            .resize(start + state.plaintext_bytes_to_read(), 0);
        let read = self.client.reader().read_exact(&mut self.plain[start..]);
        read.expect("as many bytes as there are");
        self.has_ended = state.peer_has_closed();
        Ok(())
    }

    async fn echo(&mut self, bytes: &[u8]) {
        self.say(bytes);
        self.flush().await;
        let mut echoed_bytes = Vec::new();
        while echoed_bytes.len() < bytes.len() {
            let plain = self.read().await.expect("an echo");
            assert!(
                !plain.is_empty(),
                "the end after {} bytes",
                echoed_bytes.len()
            );
            echoed_bytes.extend(plain);
        }
        assert_eq!(echoed_bytes, bytes);
    }
}

/// Runs one connection: `call` acts as the client, and the report is the server's.
async fn connection<S>(
    server: impl Fn(DuplexStream, Arc<ServerConfig>) -> S,
    config: &Arc<ClientConfig>,
    call: impl AsyncFnOnce(Caller),
) -> Report
where
    S: Future<Output = Report> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let server_task = tokio::spawn(server(far, SERVER.clone()));
    let mut client = client(config.clone());
    client.set_buffer_limit(None);
    let caller = Caller {
        client,
        pipe: near,
        plain: Vec::new(),
        has_ended: false,
    };
    call(caller).await;
    server_task.await.expect("no panic")
}

/// Checks one server in both TLS versions.
async fn keeps_the_contract<S>(server: impl Fn(DuplexStream, Arc<ServerConfig>) -> S + Copy)
where
    S: Future<Output = Report> + Send + 'static,
{
    for version in VERSIONS {
        let mut config = client_config(version);
        config.resumption = Resumption::in_memory_sessions(4);
        let config = &Arc::new(config);
        all_sizes_with_new_keys_until_a_clean_end(server, config).await;
        words_before_and_behind(server, config).await;
        cuts(server, config).await;
        forgery(server, config).await;

        let mut other = client_config(version);
        other.alpn_protocols = vec![b"h2".to_vec()];
        let report = connection(server, &Arc::new(other), async |mut caller| {
            let error = caller.read().await.expect_err("an alert");
            assert!(error.contains("NoApplicationProtocol"), "{error}");
        })
        .await;
        assert_eq!(report.end, End::Refused);
    }
}

async fn all_sizes_with_new_keys_until_a_clean_end<S>(
    server: impl Fn(DuplexStream, Arc<ServerConfig>) -> S + Copy,
    config: &Arc<ClientConfig>,
) where
    S: Future<Output = Report> + Send + 'static,
{
    let sizes = [1, 16_384, 16_385, 100, 400_000, 65_536, 3, 250_001];
    for round in 0..2 {
        let report = connection(server, config, async |mut caller| {
            for size in sizes {
                let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
                caller.echo(&bytes).await;
                if caller.client.protocol_version() == Some(TLS13.version) {
                    caller.client.refresh_traffic_keys().expect("TLS 1.3");
                }
            }
            caller.client.send_close_notify();
            assert_eq!(caller.read().await, Ok(Vec::new()));
        })
        .await;
        let expected = Report {
            end: End::Clean,
            bytes: sizes.iter().sum(),
            is_resumed: round == 1,
        };
        assert_eq!(report, expected);
    }
}

/// Sends data right behind the handshake, and the end right behind data.
async fn words_before_and_behind<S>(
    server: impl Fn(DuplexStream, Arc<ServerConfig>) -> S,
    config: &Arc<ClientConfig>,
) where
    S: Future<Output = Report> + Send + 'static,
{
    let report = connection(server, config, async |mut caller| {
        caller.say(b"early");
        assert_eq!(caller.read().await, Ok(b"early".to_vec()));
        caller.say(b"late");
        caller.client.send_close_notify();
        assert_eq!(caller.read().await, Ok(b"late".to_vec()));
        assert_eq!(caller.read().await, Ok(Vec::new()));
    })
    .await;
    assert_eq!((report.end, report.bytes), (End::Clean, 9));
}

/// Cuts the connection between records, in a record, in the handshake, at once.
async fn cuts<S>(
    server: impl Fn(DuplexStream, Arc<ServerConfig>) -> S + Copy,
    config: &Arc<ClientConfig>,
) where
    S: Future<Output = Report> + Send + 'static,
{
    for places in [0, 1] {
        let report = connection(server, config, async |mut caller| {
            caller.echo(b"hello").await;
            caller.say(b"half");
            let bytes = caller.ciphertext();
            let part = &bytes[..bytes.len() / 2 * places];
            caller.pipe.write_all(part).await.expect("a pipe");
        })
        .await;
        assert_eq!((report.end, report.bytes), (End::Cut, 5));
    }
    for len in [0, 100] {
        let report = connection(server, config, async |mut caller| {
            let bytes = caller.ciphertext();
            caller.pipe.write_all(&bytes[..len]).await.expect("a pipe");
        })
        .await;
        assert_eq!(report.end, End::Cut);
    }
}

async fn forgery<S>(
    server: impl Fn(DuplexStream, Arc<ServerConfig>) -> S,
    config: &Arc<ClientConfig>,
) where
    S: Future<Output = Report> + Send + 'static,
{
    let report = connection(server, config, async |mut caller| {
        caller.echo(b"hello").await;
        let forged_record = [&[23, 3, 3, 0, 40], &[5; 40][..]].concat();
        caller.pipe.write_all(&forged_record).await.expect("a pipe");
        let error = caller.read().await.expect_err("an alert");
        assert!(error.contains("BadRecordMac"), "{error}");
    })
    .await;
    assert_eq!((report.end, report.bytes), (End::Refused, 5));
}

#[tokio::test]
async fn the_adapter_keeps_the_contract() {
    keeps_the_contract(adapter).await;
}

#[tokio::test]
async fn tokio_rustls_keeps_the_contract() {
    keeps_the_contract(judge).await;
}

/// Reads until `text` has come, behind everything that was read before.
async fn read_up_to(pipe: &mut (impl AsyncRead + Unpin), read: &mut Vec<u8>, text: &str) {
    let from = read.len().saturating_sub(1);
    while !String::from_utf8_lossy(&read[from..]).contains(text) {
        let count = pipe.read_buf(read).await.expect("a pipe");
        assert!(count > 0, "ended without {text:?}");
    }
}

/// OpenSSL's client takes a line's first letter as a command: K and k update its keys, with and
/// without a request to update ours.
#[tokio::test]
#[ignore = "it needs openssl"]
async fn openssl_is_understood() {
    for (flag, version, lines) in [
        (
            "-tls1_3",
            "TLSv1.3",
            &["one\n", "K\n", "two\n", "k\n", "three\n"][..],
        ),
        ("-tls1_2", "TLSv1.2", &["one\n", "two\n"]),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let arguments = [flag, "-alpn", "packetboat.v1", "-connect", &address];
        let mut openssl = Command::new("openssl")
            .arg("s_client")
            .args(arguments)
            .args(["-servername", NAME])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl");
        let (stream, _) = listener.accept().await.expect("a connection");
        let server_task = tokio::spawn(adapter(stream, SERVER.clone()));
        let mut stdin = openssl.stdin.take().expect("a pipe");
        let mut stdout = openssl.stdout.take().expect("a pipe");
        let mut stderr = openssl.stderr.take().expect("a pipe");
        let (mut text, mut log) = (Vec::new(), Vec::new());
        // It takes a letter as a command only if it reads the line alone.
        for line in lines {
            stdin.write_all(line.as_bytes()).await.expect("a pipe");
            if line.len() > 2 {
                read_up_to(&mut stdout, &mut text, &format!("\n{line}")).await
            } else {
                read_up_to(&mut stderr, &mut log, "KEYUPDATE\n").await
            }
        }
        stdin.write_all(b"Q\n").await.expect("a pipe");
        stdout.read_to_end(&mut text).await.expect("a pipe");
        openssl.wait().await.expect("an end");
        let text = String::from_utf8_lossy(&text);
        let expected = ["ALPN protocol: packetboat.v1", version];
        let echoed_lines = lines.iter().filter(|line| line.len() > 2);
        for expected in expected.iter().chain(echoed_lines) {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        let report = server_task.await.expect("no panic");
        let line_lengths = lines
            .iter()
            .filter(|line| line.len() > 2)
            .map(|line| line.len());
        assert_eq!((report.end, report.bytes), (End::Clean, line_lengths.sum()));
    }
}
