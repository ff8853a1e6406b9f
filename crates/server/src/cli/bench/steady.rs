//! A constant private chat of reference clients against a running installation, whatever happens to it:
//! at the end each accepted message was shown, once and in order, or the bench says which were not.

mod book;
mod people;
mod users;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use self::book::{Book, Found};
use self::people::People;
use crate::cli::Output;
use crate::cli::connection::Trust;
use crate::settings::Settings;

/// How often the state of things is said on standard error.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at the end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Args)]
pub(super) struct Steady {
    /// A boat, as `send` has it; give several to spread the clients over them.
    #[arg(long, env = "PACKETBOAT_URL", default_value = "ws://127.0.0.1:9000")]
    url: Vec<String>,
    #[command(flatten)]
    trust: Trust,
    /// Pairs of users, one sending and one receiving.
    #[arg(long, default_value_t = 100)]
    pairs: u32,
    /// Messages a second over all pairs; of one pair at most `station.user_sends_per_second`.
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
    /// How long to send; a signal ends it earlier.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Of a hundred receivers, how many come and go.
    #[arg(long, default_value_t = 20)]
    away: u32,
    /// How long those stay, and how long they stay away.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    away_for: f64,
    /// Size of a message's body, at least 16.
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// The first of the users; as many as there are pairs follow, twice.
    #[arg(long, default_value_t = 1_000_000)]
    first_user: i64,
    /// Pairs by name instead, a line each: the sender, a space, the receiver.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pairs", "first_user"])]
    users: Option<PathBuf>,
    /// How long, after the last send, what was accepted may take to be shown.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    settle: u64,
}

impl Steady {
    pub(super) async fn run(self, config: Option<&Path>, output: Output) -> Result<ExitCode> {
        let users = match &self.users {
            Some(file) => users::read(file)?,
            None => users::consecutive(self.first_user, self.pairs)?,
        };
        if users.is_empty() || self.url.is_empty() || self.rate <= 0.0 {
            bail!("at least one pair, one boat and a rate above zero are needed");
        }
        let settings = Settings::load(config)?;
        let state = tempfile::tempdir().context("making a folder for the clients' state")?;
        let (sending, listening) = (CancellationToken::new(), CancellationToken::new());
        let books: Vec<Arc<Book>> = users.iter().map(|_| Arc::default()).collect();
        let people = Arc::new(People::new(&self, users, settings, state.path())?);
        let mut tasks = JoinSet::new();
        for (pair, book) in (0..).zip(&books) {
            tasks.spawn(
                people
                    .clone()
                    .receive(pair, book.clone(), listening.clone()),
            );
        }
        people.wait_for_receivers().await?;
        for (pair, book) in (0..).zip(&books) {
            tasks.spawn(people.clone().send(
                pair,
                book.clone(),
                sending.clone(),
                listening.clone(),
            ));
        }
        let watch = tokio::spawn(say(books.clone(), listening.clone(), output));
        self.send_time(&mut tasks).await?;
        sending.cancel();
        settled(&books, Duration::from_secs(self.settle)).await;
        listening.cancel();
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        watch.abort();
        let found = Found::sum(&books);
        found.print(output)?;
        Ok(match found.is_clean() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// Until the time is over, a signal comes, or a client ends for good.
    async fn send_time(&self, tasks: &mut JoinSet<Result<()>>) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        tokio::select! {
            () = sleep(Duration::from_secs(self.seconds)) => Ok(()),
            _ = terminate.recv() => Ok(()),
            _ = tokio::signal::ctrl_c() => Ok(()),
            Some(ended) = tasks.join_next() => {
                ended??;
                bail!("a client ended before its time")
            }
        }
    }
}

/// Waits until all that was sent is accepted and all that was accepted is shown.
async fn settled(books: &[Arc<Book>], patience: Duration) {
    let until = Instant::now() + patience;
    while Instant::now() < until && !books.iter().all(|book| book.is_settled()) {
        sleep(LOOK_EVERY).await;
    }
}

async fn say(books: Vec<Arc<Book>>, stop: CancellationToken, output: Output) {
    if output == Output::Json {
        return;
    }
    let mut due = interval(SAY_EVERY);
    due.tick().await;
    while stop.run_until_cancelled(due.tick()).await.is_some() {
        let found = Found::sum(&books);
        eprintln!(
            "{} sent, {} accepted, {} shown, {} on their way",
            found.sent,
            found.accepted,
            found.shown,
            found.missing.len()
        );
    }
}
