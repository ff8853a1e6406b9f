//! Metrics and log lines of a horn, as an operator sees them.

use std::sync::atomic::{AtomicUsize, Ordering};

use metrics_exporter_prometheus::PrometheusBuilder;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::*;
use crate::Recorder;

/// Counts lines of level INFO and above.
struct Lines(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::INFO {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One line per message would be the greater part of a busy server's log.
#[tokio::test(start_paused = true)]
async fn a_recorded_notification_is_counted_and_is_no_line_in_the_log() {
    let metrics = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&metrics);
    let lines = Arc::new(AtomicUsize::new(0));
    let log = tracing_subscriber::registry().with(Lines(lines.clone()));
    let _logs = tracing::subscriber::set_default(log);

    let desk = Desk::new();
    let horn = desk.horn(quick(), Arc::new(Recorder::new(10))).await;
    let mut partition = desk.publish(mail(1)).await;
    for n in 2..=100 {
        partition = desk.publish(mail(n)).await;
    }
    desk.wait_for_commit(partition, 100).await;
    horn.stop().await;

    assert_eq!(lines.load(Ordering::Relaxed), 0);
    let text = metrics.handle().render();
    let metric_line = text
        .lines()
        .find(|line| line.contains("horn_notifications_total") && line.contains("\"sent\""))
        .expect("counted");
    assert!(metric_line.contains("provider=\"record\""), "{metric_line}");
    assert!(metric_line.ends_with(" 100"), "{metric_line}");
}
