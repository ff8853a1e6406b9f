//! A server that stops answering, and comes back.

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::Kind;
use crate::scylla::ScyllaConfig;
use crate::scylla::fixture::{config, cql, fresh};

/// Far more than anything here takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Proxy between driver and server that can stop carrying bytes.
struct Wire {
    address: String,
    open: watch::Sender<bool>,
}

impl Wire {
    async fn to(server: String) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("an address").to_string();
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(carry(from_client, to_server, is_open.clone()));
                tokio::spawn(carry(from_server, to_client, is_open.clone()));
            }
        });
        Wire { address, open }
    }

    fn stop(&self) {
        self.open.send_replace(false);
    }

    fn resume(&self) {
        self.open.send_replace(true);
    }
}

async fn carry(
    from: tokio::net::tcp::OwnedReadHalf,
    to: tokio::net::tcp::OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        if from.readable().await.is_err() || open.wait_for(|open| *open).await.is_err() {
            return;
        }
        let read = match from.try_read(&mut bytes) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let mut rest = &bytes[..read];
        while !rest.is_empty() {
            if to.writable().await.is_err() {
                return;
            }
            match to.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

/// While the server is silent, every call fails within its deadline; afterwards the same store goes
/// on, and repeated writes are stored once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the real parts: make e2e"]
async fn a_server_that_stops_is_unavailable_and_comes_back() {
    cql().await;
    let server = config().contact_points[0].clone();
    let wire = Wire::to(server).await;
    let deadline = Duration::from_secs(1);
    let proxied_config = ScyllaConfig {
        contact_points: vec![wire.address.clone()],
        request_timeout: deadline,
        ..config()
    };
    let store = ScyllaMessages::new(Cql::connect(&proxied_config).await.expect("connects"));
    let fresh = fresh();
    let talk = Talk::private(&fresh);
    // Other tests load the server too: each call only has to succeed in the end.
    let until_done = async |id: MessageId| {
        let start = Instant::now();
        let rows = rows(&talk, id, (1, 1), "hello");
        while let Err(error) = store.save(rows.clone()).await {
            assert_eq!(error.kind, Kind::Unavailable);
            assert!(start.elapsed() < TEST_TIMEOUT, "{error:?}");
            sleep(Duration::from_millis(50)).await;
        }
    };
    let id = MessageId::floor_of(at(1));
    until_done(id).await;

    wire.stop();
    let rows = rows(&talk, id, (1, 1), "hello");
    let keys = [(talk.writers(), id)];
    let all = async { tokio::join!(store.save(rows), store.rows(&keys), store.delete(&keys)) };
    let (save_result, read_result, delete_result) =
        timeout(TEST_TIMEOUT, all).await.expect("deadlines");
    assert_eq!(save_result.expect_err("no answer").kind, Kind::Unavailable);
    assert_eq!(read_result.expect_err("no answer").kind, Kind::Unavailable);
    assert_eq!(
        delete_result.expect_err("no answer").kind,
        Kind::Unavailable
    );
    let impatient_config = ScyllaConfig {
        connect_timeout: deadline,
        ..proxied_config
    };
    let connect_result = timeout(TEST_TIMEOUT, Cql::connect(&impatient_config)).await;
    let error = connect_result.expect("a deadline").expect_err("no answer");
    assert_eq!(error.kind, Kind::Unavailable);

    wire.resume();
    until_done(id).await;
    let page = store
        .find(talk.receivers(), IdRange::default(), Order::Forward, 9)
        .await;
    assert_eq!(page.expect("reads").len(), 1);
}

/// A new connection finds the rows of an old one, and writes on.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_new_connection_goes_on() {
    let fresh = fresh();
    let talk = Talk::private(&fresh);
    let mut ids = Vec::new();
    for life in 1..=3 {
        let store = ScyllaMessages::new(cql().await);
        ids.push(say_at(&store, &talk, life, life).await);
        let page = page(&store, &talk, forward(0), 9).await;
        let found_ids: Vec<_> = page.expect("reads").iter().map(MessageRow::id).collect();
        assert_eq!(found_ids, ids);
    }
}

/// No part of the store hangs on an absent server.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn an_absent_server_is_unavailable() {
    let nobody = ScyllaConfig {
        contact_points: vec!["127.0.0.1:1".to_owned()],
        ..config()
    };
    let error = Cql::connect(&nobody).await.expect_err("nobody");
    assert_eq!(error.kind, Kind::Unavailable);
}
