//! Clients of this process, at the other end of a pipe.

use tokio::io::{DuplexStream, duplex};

use super::client::Client;
use super::eventually;
use super::harbour::Harbour;

const PIPE_BYTES: usize = 64 * 1024;

impl Harbour {
    /// One client over each protocol, without a socket.
    async fn both_by_pipe(&self) -> [Client; 2] {
        let (here, there) = duplex(PIPE_BYTES);
        let pipes = self.running.pipes();
        tokio::spawn(async move { pipes.serve_websocket(there).await });
        let websocket = Client::websocket_over(here, &[]).await.expect("upgrades");
        [websocket, Client::tcp_over(self.pipe().await)]
    }

    async fn pipe(&self) -> DuplexStream {
        let (here, there) = duplex(PIPE_BYTES);
        self.running.pipes().serve_tcp(there).await;
        here
    }
}

#[tokio::test]
async fn a_pipe_is_a_connection_over_either_protocol() {
    let harbour = Harbour::open().await;
    for (user, mut client) in (1..).zip(harbour.both_by_pipe().await) {
        let welcome = client.hello(user).await;
        assert_eq!(welcome.user.get(), user);
        client.ping().await;
        assert_eq!(harbour.running.sessions(), 1);
        drop(client);
        eventually("signed off", || harbour.running.sessions() == 0).await;
    }
    let connects = harbour.peer.connects.lock();
    let from_here = connects.iter().filter(|it| it.peer == "127.0.0.1:0");
    assert_eq!(from_here.count(), 2);
}

#[tokio::test]
async fn a_boat_that_has_left_serves_no_pipe() {
    let harbour = Harbour::open().await;
    harbour.running.drain();
    harbour.running.left().await;
    let mut client = Client::tcp_over(harbour.pipe().await);
    assert_eq!(client.next().await, None);
}
