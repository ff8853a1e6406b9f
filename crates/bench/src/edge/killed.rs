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
use crate::dialect::Dialect;
use crate::sign_in::{say, sign_in};

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longer than a lease, and the time for which its end is in doubt.
const KILL_TIMEOUT: Duration = Duration::from_secs(90);
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
    let crowd = run.connect_crowd(&server, 0, connections).await?;
    run.settle().await;
    // The same duration without a fault: a cluster at rest queries Redis, too.
    let rest = redis::commands(&run.redis).await?;
    sleep(run.args.seconds).await;
    let commands_before = redis::commands(&run.redis).await?;
    let a_second = (commands_before - rest) / run.args.seconds.as_secs_f64();
    let start = Instant::now();
    server.kill("boat")?;
    drop(crowd);
    let scraper = Scraper::new(&server.health())?;
    while scraper.look().await?.sum(DENIED, "") < boats as f64 {
        if start.elapsed() > KILL_TIMEOUT {
            bail!("killed boats still count as alive after {KILL_TIMEOUT:?}");
        }
        sleep(LOOK_EVERY).await;
    }
    let denied_after = start.elapsed();
    run.settle().await;
    let command_count = redis::commands(&run.redis).await? - commands_before;
    let quiet = a_second * start.elapsed().as_secs_f64();

    let mut add = |name: &str, value| run.report.add(Figure::new(Part::Killed, name, value));
    add("boats", boats as f64);
    add(
        "seconds until all of them are denied",
        denied_after.as_secs_f64(),
    );
    add("Redis commands meanwhile", command_count);
    add("Redis commands in as long at rest", quiet);
    add(
        "Redis commands a session",
        (command_count - quiet).max(0.0) / connections as f64,
    );

    let config = run.place.config.context("--boats needs --config")?;
    server.add_boat(config, boats + 1)?;
    let stored_before = scraper.look().await?.sum(STORED, "");
    let start = Instant::now();
    let url = server.websockets().pop().unwrap_or_default();
    let recipient_count = WRITTEN_TO.min(connections);
    write_to(&url, &run.dialect.anew(), connections, recipient_count).await?;
    let target = stored_before + recipient_count as f64;
    while scraper.look().await?.sum(STORED, "") < target {
        if start.elapsed() > KILL_TIMEOUT {
            bail!(
                "some of {recipient_count} messages to absent users are missing from their mailboxes"
            );
        }
        sleep(LOOK_EVERY).await;
    }
    let name = format!("seconds until {recipient_count} messages to absent users are in mailboxes");
    let figure = Figure::new(Part::Killed, name, start.elapsed().as_secs_f64());
    run.report.add(figure);
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
