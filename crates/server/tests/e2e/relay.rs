//! A network between clients and a boat that can stall in either direction, delay, and cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::process::POLL_INTERVAL;
use crate::raw::address;

/// A relay to one address.
pub struct Relay {
    pub url: String,
    network: Arc<Network>,
}

#[derive(Default)]
struct Network {
    /// True while bytes of clients, or of the boat, are held back, as if no packet passed.
    is_stalled: [AtomicBool; 2],
    is_bad: AtomicBool,
    /// Number of pieces that passed.
    pieces: AtomicU32,
}

impl Relay {
    /// Starts a relay to the address of this URL.
    pub fn to(url: &str) -> Relay {
        let (scheme, _) = url.split_once("//").expect("a URL");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let listens = listener.local_addr().expect("bound");
        let relay = Relay {
            url: format!("{scheme}//{listens}"),
            network: Arc::default(),
        };
        let (network, to) = (Arc::clone(&relay.network), address(url));
        // The listener and its thread last as long as the tests.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                pair(client, to, &network);
            }
        });
        relay
    }

    /// Stalls the bytes of clients, and those of the boat.
    pub fn stall(&self, clients: bool, boat: bool) {
        for (stalled, is_so) in self.network.is_stalled.iter().zip([clients, boat]) {
            stalled.store(is_so, Ordering::Relaxed);
        }
    }

    /// Delays each piece by 100 to 300 ms, and cuts two connections of a hundred pieces.
    pub fn worsen(&self) {
        self.network.is_bad.store(true, Ordering::Relaxed);
    }
}

fn pair(client: TcpStream, to: SocketAddr, network: &Arc<Network>) {
    let Ok(boat) = TcpStream::connect(to) else {
        return;
    };
    for (direction, from, to) in [(0, &client, &boat), (1, &boat, &client)] {
        let (from, to) = (from.try_clone(), to.try_clone());
        let (from, to) = (from.expect("a socket"), to.expect("a socket"));
        let network = Arc::clone(network);
        thread::spawn(move || network.carry(direction, from, to));
    }
}

impl Network {
    fn carry(&self, direction: usize, mut from: TcpStream, mut to: TcpStream) {
        let mut chunk = [0; 16 * 1024];
        loop {
            let count = from.read(&mut chunk).unwrap_or(0);
            let is_cut = !self.pass(direction);
            if is_cut || count == 0 || to.write_all(&chunk[..count]).is_err() {
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    /// Waits as long as the network stalls or delays. False: it cuts the connection.
    fn pass(&self, direction: usize) -> bool {
        while self.is_stalled[direction].load(Ordering::Relaxed) {
            thread::sleep(POLL_INTERVAL);
        }
        if !self.is_bad.load(Ordering::Relaxed) {
            return true;
        }
        let piece = self.pieces.fetch_add(1, Ordering::Relaxed);
        let delay = 100 + u64::from(piece) * 7919 % 200;
        thread::sleep(Duration::from_millis(delay));
        piece % 50 != 49
    }
}
