//! Chat of other users during a measurement.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::report::Figure;
use super::{Part, Run};
use crate::cli::bench::installation::Installation;
use crate::cli::bench::load::{Load, LoadPace, run_beside};

const BODY_BYTES: usize = 200;

/// Result of the chat.
pub(super) struct Chat {
    /// 99th percentile of the latency, in milliseconds.
    p99_ms: f64,
    /// Messages that came twice, or behind a later one: a client sorts and shows them once.
    again: u64,
}

impl Run<'_> {
    /// Event without anything happening.
    pub(super) fn quiet(&self) -> impl Future<Output = Result<()>> + use<> {
        let seconds = self.args.seconds;
        async move {
            sleep(seconds).await;
            Ok(())
        }
    }

    /// Runs the chat of others during `event`.
    pub(super) async fn chat<T>(
        &mut self,
        server: &Installation,
        event: impl Future<Output = Result<T>>,
    ) -> Result<(Chat, T)> {
        let load = Load {
            pairs: self.args.pairs,
            body_bytes: BODY_BYTES,
            pace: LoadPace::Open {
                rate: self.args.rate,
            },
            warm_up: self.args.settle,
            measured: Duration::ZERO,
        };
        let dialect = self.dialect.anew();
        let (found, result) = run_beside(server, &[], &dialect, load, event).await?;
        let sum = found.sum;
        let why = format!("of those who chat: {sum:?}");
        self.report
            .fail(sum.lost + sum.refused + sum.closed, Some(why));
        let chat = Chat {
            p99_ms: found.latency.value_at_quantile(0.99) as f64 / 1000.0,
            again: sum.repeated + sum.out_of_order,
        };
        Ok((chat, result))
    }

    pub(super) fn compare(&mut self, part: Part, before: &Chat, during: &Chat) {
        let p99 = Figure::new(part, "p99 of others who chat, ms", during.p99_ms);
        self.report
            .add(p99.beside("before", before.p99_ms).at_most(2.0));
        let again = "their messages that came again or late";
        let again = Figure::new(part, again, during.again as f64);
        self.report.add(again.beside("before", before.again as f64));
    }
}
