//! Ends all connections in one moment: how long until no session counts as connected?

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use super::metrics::{ScrapedMetrics, Scraper};
use super::report::Figure;
use super::{Door, Part, Run};

const LOOK_EVERY: Duration = Duration::from_millis(50);
const SIGN_OFF_TIMEOUT: Duration = Duration::from_secs(120);

/// Calls of boats to stations, sign-offs among them.
const CALLS: &str = "boat_station_calls_total";
const SIGN_OFF: &str = "call=\"disconnect\"";

pub(super) async fn storm(run: &mut Run<'_>) -> Result<()> {
    let server = run.server(Door::Plain, &[])?;
    let scraper = Scraper::new(&server.health())?;
    let connections = run.args.connections;
    // Sign-offs count as over once none was made for this long.
    let quiet = run.args.settle;
    let crowd = run.connect_crowd(&server, 0, connections).await?;
    run.settle().await;
    let (first_scrape, cpu) = (scraper.look().await?, server.total_cpu()?);
    let sessions = first_scrape.sum("boat_sessions", "");
    let start = Instant::now();
    crowd.kill().await?;
    let (sessions_end, signed_off, last_scrape) = wait_for_silence(&scraper, start, quiet).await?;
    let cpu_time = server.total_cpu()?.saturating_sub(cpu);
    let calls = last_scrape.sum(CALLS, SIGN_OFF) - first_scrape.sum(CALLS, SIGN_OFF);
    let mut add = |name: &str, value| run.report.add(Figure::new(Part::Storm, name, value));
    add("sessions at once", sessions);
    add(
        "seconds until no session is left",
        sessions_end.as_secs_f64(),
    );
    add("seconds until the last sign-off", signed_off.as_secs_f64());
    add(
        "µs of CPU a session",
        cpu_time.as_secs_f64() * 1e6 / connections as f64,
    );
    add("sessions a sign-off", connections as f64 / calls.max(1.0));
    Ok(())
}

/// Waits for the last session and the last sign-off; returns their times and the metrics then.
async fn wait_for_silence(
    scraper: &Scraper,
    start: Instant,
    quiet: Duration,
) -> Result<(Duration, Duration, ScrapedMetrics)> {
    let (mut sessions_end, mut calls, mut last_call_at) = (None, f64::NAN, start);
    loop {
        let metrics = scraper.look().await?;
        if sessions_end.is_none() && metrics.sum("boat_sessions", "") == 0.0 {
            sessions_end = Some(start.elapsed());
        }
        let call_count = metrics.sum(CALLS, SIGN_OFF);
        if call_count != calls {
            (calls, last_call_at) = (call_count, Instant::now());
        }
        if let Some(sessions_end) = sessions_end
            && last_call_at.elapsed() > quiet
        {
            return Ok((sessions_end, last_call_at - start, metrics));
        }
        if start.elapsed() > SIGN_OFF_TIMEOUT {
            bail!("sessions are left after {SIGN_OFF_TIMEOUT:?}");
        }
        sleep(LOOK_EVERY).await;
    }
}
