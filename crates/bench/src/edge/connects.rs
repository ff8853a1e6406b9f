//! Costs of a connection: memory while it stays, CPU when it comes, and memory left behind.

use anyhow::Result;

use super::crowd::Crowd;
use super::orders::Kind;
use super::report::Figure;
use super::{Door, Part, Run};
use crate::installation::Installation;
use crate::report::median;

/// Warm-up connections: they bring up threads, tables and caches, which are not charged to later
/// ones.
const FIRST: u64 = 100;
/// Users who come and go in turn.
const CYCLE_USERS: u64 = 1000;

const MIB: f64 = 1024.0 * 1024.0;

/// Resident memory of each connection.
pub(super) async fn idle(run: &mut Run<'_>) -> Result<()> {
    for door in Door::BOTH {
        let ours = run.server(door, &[])?;
        let ours = idle_bytes(run, &ours).await?;
        let bare = run.bare(door)?;
        let bare = idle_bytes(run, &bare).await?;
        let name = format!("{}, bytes resident each", door.name());
        let goal = match door {
            Door::Plain => "1.4 KiB",
            Door::Tls => "6 KiB",
        };
        let figure = Figure::new(Part::Idle, format!("{name} (goal {goal})"), ours);
        run.report.add(figure.beside("bare", bare));
    }
    Ok(())
}

async fn idle_bytes(run: &mut Run<'_>, server: &Installation) -> Result<f64> {
    let first = run.connect_crowd(server, 0, FIRST).await?;
    let connections = run.args.connections;
    let mut rest = run.crowd(server, FIRST, connections).await?;
    // The row of a new device does not belong to its connection: create the rows before.
    let cycle_answer = rest.cycle(connections).await?;
    run.count(&cycle_answer);
    run.settle().await;
    let resident_before = server.resident()?;
    let connect_answer = rest.connect(Kind::Idle).await?;
    run.count(&connect_answer);
    run.settle().await;
    let grown = server.resident()?.saturating_sub(resident_before);
    drop((first, rest));
    Ok(grown as f64 / connections as f64)
}

/// Rounds of one side.
#[derive(Default)]
struct ConnectRounds {
    cpu_us: Vec<f64>,
    rate: Vec<f64>,
}

/// Measures CPU and rate of sign-ins, the two sides in turn.
pub(super) async fn connect(run: &mut Run<'_>) -> Result<()> {
    for door in Door::BOTH {
        let servers = [run.bare(door)?, run.server(door, &[])?];
        let mut crowds = Vec::new();
        for server in &servers {
            let warm = run.connect_crowd(server, 0, FIRST).await?;
            crowds.push((run.crowd(server, FIRST, run.args.connections).await?, warm));
        }
        let mut all_rounds = [ConnectRounds::default(), ConnectRounds::default()];
        for _ in 0..run.args.rounds {
            for ((server, (crowd, _)), rounds) in
                servers.iter().zip(&mut crowds).zip(&mut all_rounds)
            {
                wave(run, server, crowd, rounds).await?;
            }
        }
        let [bare, ours] = all_rounds.map(|rounds| (median(&rounds.cpu_us), median(&rounds.rate)));
        let goal = match door {
            Door::Plain => 1.5,
            Door::Tls => 1.3,
        };
        let name = format!("{}, µs of CPU each", door.name());
        let cpu = Figure::new(Part::Connect, name, ours.0).beside("bare", bare.0);
        run.report.add(cpu.at_most(goal));
        let name = format!("{}, a second", door.name());
        run.report
            .add(Figure::new(Part::Connect, name, ours.1).beside("bare", bare.1));
    }
    Ok(())
}

/// Connects all clients, then disconnects all.
async fn wave(
    run: &mut Run<'_>,
    server: &Installation,
    crowd: &mut Crowd,
    rounds: &mut ConnectRounds,
) -> Result<()> {
    let cpu_before = server.total_cpu()?;
    let answer = crowd.connect(Kind::Idle).await?;
    let cpu_time = server.total_cpu()?.saturating_sub(cpu_before);
    run.count(&answer);
    let connection_count = answer.connected.max(1) as f64;
    rounds
        .cpu_us
        .push(cpu_time.as_secs_f64() * 1e6 / connection_count);
    rounds.rate.push(connection_count / answer.seconds);
    crowd.cut().await?;
    run.settle().await;
    Ok(())
}

/// Measures resident memory after a tenth, half and all of the cycles.
pub(super) async fn cycles(run: &mut Run<'_>) -> Result<()> {
    for door in Door::BOTH {
        let server = run.server(door, &[])?;
        let mut crowd = run
            .crowd(&server, 0, CYCLE_USERS.min(run.args.cycles))
            .await?;
        let mut done_count = 0;
        let mut resident = Vec::new();
        for tenths in [1, 5, 10] {
            let target_count = run.args.cycles * tenths / 10;
            let answer = crowd.cycle(target_count - done_count).await?;
            done_count = target_count;
            run.count(&answer);
            run.settle().await;
            resident.push(server.resident()? as f64 / MIB);
        }
        let cycles = run.args.cycles;
        let (samples, door) = (resident.iter().zip([10, 50]), door.name());
        for (mib, percent) in samples {
            let name = format!("{door}, MiB resident after {percent} % of {cycles}");
            run.report.add(Figure::new(Part::Cycles, name, *mib));
        }
        let name = format!("{door}, MiB resident after all");
        let last = Figure::new(Part::Cycles, name, resident[2]);
        run.report.add(last.beside("after 10 %", resident[0]));
    }
    Ok(())
}
