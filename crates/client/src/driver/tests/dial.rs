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
        let (client_end, server_end) = duplex(PIPE_BYTES);
        let boat = self.boat.clone();
        if address.as_str().starts_with("ws:") {
            drop(tokio::spawn(boat.serve_websocket(server_end)))
        } else {
            drop(tokio::spawn(boat.serve_tcp(server_end)))
        }
        Ok(Box::new(client_end))
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
    let config_for = |url: &str, user: i64| ClientConfig {
        dial: pipes.clone(),
        ..config(url.to_owned(), user)
    };
    let (alice, _alice_events) = start(config_for("ws://boat.invalid:1", 1)).await;
    let (_bob, mut bob_events) = start(config_for("tcp://boat.invalid:2", 2)).await;
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
    let state_change =
        state.wait_for(|state| matches!(state, ConnectionState::Reconnecting { .. }));
    let state_change = timeout(TEST_TIMEOUT, state_change).await.expect("in time");
    drop(state_change.expect("the client lives"));
}
