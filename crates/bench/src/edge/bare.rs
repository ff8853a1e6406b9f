//! The bare accept: HTTP, WebSocket and TLS configured as a boat's, one check of a token's
//! signature and an answer of a welcome's size, and no state: a task for each connection reads
//! until it ends.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::http::Request;
use backend::clock::{Clock, SystemClock};
use backend::tls::{CertificateFiles, Certificates, TlsVersion, server_config};
use boat::listener::upgrade;
use boat::stack::{ClientInput, Wire};
use bytes::Bytes;
use clap::Args;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use protocol::frame::{ClientFrame, ServerFrame, Welcome};
use protocol::{SessionId, UserId};
use server::outln;
use server::settings::Settings;
use station::auth::{Authenticator, Client, SignedTokens};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;

const FRAME_BYTES_MAX: usize = 64 * 1024;
/// As in a boat.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const BACKLOG: u32 = 4096;

#[derive(Debug, Args)]
pub(crate) struct BareAccept {
    /// Serve TLS with this certificate.
    #[arg(long, requires = "key_file")]
    cert_file: Option<PathBuf>,
    #[arg(long)]
    key_file: Option<PathBuf>,
}

impl BareAccept {
    pub(crate) async fn run(self, settings: &Settings) -> Result<ExitCode> {
        let tls = match self.cert_file.clone().zip(self.key_file.clone()) {
            None => None,
            Some((cert_file, key_file)) => {
                let files = CertificateFiles {
                    cert_file,
                    key_file,
                };
                let certificates = Certificates::load(&[files], Arc::new(SystemClock))?;
                let config = server_config(certificates, TlsVersion::Tls12, &[b"http/1.1"])?;
                Some(TlsAcceptor::from(config))
            }
        };
        let tokens = Arc::new(SignedTokens::open(&settings.station.auth)?);
        let socket = TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, 1], 0).into())?;
        let listener = socket.listen(BACKLOG)?;
        let scheme = if tls.is_some() { "wss" } else { "ws" };
        let address = listener.local_addr()?;
        outln!("{{\"websocket\":\"{scheme}://{address}\"}}")?;
        accept_for_ever(listener, tls, tokens).await
    }
}

async fn accept_for_ever(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    tokens: Arc<SignedTokens>,
) -> Result<ExitCode> {
    loop {
        let (stream, _) = listener.accept().await.context("accepting")?;
        stream.set_nodelay(true)?;
        let (tls, tokens) = (tls.clone(), tokens.clone());
        tokio::spawn(async move {
            match tls {
                None => shake_hands(stream, tokens).await,
                Some(tls) => {
                    if let Ok(stream) = Box::pin(tls.accept(stream)).await {
                        shake_hands(stream, tokens).await;
                    }
                }
            }
        });
    }
}

async fn shake_hands<S>(stream: S, tokens: Arc<SignedTokens>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let answer = service_fn(move |request: Request<Incoming>| {
        let (mut parts, _) = request.into_parts();
        let (response, upgrade) = upgrade::accept(&mut parts);
        if let Some(upgrade) = upgrade {
            tokio::spawn(begin::<S>(upgrade, tokens.clone()));
        }
        std::future::ready(Ok::<_, Infallible>(response))
    });
    // A client that leaves during its handshake is no error. The head has the only timer, as in a
    // boat.
    let _ = upgrade::http(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades()
        .await;
}

async fn begin<S>(upgrade: OnUpgrade, tokens: Arc<SignedTokens>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    if let Some((stream, read)) = upgrade::socket::<S>(upgrade).await {
        // Ends once the client goes.
        let _ = serve(stream, &read, &tokens).await;
    }
}

async fn serve<S>(mut stream: S, read: &[u8], tokens: &SignedTokens) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut wire = Wire::websocket(FRAME_BYTES_MAX);
    wire.receive_plain(read);
    loop {
        while let Some(incoming_frame) = wire.next_frame() {
            let frame = match incoming_frame {
                ClientInput::Frame(frame) => frame,
                ClientInput::Ping => continue,
                _ => return Ok(()),
            };
            if let Some(answer) = answer(frame, tokens).await? {
                wire.send(&api::codec::encode_server(&answer));
            }
        }
        while !wire.unwritten().is_empty() {
            let count = stream.write(wire.unwritten()).await?;
            wire.wrote(count);
        }
        stream.flush().await?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes).await? {
            0 => return Ok(()),
            count => wire.receive(&mut bytes[..count]),
        }
    }
}

async fn answer(frame: Bytes, tokens: &SignedTokens) -> Result<Option<ServerFrame>> {
    match api::codec::decode_client(frame, FRAME_BYTES_MAX)? {
        ClientFrame::Hello(hello) => {
            let now = SystemClock.now();
            let client = Client {
                platform: hello.platform,
                device: &hello.device,
                address: "",
            };
            let identity = tokens.authenticate(&hello.token, &client, now).await?;
            Ok(Some(ServerFrame::Welcome(welcome(identity.user)?)))
        }
        _ => Ok(None),
    }
}

fn welcome(user: UserId) -> Result<Welcome> {
    Ok(Welcome {
        session: SessionId::new(1 << 60)?,
        user,
        server_time: SystemClock.now(),
        heartbeat: Duration::from_secs(30),
        frame_bytes_max: FRAME_BYTES_MAX as u32,
        send_window: 64,
        cluster: 1 << 60,
        marker: 1 << 60,
        recovered: true,
        expires_at: None,
    })
}
