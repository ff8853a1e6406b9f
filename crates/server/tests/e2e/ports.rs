//! Ports for processes that are restarted.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// First port of all tests. None of the pages and scripts names one from here to the last.
const FIRST: u16 = 13_000;
/// Ports of one test: more than two fleets keep.
const EACH: u16 = 100;
/// Tests with ports of their own at the same time.
const SLOTS: u16 = 40;

/// Returns free ports below the kernel's ephemeral range: a restarted process finds its own still
/// free. Tests that run at the same time in processes of their own have no port in common.
pub fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let (first, count) = match slot() {
        Some(slot) => (FIRST + slot * EACH, EACH),
        // All tests are in this process.
        None => (FIRST, SLOTS * EACH),
    };
    // Sockets of whoever had these ports before may linger.
    let offset = (std::process::id() % u32::from(count)) as u16;
    let mut ports = (0..count).map(|_| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        first + offset.wrapping_add(step) % count
    });
    [0; COUNT].map(|_: u16| {
        let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        free.unwrap_or_else(|| panic!("no free port among {count} from {first} on"))
    })
}

/// The same number for no two tests that nextest runs at the same time, up to `SLOTS` of them.
fn slot() -> Option<u16> {
    let slot = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").ok()?;
    let slot: u16 = slot.parse().expect("a number");
    Some(slot % SLOTS)
}
