//! Memory of as many revocations as a station may know, for docs/operations/running.md:
//! `cargo test --release --package protocol --test memory_of_revocations --locked -- --ignored --nocapture`.

use protocol::revocation::{Insertion, REVOCATIONS_MAX, Revocations, UserRevocation};
use protocol::{Timestamp, UserId};

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<usize>().ok())
        .expect("a number")
        * 1024
}

#[test]
#[ignore = "a measurement"]
fn a_million_revocations_fit_into_128_mib() {
    let bytes_before = resident();
    let mut set = Revocations::default();
    for number in 0..REVOCATIONS_MAX as i64 {
        // Users in random order, times in ascending order.
        let user = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) & i64::MAX;
        let at = Timestamp::from_millis(1_800_000_000_000 + number * 100);
        let revocation = UserRevocation {
            user: UserId::new(user.max(1)).expect("positive"),
            before: at,
            at,
        };
        assert_eq!(set.insert(revocation), Insertion::Changed);
    }
    let bytes = resident() - bytes_before;
    eprintln!(
        "{} users: {:.1} MiB, {} bytes each",
        set.len(),
        bytes as f64 / (1 << 20) as f64,
        bytes / set.len()
    );
    assert_eq!(set.len(), REVOCATIONS_MAX);
    assert!(bytes < 128 << 20, "{bytes}");
}
