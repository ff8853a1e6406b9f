use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::time::timeout_at;

use super::acceptor::{AcceptedStream, Acceptor};
use super::arrival::arrive;
use crate::door::Door;
use crate::stack::Wire;
use crate::status::Shortage;

/// Serves TCP clients until dropped; connections live on.
pub(crate) async fn serve_tcp(listener: TcpListener, door: Arc<Door>) {
    let mut acceptor = Acceptor::new(listener, Arc::clone(&door), Shortage::TcpFiles);
    loop {
        let stream = acceptor.accept().await;
        // The session's bytes come first: no task is needed.
        if stream.is_plain(&door) {
            begin(stream, &door);
            continue;
        }
        tokio::spawn(shake_hands(stream, Arc::clone(&door)));
    }
}

/// Begins a session whose bytes come first.
pub(super) fn begin(stream: AcceptedStream, door: &Door) {
    let address = Some(stream.address);
    if let Some((socket, peer)) = stream.admit(door, address) {
        let wire = Wire::length_prefix(door.hello_bytes_max());
        door.serve(socket, wire, peer);
    }
}

async fn shake_hands(accepted_stream: AcceptedStream, door: Arc<Door>) {
    let (deadline, end) = (accepted_stream.deadline, accepted_stream.room.0.end_token());
    let tls = door.tls.as_ref().map(|tls| &tls.tcp);
    let arrival = timeout_at(deadline, arrive(accepted_stream, &door, tls, false));
    let Some(Ok(Some((stream, peer)))) = end.run_until_cancelled(arrival).await else {
        return;
    };
    let (socket, tls, plain) = stream.into_parts();
    let mut wire = Wire::length_prefix(door.hello_bytes_max()).with_tls(tls);
    wire.receive_plain(&plain);
    door.serve(socket, wire, peer);
}
