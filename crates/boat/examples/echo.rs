//! Echo server for WebSocket and TLS test suites, over a boat's stack: its reader and writer, its
//! TLS, its HTTP upgrade. Text is echoed as text, and messages are as large as a suite makes them.
//!
//! `echo ADDRESS [CERTIFICATE KEY]` prints the address it listens on, and serves until it is
//! killed.

use std::future::poll_fn;
use std::io::{self, Error, Write};
use std::sync::Arc;
use std::time::Duration;

use backend::clock::SystemClock;
use backend::tls::{CertificateFiles, Certificates, TlsVersion, server_config};
use boat::listener::client_stream::{ByteStream, ClientStream, Socket};
use boat::listener::upgrade;
use boat::stack::{ClientInput, Tls, Wire};
use hyper::upgrade::OnUpgrade;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

/// Larger than the largest message of Autobahn, which has 16 MiB.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// Limit of a handshake, and of the wait for the client's close after ours.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next();
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let tls = match (arguments.next(), arguments.next()) {
        (Some(cert_file), Some(key_file)) => Some(config(CertificateFiles {
            cert_file: cert_file.into(),
            key_file: key_file.into(),
        })?),
        _ => None,
    };
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(stream, tls.clone()));
    }
}

/// TLS configuration as a boat builds it for WebSockets.
fn config(files: CertificateFiles) -> io::Result<Arc<ServerConfig>> {
    let certificates = Certificates::load(&[files], Arc::new(SystemClock)).map_err(Error::other)?;
    server_config(certificates, TlsVersion::default(), &[b"http/1.1"]).map_err(Error::other)
}

async fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>) {
    let Ok(tls) = tls.map(Tls::new).transpose() else {
        return;
    };
    let socket = Socket {
        stream: ByteStream::Tcp(stream),
        permit: (),
    };
    let mut stream = ClientStream::new(socket, tls);
    let handshake = timeout(HANDSHAKE_TIMEOUT, poll_fn(|cx| stream.poll_handshake(cx)));
    if !matches!(handshake.await, Ok(Ok(()))) {
        return;
    }
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    upgrade::serve_request(stream, deadline, HANDSHAKE_TIMEOUT, |parts| {
        let (response, upgrade) = upgrade::accept(parts);
        if let Some(upgrade) = upgrade {
            tokio::spawn(begin(upgrade));
        }
        response
    })
    .await;
}

async fn begin(upgrade: OnUpgrade) {
    let Some((stream, early_bytes)) = upgrade::socket::<ClientStream<()>>(upgrade).await else {
        return;
    };
    let (mut socket, tls, plain) = stream.into_parts();
    let mut wire = Wire::websocket(MESSAGE_BYTES_MAX).with_text().with_tls(tls);
    wire.receive_plain(&early_bytes);
    wire.receive_plain(&plain);
    // A client that vanishes ends only its own connection.
    let _ = converse(&mut socket.stream, &mut wire).await;
}

async fn converse(stream: &mut ByteStream, wire: &mut Wire) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let is_open = echo(wire);
        wire.seal();
        while !wire.unwritten().is_empty() {
            let count = stream.write(wire.unwritten()).await?;
            wire.wrote(count);
        }
        if !is_open {
            stream.shutdown().await?;
            let mut sink = tokio::io::sink();
            let rest = tokio::io::copy(stream, &mut sink);
            return timeout(HANDSHAKE_TIMEOUT, rest).await?.map(drop);
        }
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => wire.receive(&mut buffer[..count]),
        }
    }
}

/// Echoes every whole message. False: the connection has ended.
fn echo(wire: &mut Wire) -> bool {
    while let Some(input) = wire.next_frame() {
        match input {
            ClientInput::Frame(frame) => wire.send(&frame),
            ClientInput::Text(text) => wire.send_text(&text),
            ClientInput::Refused(refusal) => {
                wire.close(refusal.code);
                return false;
            }
            ClientInput::Violation(violation) => {
                wire.close_as(violation.close_code(), &violation.to_string());
                return false;
            }
            ClientInput::Ping => {}
            ClientInput::End => return false,
        }
    }
    true
}
