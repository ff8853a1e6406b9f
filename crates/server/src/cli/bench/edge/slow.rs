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
use crate::cli::bench::dialect::Dialect;
use crate::cli::bench::groups::create_group;
use crate::cli::bench::installation::Installation;
use crate::cli::bench::sign_in::{say, sign_in};

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
const PATIENCE: Duration = Duration::from_secs(100);
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
    ended: Duration,
    /// Number of clients sent away, by code.
    closed: BTreeMap<String, u64>,
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
    let before = run.chat(&server, run.quiet()).await?.0;
    let seen = watch(&server, &groups, run.dialect.anew(), clients);
    let (during, seen) = run.chat(&server, seen).await?;
    let mut add = |name: String, value| run.report.add(Figure::new(Part::Slow, name, value));
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    let resident = format!("MiB resident at most, {clients} clients");
    add(resident, mib(seen.resident_max));
    add(
        "MiB as the boat counts them".to_owned(),
        mib(seen.counted_max),
    );
    add("MiB, the ceiling".to_owned(), mib(ceiling));
    let closed: u64 = seen.closed.values().sum();
    add("clients sent away".to_owned(), closed as f64);
    for (code, count) in seen.closed {
        add(format!("of them as {code}"), count as f64);
    }
    add("seconds until then".to_owned(), seen.ended.as_secs_f64());
    run.compare(Part::Slow, &before, &during);
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
    let (begun, before) = (Instant::now(), scraper.look().await?);
    let told = async {
        // The groups begin one after the other, so that they do not send at the same moments.
        let begin = |(n, group): (usize, &Group)| {
            let (dialect, group) = (&dialect, *group);
            let wait = PACE * u32::try_from(n).unwrap_or(0) / groups.len() as u32;
            async move {
                sleep(wait).await;
                tell(&server.websocket, dialect, group).await
            }
        };
        try_join_all(groups.iter().enumerate().map(begin))
            .await
            .map(drop)
    };
    let watched = async {
        let (mut resident_max, mut counted_max) = (0, 0);
        loop {
            let now = scraper.look().await?;
            resident_max = resident_max.max(server.resident()?);
            counted_max = counted_max.max(now.sum("boat_memory_bytes", "") as u64);
            let closed = closed(&before, &now);
            let ended = begun.elapsed();
            if closed.values().sum::<u64>() >= clients || ended > PATIENCE {
                return anyhow::Ok(SlowClientsResult {
                    resident_max,
                    counted_max,
                    ended,
                    closed,
                });
            }
            sleep(LOOK_EVERY).await;
        }
    };
    tokio::pin!(told, watched);
    tokio::select! {
        biased;
        // No recipient is left.
        seen = &mut watched => seen,
        told = &mut told => {
            told?;
            watched.await
        }
    }
}

/// Connections that the boats ended between two scrapes, by code; without those of clients that
/// left.
fn closed(before: &ScrapedMetrics, now: &ScrapedMetrics) -> BTreeMap<String, u64> {
    let mut closed = BTreeMap::new();
    for (metrics, sign) in [(now, 1.0), (before, -1.0)] {
        for (labels, value) in metrics.samples("boat_disconnects_total") {
            let code = labels.split('"').nth(1).unwrap_or_default();
            *closed.entry(code.to_owned()).or_insert(0.0) += sign * value;
        }
    }
    closed.retain(|code, count| code != "client" && *count > 0.0);
    (closed.into_iter())
        .map(|(code, count)| (code, count as u64))
        .collect()
}

async fn tell(url: &str, dialect: &Dialect, Group { owner, id }: Group) -> Result<()> {
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
    fn who_was_sent_away_is_counted_by_code() {
        let line =
            |code: &str, count| format!("boat_disconnects_total{{code=\"{code}\"}} {count}\n");
        let before = ScrapedMetrics::of(line("slow", 2) + &line("client", 5));
        let now = ScrapedMetrics::of(line("slow", 9) + &line("client", 50) + &line("full", 1));
        let closed = closed(&before, &now);
        assert_eq!(closed["slow"], 7);
        assert_eq!(closed["full"], 1);
        assert_eq!(closed.len(), 2);
    }
}
