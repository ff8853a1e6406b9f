//! Memory of an idle connection. The clients are bare sockets: they cost the kernel, not this
//! process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use api::codec::encode_client;
use protocol::frame::ClientFrame;

use super::client::hello;
use super::eventually;
use super::harbour::Harbour;

const UPGRADE: &[u8] = b"GET /ws HTTP/1.1\r\nHost: boat\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Protocol: packetboat.v1\r\n\r\n";

/// Resident set of this process in KiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    pages * 4
}

/// Upgrades, says hello and reads the welcome.
fn connect_client(address: SocketAddr, user: i64) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.write_all(UPGRADE).expect("writes");
    let mut answer = [0; 1024];
    let mut len = 0;
    while !answer[..len].ends_with(b"\r\n\r\n") {
        len += stream.read(&mut answer[len..]).expect("reads");
    }
    let frame = encode_client(&ClientFrame::Hello(hello(user)));
    let mut bytes = vec![0x82, 0x80 | frame.len() as u8, 0, 0, 0, 0];
    bytes.extend_from_slice(&frame);
    stream.write_all(&bytes).expect("writes");
    assert!(stream.read(&mut answer).expect("reads") > 2);
    stream
}

// proves S1-07 in part: what is published for 18,976 (docs/benchmarks.md); more the open files of that machine did not allow.
/// `ulimit -n 20000; cargo test -p boat idle -- --ignored --nocapture --test-threads 1`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of the whole process, with 18,000 files"]
async fn nine_thousand_idle_connections_take_six_kibibytes_each() {
    const CLIENTS: i64 = 9000;
    let harbour = Harbour::with(|config| config.session.heartbeat *= 100).await;
    let address = harbour.handle.websocket();
    let connect = move |users: std::ops::Range<i64>| {
        tokio::task::spawn_blocking(move || {
            users.map(|user| connect_client(address, user)).collect()
        })
    };
    let warm_up_clients: Vec<TcpStream> = connect(1..101).await.expect("connects");
    let resident_before = resident();
    let clients: Vec<TcpStream> = connect(101..CLIENTS + 101).await.expect("connects");
    eventually("all aboard", || {
        harbour.handle.sessions() as i64 == CLIENTS + 100
    })
    .await;
    // Frees the peer's record of all clients.
    harbour.peer.connects.lock().clear();
    harbour.peer.connects.lock().shrink_to_fit();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let kib_each = (resident() - resident_before) as f64 / CLIENTS as f64;
    eprintln!("{kib_each:.2} KiB resident for each idle connection");
    assert!(kib_each <= 6.0, "{kib_each}");
    drop((warm_up_clients, clients));
}
