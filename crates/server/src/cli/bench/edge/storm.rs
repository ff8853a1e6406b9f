//! Ends all connections in one moment: how long until no session counts as connected?

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use super::metrics::{ScrapedMetrics, Scraper};
use super::report::Figure;
use super::{Door, Part, Run};

const LOOK_EVERY: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(120);

/// Calls of boats to stations, sign-offs among them.
const CALLS: &str = "boat_station_calls_total";
const SIGN_OFF: &str = "call=\"disconnect\"";

pub(super) async fn storm(run: &mut Run<'_>) -> Result<()> {
    let server = run.server(Door::Plain, &[])?;
    let scraper = Scraper::new(&server.health())?;
    let connections = run.args.connections;
    // Sign-offs count as over once none was made for this long.
    let quiet = run.args.settle;
    let crowd = run.connected(&server, 0, connections).await?;
    run.settle().await;
    let (before, cpu) = (scraper.look().await?, server.cpu_of_all()?);
    let sessions = before.sum("boat_sessions", "");
    let begun = Instant::now();
    crowd.kill().await?;
    let (gone, signed_off, after) = wait_for_silence(&scraper, begun, quiet).await?;
    let used = server.cpu_of_all()?.saturating_sub(cpu);
    let calls = after.sum(CALLS, SIGN_OFF) - before.sum(CALLS, SIGN_OFF);
    let mut add = |name: &str, value| run.report.add(Figure::new(Part::Storm, name, value));
    add("sessions at once", sessions);
    add("seconds until no session is left", gone.as_secs_f64());
    add("seconds until the last sign-off", signed_off.as_secs_f64());
    add(
        "µs of CPU a session",
        used.as_secs_f64() * 1e6 / connections as f64,
    );
    add("sessions a sign-off", connections as f64 / calls.max(1.0));
    Ok(())
}

/// Waits for the last session and the last sign-off; returns their times and the metrics then.
async fn wait_for_silence(
    scraper: &Scraper,
    begun: Instant,
    quiet: Duration,
) -> Result<(Duration, Duration, ScrapedMetrics)> {
    let (mut gone, mut calls, mut since) = (None, f64::NAN, begun);
    loop {
        let metrics = scraper.look().await?;
        if gone.is_none() && metrics.sum("boat_sessions", "") == 0.0 {
            gone = Some(begun.elapsed());
        }
        let made = metrics.sum(CALLS, SIGN_OFF);
        if made != calls {
            (calls, since) = (made, Instant::now());
        }
        if let Some(gone) = gone
            && since.elapsed() > quiet
        {
            return Ok((gone, since - begun, metrics));
        }
        if begun.elapsed() > PATIENCE {
            bail!("sessions are left after {PATIENCE:?}");
        }
        sleep(LOOK_EVERY).await;
    }
}
