//! Files held for a port, so that it still answers when this process may open no more.

use std::fs::File;
use std::io;
use std::net::SocketAddr;

use futures_util::FutureExt;
use parking_lot::Mutex;
use protocol::accept_backoff::is_exhaustion;
use tokio::net::{TcpListener, TcpStream};

/// Open files whose only use is to be closed when a connection needs one.
pub(super) struct SpareFiles {
    files: Mutex<Vec<File>>,
    max: usize,
}

impl SpareFiles {
    /// Opens `max` files, or as many as the process may.
    pub(super) fn new(max: usize) -> SpareFiles {
        let spares = SpareFiles {
            files: Mutex::default(),
            max,
        };
        spares.refill();
        spares
    }

    /// Opens files in place of those given away, as far as others have not taken the room.
    pub(super) fn refill(&self) {
        let mut files = self.files.lock();
        while files.len() < self.max
            && let Ok(file) = File::open("/dev/null")
        {
            files.push(file);
        }
    }

    /// Closes a file; false if none is left.
    fn give(&self) -> bool {
        self.files.lock().pop().is_some()
    }

    /// Accepts the next connection, in place of a spare file if there is no other room.
    pub(super) async fn accept(
        &self,
        listener: &TcpListener,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            match listener.accept().await {
                Err(error) if is_out_of_room(&error) && self.give() => {}
                Err(error) => {
                    // The room of a spare may have gone to another user: take back the next that
                    // comes free.
                    self.refill();
                    return Err(error);
                }
                Ok(accepted) => return Ok(accepted),
            }
            // The kernel takes a file first, and a connection second: there may be none.
            match listener.accept().now_or_never() {
                Some(accepted) => return accepted,
                None => self.refill(),
            }
        }
    }
}

/// Whether accepting fails until something of this process, or of the system, is closed.
pub(super) fn is_out_of_room(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(is_exhaustion)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_are_taken_back_and_no_more_of_them() {
        let spares = SpareFiles::new(8);
        spares.files.lock().truncate(3);
        spares.refill();
        spares.refill();
        assert_eq!(spares.files.lock().len(), 8);
    }
}
