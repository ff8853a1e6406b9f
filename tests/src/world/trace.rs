//! Events of a world, in order.

use std::fmt;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Calls of the parts and frames of devices, each with its virtual time: the same for the same
/// seed.
#[derive(Debug)]
pub struct Trace {
    zero: Instant,
    lines: Mutex<Vec<String>>,
    is_shown: bool,
}

impl Trace {
    /// Starts a trace now; with `PACKETBOAT_SIM_TRACE` set, its events are also printed.
    pub fn begin() -> Trace {
        Trace {
            zero: Instant::now(),
            lines: Mutex::default(),
            is_shown: std::env::var_os("PACKETBOAT_SIM_TRACE").is_some(),
        }
    }

    /// Adds an event of `source`, at this time.
    #[allow(clippy::print_stdout, reason = "a replayed world is shown there")]
    pub fn add(&self, source: &str, event: fmt::Arguments<'_>) {
        let millis = self.zero.elapsed().as_millis();
        let line = format!("{millis:>7} {source} {event}");
        if self.is_shown {
            println!("{line}");
        }
        self.lines.lock().push(line);
    }

    /// All events so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }
}
