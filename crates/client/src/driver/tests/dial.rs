//! Connections over streams that the application opens.

use std::io;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::io::duplex;

use super::*;

const PIPE_BYTES: usize = 64 * 1024;

/// Pipes to a boat in this process, and the addresses that were asked for.
struct Pipes {
    boat: Boat,
    addresses: Mutex<Vec<String>>,
}

#[async_trait]
impl Dial for Pipes {
    async fn dial(&self, address: &Address) -> io::Result<Box<dyn ByteStream>> {
        self.addresses.lock().push(address.to_string());
        let (here, there) = duplex(PIPE_BYTES);
        let boat = self.boat.clone();
        match address.as_str().starts_with("ws:") {
            true => drop(tokio::spawn(boat.serve_websocket(there))),
            false => drop(tokio::spawn(boat.serve_tcp(there))),
        }
        Ok(Box::new(here))
    }
}

/// Dials nothing for ever.
struct Silence;

#[async_trait]
impl Dial for Silence {
    async fn dial(&self, _: &Address) -> io::Result<Box<dyn ByteStream>> {
        std::future::pending().await
    }
}

// Nothing listens at these addresses: a socket would be refused.
#[tokio::test]
async fn a_message_goes_over_streams_that_the_application_opens() {
    let pipes = Arc::new(Pipes {
        boat: Boat::start().await,
        addresses: Mutex::default(),
    });
    let over = |url: &str, user: i64| ClientConfig {
        dial: pipes.clone(),
        ..config(url.to_owned(), user)
    };
    let (alice, _alice_events) = start(over("ws://boat.invalid:1", 1)).await;
    let (_bob, mut bob_events) = start(over("tcp://boat.invalid:2", 2)).await;
    say(&alice, 2, "through a pipe").await;
    assert_eq!(next_texts(&mut bob_events, 1).await, ["through a pipe"]);
    let addresses = pipes.addresses.lock().clone();
    assert_eq!(addresses, ["ws://boat.invalid:1", "tcp://boat.invalid:2"]);
}

#[tokio::test]
async fn a_stream_that_never_opens_is_given_up() {
    let config = ClientConfig {
        dial: Arc::new(Silence),
        connect_timeout: Duration::from_millis(50),
        ..config("tcp://boat.invalid:2".to_owned(), 1)
    };
    let (client, _events) = Client::connect(config).await.expect("started");
    let mut state = client.state();
    let failed = state.wait_for(|state| matches!(state, ConnectionState::Reconnecting { .. }));
    let failed = timeout(PATIENCE, failed).await.expect("in time");
    drop(failed.expect("the client lives"));
}
