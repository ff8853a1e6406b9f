//! A constant private chat of reference clients against a running installation, whatever happens to
//! it: at the end each accepted message was shown, once and in order, or the bench names the
//! exceptions.

mod book;
mod people;
mod users;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use server::cli::{Output, Trust, seconds, whole};
use server::errln;
use server::settings::Settings;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use self::book::{Book, SteadyResult};
use self::people::People;
use crate::numbers::rate;
use crate::{BODY_BYTES, COUNTS};

/// Interval of progress lines on standard error.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Polling interval at the end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Args)]
pub(super) struct Steady {
    /// Boat address, as for `send`; repeat the flag to spread the clients over several.
    #[arg(long, env = "PACKETBOAT_URL", default_value = "ws://127.0.0.1:9000")]
    url: Vec<String>,
    #[command(flatten)]
    trust: Trust,
    /// Pairs of users, one sending and one receiving.
    #[arg(long, default_value_t = 100, value_parser = whole::<u32>(COUNTS))]
    pairs: u32,
    /// Messages per second over all pairs; for one pair at most `station.user_sends_per_second`.
    #[arg(long, default_value_t = 200.0, value_parser = rate)]
    rate: f64,
    /// Seconds to send; a signal ends it earlier.
    #[arg(long, default_value = "30", value_parser = seconds)]
    seconds: Duration,
    /// Percentage of receivers that come and go.
    #[arg(long, default_value_t = 20, value_parser = whole::<u32>(0..=100))]
    away: u32,
    /// Time such receivers stay, and time they stay away.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    away_for: Duration,
    /// Size of a message's body, at least 16.
    #[arg(long, default_value_t = 200, value_parser = whole::<usize>(BODY_BYTES))]
    bytes: usize,
    /// Number of the first user; two per pair follow in sequence.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(i64).range(1..=1 << 60))]
    first_user: i64,
    /// File of pairs to use instead, a line each: the sender, a space, the receiver.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pairs", "first_user"])]
    users: Option<PathBuf>,
    /// Time after the last send for accepted messages to be shown.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    settle: Duration,
}

impl Steady {
    pub(super) async fn run(self, config: Option<&Path>, output: Output) -> Result<ExitCode> {
        let users = match &self.users {
            Some(file) => users::read(file)?,
            None => users::consecutive(self.first_user, self.pairs)?,
        };
        if users.is_empty() || self.url.is_empty() {
            bail!("at least one pair and one boat are needed");
        }
        let settings = Settings::load(config)?;
        let state = tempfile::tempdir().context("creating a directory for the clients' state")?;
        let (stop_sending, stop_listening) = (CancellationToken::new(), CancellationToken::new());
        let books: Vec<Arc<Book>> = users.iter().map(|_| Arc::default()).collect();
        let people = Arc::new(People::new(&self, users, settings, state.path())?);
        let mut tasks = JoinSet::new();
        for (pair, book) in (0..).zip(&books) {
            tasks.spawn(
                people
                    .clone()
                    .receive(pair, book.clone(), stop_listening.clone()),
            );
        }
        people.wait_for_receivers().await?;
        // Closed once no sender will number a message any more.
        let (done_sender, mut done_receiver) = mpsc::channel::<()>(1);
        for (pair, book) in (0..).zip(&books) {
            tasks.spawn(people.clone().send(
                pair,
                book.clone(),
                done_sender.clone(),
                stop_sending.clone(),
                stop_listening.clone(),
            ));
        }
        drop(done_sender);
        let watch = tokio::spawn(say(books.clone(), stop_listening.clone(), output));
        self.send_time(&mut tasks).await?;
        stop_sending.cancel();
        let deadline = Instant::now() + self.settle;
        // A book that is settled before its sender's last message says nothing of that.
        let _ = timeout_at(deadline, done_receiver.recv()).await;
        wait_until_settled(&books, deadline).await;
        stop_listening.cancel();
        while let Some(result) = tasks.join_next().await {
            result??;
        }
        watch.abort();
        let total = SteadyResult::sum(&books);
        total.print(output)?;
        Ok(if total.is_clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Waits until the time is over, a signal comes, or a client ends for good.
    async fn send_time(&self, tasks: &mut JoinSet<Result<()>>) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        tokio::select! {
            biased;
            _ = terminate.recv() => Ok(()),
            _ = tokio::signal::ctrl_c() => Ok(()),
            () = sleep(self.seconds) => Ok(()),
            Some(result) = tasks.join_next() => {
                result??;
                bail!("a client ended early")
            }
        }
    }
}

/// Waits until all sent messages are accepted and all accepted ones are shown.
async fn wait_until_settled(books: &[Arc<Book>], deadline: Instant) {
    while Instant::now() < deadline && !books.iter().all(|book| book.is_settled()) {
        sleep(LOOK_EVERY).await;
    }
}

async fn say(books: Vec<Arc<Book>>, stop: CancellationToken, output: Output) {
    if output == Output::Json {
        return;
    }
    let mut ticker = interval(SAY_EVERY);
    ticker.tick().await;
    while stop.run_until_cancelled(ticker.tick()).await.is_some() {
        let result = SteadyResult::sum(&books);
        errln!(
            "{} sent, {} accepted, {} shown, {} on their way",
            result.sent,
            result.accepted,
            result.shown,
            result.missing.len()
        );
    }
}
