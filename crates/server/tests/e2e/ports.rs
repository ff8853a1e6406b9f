//! Ports for processes that are started again.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Ports that nobody uses now, below those that the kernel gives to outgoing connections: a process that
/// is started again finds its own free.
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
