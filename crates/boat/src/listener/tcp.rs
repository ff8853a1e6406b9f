use std::sync::Arc;

use tokio::net::TcpListener;

use super::{Acceptor, serve};
use crate::boat::Boat;
use crate::stack::Wire;

/// Serves TCP clients until dropped; connections live on.
pub(crate) async fn serve_tcp(listener: TcpListener, boat: Arc<Boat>) {
    let mut acceptor = Acceptor::new(listener, Arc::clone(&boat));
    loop {
        let (socket, peer) = acceptor.accept().await;
        let wire = Wire::length_prefix(boat.frame_bytes_max());
        serve(&boat, socket, wire, &peer);
    }
}
