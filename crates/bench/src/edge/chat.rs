//! Chat of other users during a measurement.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::report::Figure;
use super::{Part, Run};
use crate::installation::Installation;
use crate::load::{Load, LoadPace, run_beside};

const BODY_BYTES: usize = 200;

/// Result of the chat.
pub(super) struct Chat {
    /// 99th percentile of the latency, in milliseconds.
    p99_ms: f64,
    /// Messages that came twice, or behind a later one: a client sorts and shows them once.
    repeat_count: u64,
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
            duration: Duration::ZERO,
        };
        let dialect = self.dialect.anew();
        let (load_result, result) = run_beside(server, &[], &dialect, load, event).await?;
        let sum = load_result.sum;
        let reason = format!("of those who chat: {sum:?}");
        self.report.fail(
            sum.lost_count + sum.refused_count + sum.closed_count,
            Some(reason),
        );
        let chat = Chat {
            p99_ms: load_result.latency.value_at_quantile(0.99) as f64 / 1000.0,
            repeat_count: sum.repeated_count + sum.out_of_order,
        };
        Ok((chat, result))
    }

    pub(super) fn compare(&mut self, part: Part, baseline: &Chat, under_load: &Chat) {
        let p99 = Figure::new(part, "p99 of others who chat, ms", under_load.p99_ms);
        self.report
            .add(p99.beside("before", baseline.p99_ms).at_most(2.0));
        let figure = "their messages that came again or late";
        let figure = Figure::new(part, figure, under_load.repeat_count as f64);
        self.report
            .add(figure.beside("before", baseline.repeat_count as f64));
    }
}
