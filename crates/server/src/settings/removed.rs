//! Settings of earlier versions that no longer exist, each with what holds instead.

use figment::Figment;
use figment::value::Value;
use protocol::settings::Problems;

use super::SettingsError;
use super::environment::variable;

/// Refuses files and variables that still name one of them.
pub(super) fn check(named_settings: &Figment) -> Result<(), SettingsError> {
    let mut problems = Problems::default();
    // Settings that cannot be read are refused by those who read them.
    let named_settings: Value = named_settings.extract().unwrap_or_else(|_| false.into());
    for (path, instead) in REMOVED {
        if named_settings.find_ref(path).is_some() {
            problems.refuse(path, "", &reason(instead), "Remove it");
        }
    }
    super::refuse(&problems)
}

/// Reason against a variable that names one of them.
pub(super) fn reason_against(name: &str) -> Option<String> {
    let is_named = |path: &str| {
        let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
        let rest = name.strip_prefix(&variable(section, key));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("__"))
    };
    let (_, instead) = REMOVED.iter().find(|(path, _)| is_named(path))?;
    Some(reason(instead))
}

fn reason(instead: &str) -> String {
    format!("no longer a setting: {instead}")
}

#[rustfmt::skip]
const REMOVED: &[(&str, &str)] = &[
    ("log.otlp.traces_endpoint", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names one, if log.otlp.endpoint is unset"),
    ("log.otlp.metrics_endpoint", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT names one, if log.otlp.endpoint is unset"),
    ("log.otlp.service", "OTEL_SERVICE_NAME names it"),
    ("log.otlp.instance", "OTEL_RESOURCE_ATTRIBUTES may say service.instance.id=…"),
    ("log.otlp.timeout", "OTEL_EXPORTER_OTLP_TIMEOUT sets it, 5000 ms without it"),
    ("log.otlp.linger", "fixed at 500ms"),
    ("log.otlp.spans_max", "fixed at 8192"),
    ("log.otlp.batch_max", "fixed at 512"),
    ("log.otlp.metrics_interval", "OTEL_METRIC_EXPORT_INTERVAL sets it, 30000 ms without it; for no metrics, name a collector of traces only"),
    ("log.otlp.attributes", "OTEL_RESOURCE_ATTRIBUTES names them"),
    ("audit.interval", "a twelfth of audit.settle"),
    ("audit.takeover", "half of audit.settle"),
    ("embedded.engine.memtable_bytes", "fixed at 67108864"),
    ("embedded.engine.journal_bytes", "fixed at 268435456"),
    ("embedded.queue.tail_bytes", "fixed at 262144"),
    ("embedded.queue.poll_bytes", "fixed at 4194304"),
    ("embedded.queue.revoke_wait", "fixed at 30s"),
    ("embedded.queue.poll_interval_max", "fixed at 1m"),
    ("embedded.mailbox.dedupe_keep", "fixed at 1day"),
    ("embedded.mailbox.dedupe_max", "fixed at 1000000"),
    ("embedded.mailbox.page_bytes_max", "fixed at 1048576"),
    ("embedded.timeline.expire", "fixed at 7days"),
    ("embedded.timeline.page_bytes_max", "fixed at 1048576"),
    ("embedded.timeline.memory_bytes_max", "fixed at 67108864"),
    ("embedded.cache", "copies stay for 30 minutes, in 64 MiB"),
    ("cache", "copies stay for 30 minutes"),
    ("kafka.producer", "records wait for 500 us to share a request, in 64 MiB, and fail after 30 s"),
    ("kafka.request_timeout", "fixed at 10s"),
    ("kafka.retention.retry", "as kafka.retention.message"),
    ("kafka.retention.notification", "fixed at 3days"),
    ("kafka.consumer.heartbeat_interval", "fixed at 500ms"),
    ("kafka.consumer.poll_interval_max", "fixed at 1m"),
    ("kafka.consumer.fetch_wait", "fixed at 100ms"),
    ("kafka.consumer.prefetch_bytes", "fixed at 16777216"),
    ("kafka.consumer.poll_bytes", "fixed at 4194304"),
    ("kafka.consumer.pause_bytes", "fixed at 262144"),
    ("redis.connect_wait", "fixed at 1s"),
    ("redis.watch_interval", "fixed at 1s"),
    ("redis.in_flight_max", "fixed at 64"),
    ("redis.pipeline_max", "fixed at 128"),
    ("redis.dedupe_keep", "fixed at 1day"),
    ("redis.page_bytes_max", "fixed at 1048576"),
    ("timeline.expire", "fixed at 7days"),
    ("timeline.page_bytes_max", "fixed at 1048576"),
    ("timeline.memory_bytes_max", "fixed at 67108864"),
    ("etcd.list_every", "fixed at 45s"),
    ("etcd.attempt_deadline", "a third of etcd.call_deadline"),
    ("scylla.connect_timeout", "fixed at 10s"),
    ("scylla.schema_timeout", "fixed at 30s"),
    ("scylla.speculate_after", "fixed at 100ms"),
    ("scylla.retry_percent", "fixed at 10"),
    ("scylla.in_flight_max", "fixed at 2048"),
    ("scylla.call_in_flight_max", "fixed at 128"),
    ("boat.refusals_max", "fixed at 256"),
    ("boat.tls_timeout", "half of boat.arrival_timeout"),
    ("boat.arrivals_per_address_burst", "ten times boat.arrivals_per_address"),
    ("boat.sign_in_failures_per_address_burst", "three times boat.sign_in_failures_per_address"),
    ("boat.read_bytes_burst", "four times boat.read_bytes_per_second"),
    ("boat.upgrade_timeout", "half of boat.arrival_timeout"),
    ("boat.close_grace", "fixed at 2s"),
    ("boat.linger", "fixed at 200ms"),
    ("boat.receipts_linger", "fixed at 20ms"),
    ("boat.client_traces_per_second", "fixed at 100"),
    ("boat.lanes", "fixed at 4"),
    ("boat.lane_items_max", "fixed at 65536"),
    ("boat.lane_bytes_max", "fixed at 33554432"),
    ("boat.batch_items_max", "fixed at 1024"),
    ("boat.sign_in_calls_max", "fixed at 256"),
    ("boat.calls_max", "fixed at 1024"),
    ("boat.registry_timeout", "fixed at 5s"),
    ("boat.retry_pause", "fixed at 1s"),
    ("boat.sweep_pause_max", "fixed at 5s"),
    ("boat.presence_writes_per_second", "fixed at 5000"),
    ("boat.restore_spread", "fixed at 5s"),
    ("boat.fence", "fixed at 1m"),
    ("boat.pause_max", "fixed at 10s"),
    ("boat.drain_batch", "fixed at 256"),
    ("boat.drain_pace_cluster", "fixed at 10000"),
    ("boat.drain_spread", "fixed at 10s"),
    ("boat.reconnect_percent", "fixed at 10"),
    ("boat.accepts_per_second", "fixed at 2000 for each core, 5000 at most"),
    ("boat.session.handshake", "two thirds of boat.arrival_timeout"),
    ("boat.session.write_wait", "fixed at 20s"),
    ("boat.session.link_bytes_min", "fixed at 8192"),
    ("boat.session.frames_per_second", "fixed at 2000"),
    ("boat.session.body_bytes_max", "4 KiB less than boat.session.frame_bytes_max"),
    ("boat.session.send_window", "fixed at 64"),
    ("boat.session.submit_bytes_max", "fixed at 524288"),
    ("boat.session.held_max", "fixed at 256"),
    ("boat.session.push_window", "fixed at 256"),
    ("boat.session.push_window_bytes", "three times boat.session.frame_bytes_max"),
    ("boat.session.mail_page", "fixed at 64"),
    ("boat.session.mail_retry", "fixed at 1s"),
    ("boat.session.receipts_max", "fixed at 4096"),
    ("boat.session.refused_acks_per_minute", "fixed at 256"),
    ("boat.session.questions_max", "fixed at 8"),
    ("boat.session.outgoing_bytes_max", "four times boat.session.frame_bytes_max"),
    ("station.user_sign_ins_burst", "two thirds of station.user_sign_ins_per_minute"),
    ("station.user_sends_burst", "ten times station.user_sends_per_second"),
    ("station.bot_sends_burst", "five times station.bot_sends_per_second"),
    ("station.private_sends_burst", "eight times station.private_sends_per_second"),
    ("station.group_sends_burst", "ten times station.group_sends_per_second"),
    ("station.user_questions_burst", "four times station.user_questions_per_second"),
    ("station.user_history_reads_burst", "five times station.user_history_reads_per_second"),
    ("station.history_reads_max", "fixed at 512"),
    ("station.sends_in_flight_max", "fixed at 65536"),
    ("station.batch_items_max", "fixed at 4096"),
    ("station.dedupe_deadline", "a twentieth of station.publish_deadline"),
    ("station.members_deadline", "an eighth of station.publish_deadline"),
    ("station.timeline_deadline", "fixed at 200ms"),
    ("station.notice_deadline", "fixed at 1s"),
    ("station.reserve_ahead", "fixed at 10m"),
    ("station.page_max", "fixed at 100"),
    ("station.page_bytes_max", "fixed at 1048576"),
    ("station.list_margin", "fixed at 10s"),
    ("station.background_max", "fixed at 65536"),
    ("station.kickout_attempts", "fixed at 8"),
    ("station.auth.leeway", "fixed at 30s"),
    ("station.http.connections_max", "fixed at 4096"),
    ("station.http.connections_per_address_max", "fixed at 64, and 640 where many clients may share an address"),
    ("station.http.requests_per_address", "fixed at 10, and 100 where many clients may share an address"),
    ("station.http.requests_per_address_burst", "fixed at 20, and 200 where many clients may share an address"),
    ("carrier.poll_max", "fixed at 512"),
    ("carrier.retry_bytes_max", "fixed at 262144"),
    ("carrier.heads_max", "fixed at 100000"),
    ("carrier.platforms_max", "fixed at 100000"),
    ("carrier.platforms_keep", "fixed at 1s"),
    ("carrier.platform_known_for", "fixed at 90days"),
    ("carrier.list_margin", "fixed at 10s"),
    ("carrier.unsure_margin", "fixed at 1m"),
    ("carrier.store_timeout", "fixed at 5s"),
    ("carrier.write_time", "fixed at 5s"),
    ("carrier.backoff_min", "fixed at 50ms"),
    ("carrier.backoff_max", "fixed at 5s"),
    ("carrier.commit_interval", "fixed at 100ms"),
    ("carrier.in_flight_min", "fixed at 1024"),
    ("carrier.in_flight_max", "fixed at 16384"),
    ("carrier.users_in_flight_max", "fixed at 262144"),
    ("carrier.ack_latency_target", "fixed at 1s"),
    ("carrier.lane_window", "fixed at 64"),
    ("carrier.lane_max", "fixed at 512"),
    ("carrier.offline_after", "fixed at 3"),
    ("carrier.retry_max", "fixed at 6"),
    ("carrier.retry_held_max", "fixed at 4096"),
    ("carrier.retry_held_bytes_max", "fixed at 33554432"),
    ("carrier.push_batch_max", "fixed at 512"),
    ("carrier.notices_max", "fixed at 4096"),
    ("carrier.kickout_timeout", "fixed at 1s"),
    ("carrier.kickouts_max", "fixed at 1024"),
    ("carrier.lease_patience", "fixed at 2s"),
    ("carrier.probe_timeout", "fixed at 2s"),
    ("carrier.probe_interval", "fixed at 10s"),
    ("carrier.denied_max", "fixed at 1024"),
    ("horn.attempts_max", "fixed at 8"),
    ("horn.retry_delay", "fixed at 1s"),
    ("horn.retry_delay_max", "fixed at 1m"),
    ("horn.pending_bytes_max", "fixed at 16777216"),
    ("horn.collapse_max", "fixed at 65536"),
    ("horn.recorded_max", "fixed at 1024"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::schema::sections;

    #[test]
    fn no_removed_setting_is_a_setting() {
        for section in sections() {
            for key in &section.keys {
                let path = format!("{}.{}", section.path, key.name);
                assert!(
                    REMOVED.iter().all(|(removed, _)| *removed != path),
                    "{path}"
                );
            }
        }
    }
}
