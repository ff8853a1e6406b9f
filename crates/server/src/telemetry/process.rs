//! Resources that the process uses, from /proc; nothing on systems other than Linux.

use std::fs;

use backend::clock::{Clock, SystemClock};
use metrics::{counter, gauge};

/// Clock ticks a second in /proc (USER_HZ, 100 on every Linux that Rust runs on).
const TICKS_PER_SECOND: u64 = 100;

/// Sets the time of the start, and looks once.
pub(super) fn start() {
    let now = SystemClock.now().millis() as f64;
    gauge!("process_start_time_seconds").set(now / 1000.0);
    look();
}

/// Updates the gauges; called again and again.
pub(super) fn look() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(kib) = field(&status, "VmRSS:") {
        gauge!("process_resident_memory_bytes").set((kib * 1024) as f64);
    }
    if let Some(kib) = field(&status, "VmSize:") {
        gauge!("process_virtual_memory_bytes").set((kib * 1024) as f64);
    }
    if let Some(threads) = field(&status, "Threads:") {
        gauge!("process_threads").set(threads as f64);
    }
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    if let Some(ticks) = ticks(&stat) {
        counter!("process_cpu_seconds_total").absolute(ticks / TICKS_PER_SECOND);
    }
    if let Some(files) = open_files() {
        gauge!("process_open_fds").set(files as f64);
    }
    if let Ok((soft, _)) = rlimit::Resource::NOFILE.get() {
        gauge!("process_max_fds").set(soft as f64);
    }
}

/// Counts open files. Since Linux 6.2 the size of the directory gives the count; before, a hundred
/// thousand entries are read.
fn open_files() -> Option<u64> {
    let size = fs::metadata("/proc/self/fd").ok()?.len();
    match size {
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64),
        size => Some(size),
    }
}

/// The number of a line such as `VmRSS:  1234 kB`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time, fields 14 and 15. The name in parentheses may hold spaces.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_stat_files_are_parsed() {
        let status = "Name:\tpacketboat\nVmSize:\t  9000 kB\nVmRSS:\t  1234 kB\nThreads:\t7\n";
        assert_eq!(field(status, "VmRSS:"), Some(1234));
        assert_eq!(field(status, "Threads:"), Some(7));
        assert_eq!(field(status, "VmSwap:"), None);
        let stat = "1 (a (b) c) S 0 1 1 0 -1 4194560 10 0 0 0 250 130 0 0 20 0 7 0 5 1 2";
        assert_eq!(ticks(stat), Some(380));
        assert_eq!(ticks(""), None);
        let files_before = open_files().expect("Linux");
        let _files: Vec<_> = (0..7).map(|_| fs::File::open("/proc/self/stat")).collect();
        assert!(
            open_files().expect("Linux") >= files_before + 7 - 3,
            "others close theirs"
        );
    }
}
