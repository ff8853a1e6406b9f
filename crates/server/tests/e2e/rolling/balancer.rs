//! A TCP balancer in front of boats, as in a cluster: it polls `/readyz`, and gives a client to the
//! ready boat with the fewest of its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::door::get;
use crate::raw::address;

/// Polling interval of readiness.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Buffer of each direction, in bytes.
const BUFFER: usize = 4096;

struct Backend {
    url: String,
    admin: String,
    ready: AtomicBool,
    connections: AtomicUsize,
}

/// Listens, and returns the address for clients.
pub(super) async fn balance(boats: &[[String; 2]]) -> String {
    let backends: Vec<Arc<Backend>> = (boats.iter())
        .map(|[url, admin]| {
            Arc::new(Backend {
                url: url.clone(),
                admin: admin.clone(),
                ready: AtomicBool::new(true),
                connections: AtomicUsize::new(0),
            })
        })
        .collect();
    for backend in &backends {
        tokio::spawn(look(Arc::clone(backend)));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.expect("a client");
            tokio::spawn(carry(client, backends.clone()));
        }
    });
    url
}

async fn look(backend: Arc<Backend>) {
    loop {
        let admin = backend.admin.clone();
        // The call panics if nobody listens.
        let asked = spawn_blocking(move || get(&admin, "/readyz").0).await;
        backend
            .ready
            .store(matches!(asked, Ok(200)), Ordering::Relaxed);
        sleep(POLL_INTERVAL).await;
    }
}

async fn carry(mut client: TcpStream, backends: Vec<Arc<Backend>>) {
    let ready = (backends.iter()).filter(|it| it.ready.load(Ordering::Relaxed));
    let Some(backend) = ready.min_by_key(|it| it.connections.load(Ordering::Relaxed)) else {
        return;
    };
    backend.connections.fetch_add(1, Ordering::Relaxed);
    if let Ok(mut boat) = TcpStream::connect(address(&backend.url)).await {
        let _ = (client.set_nodelay(true), boat.set_nodelay(true));
        let _ = copy_bidirectional_with_sizes(&mut client, &mut boat, BUFFER, BUFFER).await;
    }
    backend.connections.fetch_sub(1, Ordering::Relaxed);
}
