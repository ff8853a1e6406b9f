//! Files that are reread while a process runs.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tracing::{info, warn};

/// Interval between checks of the files. Contents are compared, because a renewed file may be a
/// link with a new target.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Result of a look at files that found nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    Unchanged,
    /// The present content of the files is in use.
    Reloaded,
}

/// SHA-256 over the contents of several files, each after its length, so that no byte can move from
/// one to the next.
pub fn digest(contents: impl IntoIterator<Item = impl AsRef<[u8]>>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for content in contents {
        let content = content.as_ref();
        digest.update((content.len() as u64).to_be_bytes());
        digest.update(content);
    }
    digest.finalize().into()
}

/// Checks files every ten seconds until dropped. After a failed check the earlier content stays in
/// use; the failure is logged and counted once per reason. `counter` takes `reloaded` or `refused`.
pub async fn reread<E>(
    files: &str,
    counter: impl Fn(&'static str) -> Counter,
    reload: impl Fn() -> Result<Reload, E> + Send + Sync + 'static,
) where
    E: Display + Send + 'static,
{
    // Alarms see a first increment only if the counter existed before.
    for result in ["reloaded", "refused"] {
        counter(result).increment(0);
    }
    let reload = Arc::new(reload);
    let mut last_error = None;
    loop {
        sleep(RELOAD_INTERVAL).await;
        let reload = Arc::clone(&reload);
        // The disk of the files may hang.
        let result = tokio::task::spawn_blocking(move || reload()).await;
        last_error = match result {
            Ok(Ok(Reload::Unchanged)) => None,
            Ok(Ok(Reload::Reloaded)) => {
                info!(files, "changed files reloaded");
                counter("reloaded").increment(1);
                None
            }
            Ok(Err(error)) => {
                let text = error.to_string();
                if last_error.as_ref() != Some(&text) {
                    warn!(files, %error, "cannot reload changed files; keeping the current ones");
                    counter("refused").increment(1);
                }
                Some(text)
            }
            Err(_) => return,
        };
    }
}
