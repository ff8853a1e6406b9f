//! Kills all boats with all their sessions: what load does Redis get, and how long until no session
//! counts as online?

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use protocol::Recipient;
use tokio::time::{Instant, sleep};

use super::metrics::Scraper;
use super::report::Figure;
use super::{Door, FIRST_OF_CROWD, Part, Run, redis};
use crate::cli::bench::dialect::Dialect;
use crate::cli::bench::sign_in::{say, sign_in};

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longer than a lease and the doubt after it.
const PATIENCE: Duration = Duration::from_secs(90);
/// Absent users who get a message.
const WRITTEN_TO: u64 = 200;
/// Number of the user who writes.
const WRITER: u64 = 800_000;

const DENIED: &str = "carrier_boats_denied_total";
const STORED: &str = "carrier_deliveries_stored_total";

pub(super) async fn killed(run: &mut Run<'_>) -> Result<()> {
    ensure!(
        run.args.boats.is_some(),
        "only of boats of a fleet: --boats N"
    );
    let mut server = run.server(Door::Plain, &[])?;
    let boats = server.websockets().len();
    let connections = run.args.connections;
    let crowd = run.connected(&server, 0, connections).await?;
    run.settle().await;
    // The same duration without a fault: a cluster at rest queries Redis, too.
    let rest = redis::commands(&run.redis).await?;
    sleep(run.args.seconds).await;
    let before = redis::commands(&run.redis).await?;
    let a_second = (before - rest) / run.args.seconds.as_secs_f64();
    let begun = Instant::now();
    server.kill("boat")?;
    drop(crowd);
    let scraper = Scraper::new(&server.health())?;
    while scraper.look().await?.sum(DENIED, "") < boats as f64 {
        if begun.elapsed() > PATIENCE {
            bail!("boats that were killed still count as alive after {PATIENCE:?}");
        }
        sleep(LOOK_EVERY).await;
    }
    let denied = begun.elapsed();
    run.settle().await;
    let asked = redis::commands(&run.redis).await? - before;
    let quiet = a_second * begun.elapsed().as_secs_f64();

    let mut add = |name: &str, value| run.report.add(Figure::new(Part::Killed, name, value));
    add("boats", boats as f64);
    add("seconds until all of them are denied", denied.as_secs_f64());
    add("Redis commands meanwhile", asked);
    add("Redis commands in as long at rest", quiet);
    add(
        "Redis commands a session",
        (asked - quiet).max(0.0) / connections as f64,
    );

    let config = run.place.config.context("--boats needs --config")?;
    server.add_boat(config, boats + 1)?;
    let stored = scraper.look().await?.sum(STORED, "");
    let begun = Instant::now();
    let url = server.websockets().pop().unwrap_or_default();
    let written_to = WRITTEN_TO.min(connections);
    write_to(&url, &run.dialect.anew(), connections, written_to).await?;
    let wanted = stored + written_to as f64;
    while scraper.look().await?.sum(STORED, "") < wanted {
        if begun.elapsed() > PATIENCE {
            bail!("of {written_to} messages to users who are gone some are not in their mailboxes");
        }
        sleep(LOOK_EVERY).await;
    }
    let name = format!("seconds until {written_to} messages to absent users are in mailboxes");
    let stored = Figure::new(Part::Killed, name, begun.elapsed().as_secs_f64());
    run.report.add(stored);
    Ok(())
}

/// Writes a message to each of `count` users, spread evenly over all, one after the other.
async fn write_to(url: &str, dialect: &Dialect, users: u64, count: u64) -> Result<()> {
    let mut socket = sign_in(url, dialect, WRITER).await?;
    for n in 1..=count {
        let user = FIRST_OF_CROWD + (n - 1) * (users / count);
        let to = Recipient::User(Dialect::user(user)?);
        let body = Bytes::from_static(b"are you there");
        say(&mut socket, dialect, dialect.send_to(WRITER, n, to, body)?).await?;
    }
    Ok(())
}
