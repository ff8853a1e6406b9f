use std::sync::Arc;

use tokio::net::TcpListener;

use super::{Accepted, Door};
use crate::boat::Boat;
use crate::drive::Drive;
use crate::link::Link;
use crate::stack::Wire;

/// Serves TCP clients until dropped; connections live on.
pub(crate) async fn serve_tcp(listener: TcpListener, boat: Arc<Boat>) {
    let mut door = Door::new(listener, Arc::clone(&boat));
    loop {
        let Accepted {
            stream,
            arrival,
            seat,
        } = door.accept().await;
        let link = Link::new(stream, Wire::length_prefix(boat.frame_bytes_max()), seat);
        tokio::spawn(Drive::new(Arc::clone(&boat), link, &arrival));
    }
}
