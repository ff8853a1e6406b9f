//! Ports for processes that are restarted.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Returns free ports below the kernel's ephemeral range: a restarted process finds its own still
/// free.
pub fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let offset = (std::process::id() % 3_000) as u16;
    let mut ports = (0..3_000).map(|_| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        23_000 + offset.wrapping_add(step) % 3_000
    });
    [0; COUNT].map(|_: u16| {
        let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        free.expect("a free port between 23000 and 26000")
    })
}
