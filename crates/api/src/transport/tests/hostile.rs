//! Peers with bad intent, and networks that swallow: each costs a bounded amount, and others go on.

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::*;

/// The preface of RFC 9113, and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const GOAWAY: u8 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Head of a call (POST, http, a path of the static table), then its cancellation by the caller.
fn call_and_reset(stream: u32) -> Vec<u8> {
    let mut frames = frame(1, 4, stream, &[0x83, 0x86, 0x84]);
    frames.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    frames
}

fn address(pair: &Pair) -> SocketAddr {
    let TestServer::Far { address, .. } = &pair.server else {
        panic!("far");
    };
    *address
}

/// Code of the GOAWAY with which the server ends.
async fn goaway(stream: &mut TcpStream) -> Option<u32> {
    let mut head = [0; 9];
    loop {
        stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.ok()?;
        if head[3] == GOAWAY {
            let code = payload.get(4..8)?.try_into().ok()?;
            return Some(u32::from_be_bytes(code));
        }
    }
}

// HTTP/2 rapid reset: calls that are cancelled before they begin.
#[tokio::test]
async fn a_peer_that_resets_calls_is_closed_and_others_go_on() {
    let pair = Pair::far().await;
    let mut neighbour = pair.client();
    neighbour.probe(probe("well")).await.expect("answered");
    let mut hostile = TcpStream::connect(address(&pair)).await.expect("listens");
    let mut flood = PREFACE.to_vec();
    for call in 0..10_000 {
        flood.extend(call_and_reset(call * 2 + 1));
    }
    // The server may have had enough before all is written.
    let _ = timeout(LONG_ENOUGH, hostile.write_all(&flood)).await;
    let code = timeout(LONG_ENOUGH, goaway(&mut hostile)).await;
    assert_eq!(code.expect("an end"), Some(ENHANCE_YOUR_CALM));
    neighbour.probe(probe("well")).await.expect("answered");
    pair.idle().await;
}

// A peer that pings and reads no answer is itself read no more: it can fill only the kernel's
// buffers.
#[tokio::test]
async fn a_peer_that_floods_pings_is_not_read_and_others_go_on() {
    let pair = Pair::far().await;
    let mut neighbour = pair.client();
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a buffer");
    let mut hostile = socket.connect(address(&pair)).await.expect("listens");
    hostile.write_all(PREFACE).await.expect("taken");
    let pings = frame(6, 0, 0, &[7; 8]).repeat(10_000);
    let mut sent_bytes = 0;
    while let Ok(Ok(())) = timeout(Duration::from_secs(2), hostile.write_all(&pings)).await {
        neighbour.probe(probe("well")).await.expect("answered");
        sent_bytes += pings.len();
        assert!(
            sent_bytes < 256 << 20,
            "still read after {sent_bytes} bytes"
        );
    }
    neighbour.probe(probe("well")).await.expect("answered");
    drop(hostile);
    pair.idle().await;
}

/// A relay to the server, which passes nothing while it stalls.
async fn relay(to: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("bound");
    let (stall, stall_receiver) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((peer, _)) = listener.accept().await {
            let stall_receiver = stall_receiver.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(to).await.expect("listens");
                let (peer, server) = (peer.into_split(), server.into_split());
                tokio::join!(
                    carry(peer.0, server.1, stall_receiver.clone()),
                    carry(server.0, peer.1, stall_receiver)
                );
            });
        }
    });
    (at, stall)
}

async fn carry(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    mut stall_receiver: watch::Receiver<bool>,
) {
    loop {
        if stall_receiver
            .wait_for(|is_stalled| !is_stalled)
            .await
            .is_err()
        {
            return;
        }
        let copy_result = tokio::select! {
            biased;
            // Copying may never pause.
            _ = stall_receiver.wait_for(|is_stalled| *is_stalled) => continue,
            copy_result = copy(&mut from, &mut to) => copy_result,
        };
        let _ = (copy_result, to.shutdown().await);
        return;
    }
}

// T-P4: no word comes, not even of an end.
#[tokio::test]
async fn a_connection_that_swallows_all_is_noticed_and_made_anew() {
    let pair = Pair::far().await;
    let (at, stall) = relay(address(&pair)).await;
    let quick = Duration::from_millis(500);
    let config = Config {
        keepalive_interval: quick,
        keepalive_timeout: quick,
        connect_timeout: quick,
        ..config()
    };
    let channel = Connector::new(config).channel(Role::Boat, &format!("http://{at}"));
    let mut client = BoatServiceClient::new(channel);
    // A busy machine may be too slow for these settings before anything stalls.
    let (_sender, mut outcomes) = loop {
        let (sender, receiver) = mpsc::channel::<DeliverBatch>(4);
        let start = Instant::now();
        match client.deliver(ReceiverStream::new(receiver)).await {
            Ok(answer) => break (sender, answer.into_inner()),
            Err(status) => assert!(start.elapsed() >= quick, "{status}"),
        }
    };
    let mut waiting_client = client.clone();
    let call = tokio::spawn(async move { waiting_client.probe(probe("never")).await });
    pair.busy().await;
    stall.send(true).expect("the relay lives");
    // The stream has no deadline, and the call an hour.
    let ends = timeout(LONG_ENOUGH, async {
        (outcomes.message().await, call.await)
    });
    let (stream, call) = ends.await.expect("noticed");
    let status = stream.expect_err("nothing comes");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let status = call.expect("no panic").expect_err("nothing comes");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    stall.send(false).expect("the relay lives");
    let reconnect = async {
        while client.probe(probe("well")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reconnect = timeout(LONG_ENOUGH, reconnect).await;
    reconnect.expect("over a new connection");
}
