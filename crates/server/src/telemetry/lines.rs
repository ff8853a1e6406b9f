//! Log lines on their way to stderr. A thread of its own writes them: a blocked terminal, or a
//! shipper that does not read, costs the lines that find no room, and nothing else.

use std::io;
use std::panic;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Limit of lines that wait; further ones are dropped and counted.
const LINES_MAX: usize = 8192;

type SetLevel = Box<dyn Fn(EnvFilter) -> Result<()> + Send + Sync>;

static LINES: OnceLock<Lines> = OnceLock::new();

struct Lines {
    drop_counter: ErrorCounter,
    /// Dropped at the end: the drop waits a second at most for the last lines.
    writer: Mutex<Option<WorkerGuard>>,
    set_level: SetLevel,
}

pub(super) fn start(set_level: SetLevel) -> Result<NonBlocking> {
    let (sink, writer) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_MAX)
        .thread_name("log")
        .finish(io::stderr());
    let lines = Lines {
        drop_counter: sink.error_counter(),
        writer: Mutex::new(Some(writer)),
        set_level,
    };
    let set = LINES.set(lines).ok();
    set.context("logging is already started")?;
    Ok(sink)
}

/// Lines that found no room, since the start.
pub(super) fn dropped_count() -> u64 {
    LINES
        .get()
        .map_or(0, |lines| lines.drop_counter.dropped_lines() as u64)
}

pub(super) fn set_level(level: EnvFilter) -> Result<()> {
    match LINES.get() {
        Some(lines) => (lines.set_level)(level),
        None => Ok(()),
    }
}

pub(super) fn end() {
    if let Some(lines) = LINES.get() {
        drop(lines.writer.lock().take());
    }
}

/// Logs a panic like any other line: the default hook writes to stderr itself, and waits for it.
pub(super) fn log_panics() {
    panic::set_hook(Box::new(|panic_info| {
        let payload = panic_info.payload();
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let place = panic_info.location().map(ToString::to_string);
        let thread = std::thread::current();
        tracing::error!(
            place = place.as_deref(),
            thread = thread.name(),
            "panic: {}",
            text.unwrap_or("no message")
        );
    }));
}
