use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::time::timeout_at;

use super::arrival::arrive;
use super::{AcceptedStream, Acceptor, serve};
use crate::boat::{Boat, Shortage};
use crate::connection::driver::HELLO_BYTES_MAX;
use crate::stack::Wire;

/// Serves TCP clients until dropped; connections live on.
pub(crate) async fn serve_tcp(listener: TcpListener, boat: Arc<Boat>) {
    let mut acceptor = Acceptor::new(listener, Arc::clone(&boat), Shortage::TcpFiles);
    loop {
        let stream = acceptor.accept().await;
        // The session's bytes come first: no task is needed.
        if stream.is_plain(&boat) {
            begin(stream, &boat);
            continue;
        }
        tokio::spawn(shake_hands(stream, Arc::clone(&boat)));
    }
}

/// Begins a session whose bytes come first.
pub(super) fn begin(stream: AcceptedStream, boat: &Arc<Boat>) {
    let address = Some(stream.address);
    if let Some((socket, peer)) = stream.admit(boat, address) {
        let wire = Wire::length_prefix(HELLO_BYTES_MAX.min(boat.frame_bytes_max()));
        serve(boat, socket, wire, Arc::new(peer));
    }
}

async fn shake_hands(accepted_stream: AcceptedStream, boat: Arc<Boat>) {
    let (deadline, end) = (accepted_stream.deadline, accepted_stream.room.0.end_token());
    let arrival = timeout_at(
        deadline,
        arrive(accepted_stream, &boat, boat.tls_for_tcp(), false),
    );
    let Some(Ok(Some((stream, peer)))) = end.run_until_cancelled(arrival).await else {
        return;
    };
    let (socket, tls, plain) = stream.into_parts();
    let mut wire = Wire::length_prefix(HELLO_BYTES_MAX.min(boat.frame_bytes_max())).with_tls(tls);
    wire.receive_plain(&plain);
    serve(&boat, socket, wire, Arc::new(peer));
}
