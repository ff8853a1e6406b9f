//! Clients of this process, at the other end of a pipe.

use tokio::io::{DuplexStream, duplex};

use super::eventually;
use super::harbour::Harbour;

/// As much as a kernel may take at once.
const PIPE_BYTES: usize = 512 * 1024;

pub(super) fn websocket_pipe(harbour: &Harbour) -> DuplexStream {
    let (near, far) = duplex(PIPE_BYTES);
    let pipes = harbour.handle.pipes();
    tokio::spawn(async move { pipes.serve_websocket(far).await });
    near
}

pub(super) async fn tcp_pipe(harbour: &Harbour) -> DuplexStream {
    let (near, far) = duplex(PIPE_BYTES);
    harbour.handle.pipes().serve_tcp(far).await;
    near
}

#[tokio::test(start_paused = true)]
async fn a_pipe_is_a_connection_over_either_protocol() {
    let harbour = Harbour::piped(|_| ()).await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        let welcome = client.hello(user).await;
        assert_eq!(welcome.user.get(), user);
        client.ping().await;
        assert_eq!(harbour.handle.sessions(), 1);
        drop(client);
        eventually("signed off", || harbour.handle.sessions() == 0).await;
    }
    let connects = harbour.peer.connects.lock();
    let local_peers = connects.iter().filter(|it| it.peer == "127.0.0.1:0");
    assert_eq!(local_peers.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_boat_that_has_left_serves_no_pipe() {
    let harbour = Harbour::piped(|_| ()).await;
    harbour.handle.drain();
    harbour.handle.left().await;
    let mut client = harbour.tcp().await;
    assert_eq!(client.next().await, None);
}
