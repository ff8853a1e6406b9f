//! Clients that do not read, while groups flood them: what the server holds for them, when it drops
//! them, and what others who chat feel.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures_util::future::try_join_all;
use protocol::{GroupId, Recipient};
use tokio::time::{Instant, sleep};

use super::metrics::{ScrapedMetrics, Scraper};
use super::orders::Kind;
use super::report::Figure;
use super::{Door, FIRST_OF_CROWD, Part, Run};
use crate::dialect::Dialect;
use crate::groups::create_group;
use crate::installation::Installation;
use crate::sign_in::{say, sign_in};

/// Members of a group, few enough that missed messages are kept for them; the slow clients share as
/// many groups as it takes.
const GROUP: u64 = 400;
/// First number of the groups' owners.
const FIRST_OWNER: u64 = 900_000;
/// Messages per group, more than the windows of a session take.
const MESSAGES: u64 = 16;
const BODY_BYTES: usize = 16 * 1024;
/// Pause between two messages to a group: many readers should be slow, rather than one fan-out
/// fast.
const PACE: Duration = Duration::from_secs(2);
/// Time for the messages, and for a boat to give up on a socket that does not drain.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(100);
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A group and its owner.
#[derive(Clone, Copy)]
struct Group {
    owner: u64,
    id: GroupId,
}

/// Result of watching the slow clients until their end.
struct SlowClientsResult {
    resident_max: u64,
    /// Highest memory that the boat counted against its limit.
    counted_max: u64,
    /// Time until the last of them was sent away.
    duration: Duration,
    /// Number of clients sent away, by code.
    closed_counts: BTreeMap<String, u64>,
}

pub(super) async fn slow(run: &mut Run<'_>) -> Result<()> {
    let ceiling = run.args.memory_max;
    let settings = [("PACKETBOAT_BOAT__MEMORY_MAX", ceiling.to_string())];
    let server = run.server(Door::Plain, &settings)?;
    let clients = run.args.slow;
    let mut crowd = run.crowd(&server, 0, clients).await?;
    let answer = crowd.connect(Kind::Slow).await?;
    run.count(&answer);
    let groups = groups(run, &server).await?;
    let baseline = run.chat(&server, run.quiet()).await?.0;
    let slow_clients = watch(&server, &groups, run.dialect.anew(), clients);
    let (under_load, slow_clients) = run.chat(&server, slow_clients).await?;
    let mut add = |name: String, value| run.report.add(Figure::new(Part::Slow, name, value));
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    let resident = format!("MiB resident at most, {clients} clients");
    add(resident, mib(slow_clients.resident_max));
    add(
        "MiB as the boat counts them".to_owned(),
        mib(slow_clients.counted_max),
    );
    add("MiB, the ceiling".to_owned(), mib(ceiling));
    let closed_count: u64 = slow_clients.closed_counts.values().sum();
    add("clients sent away".to_owned(), closed_count as f64);
    for (code, count) in slow_clients.closed_counts {
        add(format!("of them as {code}"), count as f64);
    }
    add(
        "seconds until then".to_owned(),
        slow_clients.duration.as_secs_f64(),
    );
    run.compare(Part::Slow, &baseline, &under_load);
    drop(crowd);
    Ok(())
}

/// Groups with all slow clients as members.
async fn groups(run: &Run<'_>, server: &Installation) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for (number, first) in (0..run.args.slow).step_by(GROUP as usize).enumerate() {
        let owner = FIRST_OWNER + number as u64;
        let members = first..run.args.slow.min(first + GROUP);
        let members = members.map(|user| FIRST_OF_CROWD + user);
        let id = create_group(run.place.config, &server.websocket, owner, members).await?;
        groups.push(Group { owner, id });
    }
    Ok(groups)
}

/// Floods the groups, and watches until all slow clients are gone.
async fn watch(
    server: &Installation,
    groups: &[Group],
    dialect: Dialect,
    clients: u64,
) -> Result<SlowClientsResult> {
    let scraper = Scraper::new(&server.health())?;
    let (start, first_scrape) = (Instant::now(), scraper.look().await?);
    let senders = async {
        // The groups begin one after the other, so that they do not send at the same moments.
        let begin = |(n, group): (usize, &Group)| {
            let (dialect, group) = (&dialect, *group);
            let wait = PACE * u32::try_from(n).unwrap_or(0) / groups.len() as u32;
            async move {
                sleep(wait).await;
                send_to_group(&server.websocket, dialect, group).await
            }
        };
        try_join_all(groups.iter().enumerate().map(begin))
            .await
            .map(drop)
    };
    let watcher = async {
        let (mut resident_max, mut counted_max) = (0, 0);
        loop {
            let now = scraper.look().await?;
            resident_max = resident_max.max(server.resident()?);
            counted_max = counted_max.max(now.sum("boat_memory_bytes", "") as u64);
            let closed_counts = count_closed(&first_scrape, &now);
            let duration = start.elapsed();
            if closed_counts.values().sum::<u64>() >= clients || duration > CLOSE_TIMEOUT {
                return anyhow::Ok(SlowClientsResult {
                    resident_max,
                    counted_max,
                    duration,
                    closed_counts,
                });
            }
            sleep(LOOK_EVERY).await;
        }
    };
    tokio::pin!(senders, watcher);
    tokio::select! {
        biased;
        // No recipient is left.
        result = &mut watcher => result,
        senders = &mut senders => {
            senders?;
            watcher.await
        }
    }
}

/// Connections that the boats ended between two scrapes, by code; without those of clients that
/// left.
fn count_closed(first: &ScrapedMetrics, now: &ScrapedMetrics) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for (metrics, sign) in [(now, 1.0), (first, -1.0)] {
        for (labels, value) in metrics.samples("boat_disconnects_total") {
            let code = labels.split('"').nth(1).unwrap_or_default();
            *counts.entry(code.to_owned()).or_insert(0.0) += sign * value;
        }
    }
    counts.retain(|code, count| code != "client" && *count > 0.0);
    (counts.into_iter())
        .map(|(code, count)| (code, count as u64))
        .collect()
}

async fn send_to_group(url: &str, dialect: &Dialect, Group { owner, id }: Group) -> Result<()> {
    let mut socket = sign_in(url, dialect, owner).await?;
    for n in 1..=MESSAGES {
        let body = Bytes::from(vec![b'.'; BODY_BYTES]);
        let frame = dialect.send_to(owner, n, Recipient::Group(id), body)?;
        say(&mut socket, dialect, frame).await?;
        sleep(PACE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disconnected_clients_are_counted_by_code() {
        let line =
            |code: &str, count| format!("boat_disconnects_total{{code=\"{code}\"}} {count}\n");
        let first = ScrapedMetrics::of(line("slow", 2) + &line("client", 5));
        let now = ScrapedMetrics::of(line("slow", 9) + &line("client", 50) + &line("full", 1));
        let counts = count_closed(&first, &now);
        assert_eq!(counts["slow"], 7);
        assert_eq!(counts["full"], 1);
        assert_eq!(counts.len(), 2);
    }
}
