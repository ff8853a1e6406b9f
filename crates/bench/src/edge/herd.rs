//! Ends all connections, and has all clients come back by the client's rules: how long does it
//! take, and what do others feel?

use anyhow::Result;

use super::orders::Answer;
use super::report::{Figure, quantile};
use super::{Door, Part, Run};

/// Shares of the clients, each with its goal, if any, as a ratio to the bare accept.
const SHARES: [(f64, Option<f64>); 4] = [(0.5, None), (0.9, None), (0.99, Some(3.0)), (1.0, None)];

pub(super) async fn herd(run: &mut Run<'_>) -> Result<()> {
    let connections = run.args.connections;
    let bare = {
        let server = run.bare(Door::Plain)?;
        let mut crowd = run.connect_crowd(&server, 0, connections).await?;
        crowd.herd().await?
    };
    let server = run.server(Door::Plain, &[])?;
    let mut crowd = run.connect_crowd(&server, 0, connections).await?;
    let baseline = run.chat(&server, run.quiet()).await?.0;
    let (under_load, ours) = run.chat(&server, crowd.herd()).await?;
    for answer in [&bare, &ours] {
        run.report
            .fail(connections.saturating_sub(answer.connected), None);
    }
    let at = |answer: &Answer, share| f64::from(quantile(&answer.back_ms, share)) / 1000.0;
    for (share, goal) in SHARES {
        let name = format!("seconds until {:.0} % are back", share * 100.0);
        let figure = Figure::new(Part::Herd, name, at(&ours, share));
        let figure = figure.beside("bare", at(&bare, share));
        run.report.add(match goal {
            Some(goal) => figure.at_most(goal),
            None => figure,
        });
    }
    for (kind, count) in &ours.tries_failed {
        let name = format!("tries that failed: {kind}");
        run.report.add(Figure::new(Part::Herd, name, *count as f64));
    }
    run.compare(Part::Herd, &baseline, &under_load);
    Ok(())
}
