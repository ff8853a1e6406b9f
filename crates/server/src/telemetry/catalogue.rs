//! Every metric: what Prometheus is told of it, and the reference page.

use metrics::{describe_counter, describe_gauge, describe_histogram};

use Kind::{Counter, Gauge, Histogram};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

const fn metric(kind: Kind, name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind, help }
}

/// By name.
#[rustfmt::skip]
const METRICS: &[Metric] = &[
    metric(Counter, "admin_sign_ins_total", "Requests to the desk with a token or a proxy's assertion, by result: accepted, refused or ignored; forbidden for somebody whom admin.assertion.roles gives nothing, unanswered while there are no keys to check with"),
    metric(Counter, "audit_contradictions_total", "Looks at a closed minute that found something else than when it was closed"),
    metric(Gauge, "audit_in_flight", "Messages of closed minutes that have no end yet and are carried"),
    metric(Gauge, "audit_lag_seconds", "Age of the newest closed minute"),
    metric(Counter, "audit_minutes_total", "Minutes that this process closed"),
    metric(Gauge, "audit_missing", "Messages of closed minutes that have no end and that no record carries"),
    metric(Counter, "boat_accept_pauses_total", "Pauses of accepting, because the system gave no socket"),
    metric(Counter, "boat_connection_turns_total", "Turns of the loops to a connection that had something: bytes, a push or a timer"),
    metric(Gauge, "boat_connections", "Sockets of clients, admitted or not, by transport"),
    metric(Counter, "boat_connections_accepted_total", "Sockets that were accepted"),
    metric(Counter, "boat_connections_dropped_total", "Sockets that were closed at once, as there was no place even to say why"),
    metric(Counter, "boat_deliveries_total", "Pushes to sessions, by outcome: done, no_ack, no_session or full"),
    metric(Counter, "boat_disconnects_total", "Ends of connections, by code; client: the client went"),
    metric(Gauge, "boat_drain_waits", "1 while clients have to go and no other boat has room for them"),
    metric(Counter, "boat_frames_received_total", "Frames that clients sent"),
    metric(Counter, "boat_frames_sent_total", "Frames that were sent to clients"),
    metric(Counter, "boat_lane_drops_total", "Items that a station refused for good and nobody waits for, by call"),
    metric(Counter, "boat_lane_overflows_total", "Items that found no room on their way to a station"),
    metric(Counter, "boat_leases_lost_total", "Leases of this boat that ended while it ran"),
    metric(Gauge, "boat_memory_bytes", "Memory of this process as its container counts it, where there is a ceiling"),
    metric(Gauge, "boat_memory_max_bytes", "Ceiling of this process's memory: from 80 % of it on newcomers go elsewhere"),
    metric(Counter, "boat_origins_refused_total", "WebSockets of pages whose origin may not connect"),
    metric(Gauge, "boat_outbound_queue_bytes", "Bytes that wait for clients to read them"),
    metric(Counter, "boat_pauses_total", "Times at which this process did not run for seconds"),
    metric(Counter, "boat_proxy_headers_refused_total", "Connections of balancers whose header was missing or wrong"),
    metric(Counter, "boat_recover_total", "Sessions that were asserted again after a loss, by result"),
    metric(Gauge, "boat_revocations_age_seconds", "Time since a station said last who was revoked"),
    metric(Counter, "boat_sends_total", "Messages that clients sent"),
    metric(Gauge, "boat_sessions", "Admitted sessions"),
    metric(Counter, "boat_sessions_revoked_total", "Sessions that ended because their token was revoked"),
    metric(Counter, "boat_sessions_unproved_total", "Sessions that had to sign in again, as their ticket proved nothing any more"),
    metric(Counter, "boat_sign_ins_degraded_total", "Sessions that were admitted while the mailbox was away"),
    metric(Counter, "boat_socket_reads_total", "Reads of sessions' sockets that gave bytes: system calls, to be set beside the frames"),
    metric(Counter, "boat_socket_writes_total", "Writes to sessions' sockets that took bytes: system calls, to be set beside the frames"),
    metric(Counter, "boat_station_calls_elsewhere_total", "Calls that were made once more at another station, by call"),
    metric(Counter, "boat_station_calls_total", "Calls to stations, by call and result"),
    metric(Counter, "boat_store_losses_total", "Losses of the mailbox that this boat noticed"),
    metric(Counter, "boat_tls_handshakes_failed_total", "TLS handshakes that failed or took too long"),
    metric(Histogram, "carrier_ack_latency_seconds", "Time from a push to the acknowledgement of its device"),
    metric(Counter, "carrier_boats_denied_total", "Lives of boats that count as ended, because discovery and the boat say nothing"),
    metric(Gauge, "carrier_bytes_in_flight", "Bytes of the frames of records that a shard works on, by shard"),
    metric(Counter, "carrier_cache_failures_total", "Copies of groups that were not renewed, because the cache did not answer"),
    metric(Counter, "carrier_dead_letters_total", "Messages that became dead letters, by reason"),
    metric(Counter, "carrier_deliveries_acked_total", "Deliveries that a device acknowledged"),
    metric(Counter, "carrier_deliveries_retried_total", "Deliveries that wait for another attempt in a retry topic"),
    metric(Counter, "carrier_deliveries_stored_total", "Deliveries that wait in the mailbox for an absent device"),
    metric(Gauge, "carrier_in_flight", "Records that a shard works on, by shard"),
    metric(Gauge, "carrier_in_flight_max", "Most records that a shard worked on at once, by shard"),
    metric(Counter, "carrier_kickouts_put_off_total", "Kickouts that had no room and went to a retry topic"),
    metric(Gauge, "carrier_lanes", "Lanes of deliveries that are open, by shard"),
    metric(Counter, "carrier_notices_dropped_total", "Notices for boats that found no room"),
    metric(Counter, "carrier_notifications_total", "Notifications that were asked for"),
    metric(Counter, "carrier_pushes_expired_total", "Pushes that waited too long for their boat"),
    metric(Counter, "carrier_pushes_failed_total", "Deliveries whose last attempt failed"),
    metric(Gauge, "carrier_pushes_open", "Pushes without an outcome, by shard"),
    metric(Counter, "carrier_records_given_up_total", "Records that could not be read and were put aside, by topic"),
    metric(Counter, "carrier_records_settled_total", "Records with an end for every receiver"),
    metric(Counter, "carrier_records_total", "Records that were read, by topic"),
    metric(Counter, "carrier_settle_failures_total", "Attempts to write down an end that log or ledger did not take"),
    metric(Gauge, "carrier_settling", "Ends that are being written down, by shard"),
    metric(Counter, "carrier_slow_writes_total", "Writes that stores did not finish within carrier.write_time"),
    metric(Counter, "carrier_stalls_total", "Writes that a store failed: the partitions of the records wait"),
    metric(Counter, "carrier_timeline_failures_total", "Writes to the newest messages of groups that failed"),
    metric(Gauge, "carrier_users_in_flight", "Users that records which a shard works on are owed to, by shard"),
    metric(Gauge, "cert_expiry_seconds", "Time until the first certificate of a listener ends, by listener: boat, desk, services for what services show each other, sign-in for what a station shows station.auth.remote, or a part that this process shows one to (kafka, redis, etcd, scylla)"),
    metric(Gauge, "desk_letters_open", "Dead letters that nobody has dealt with, by kind and reason"),
    metric(Gauge, "desk_oldest_open_seconds", "Age of the oldest dead letter that nobody has dealt with"),
    metric(Counter, "desk_panics_total", "Panics in the desk's background work, by work"),
    metric(Counter, "desk_redrives_total", "Letters of redrives, by outcome"),
    metric(Counter, "horn_notifications_total", "Notifications with an outcome, by provider and outcome"),
    metric(Gauge, "horn_pending_notifications", "Notifications without a recorded outcome"),
    metric(Counter, "horn_retries_total", "Attempts that failed and are made again"),
    metric(Histogram, "horn_send_seconds", "Time of a call to the provider"),
    metric(Counter, "limits_total", "Refusals, and where there are none waits, of what was too much, by limit"),
    metric(Counter, "log_lines_dropped_total", "Log lines that found no room, because nobody reads stderr"),
    metric(Counter, "log_lines_repeated_total", "Warnings that were left out of the log, because the same place had said twenty in five seconds"),
    metric(Counter, "otlp_spans_total", "Spans for the collector, by result"),
    metric(Gauge, "packetboat_build_info", "1, with version and service (or all) as labels"),
    metric(Gauge, "part_up", "Whether a part answered its last question, by part: 1 or 0"),
    metric(Counter, "process_cpu_seconds_total", "Processor time of this process, in user and system mode"),
    metric(Gauge, "process_max_fds", "Files that this process may open"),
    metric(Gauge, "process_open_fds", "Files that this process has open"),
    metric(Gauge, "process_resident_memory_bytes", "Memory of this process that is in RAM"),
    metric(Gauge, "process_start_time_seconds", "When this process started, in seconds since 1970"),
    metric(Gauge, "process_threads", "Threads of this process"),
    metric(Gauge, "process_virtual_memory_bytes", "Address space of this process"),
    metric(Counter, "queue_partitions_without_offset_total", "Partitions that a group found without a place of its own"),
    metric(Histogram, "station_accept_seconds", "Time from a send's arrival to its answer, by the part of a batch it was in"),
    metric(Counter, "station_background_dropped_total", "Work after an answer that found no room, by work"),
    metric(Counter, "station_connects_degraded_total", "Sign-ins that were admitted while the mailbox was away"),
    metric(Counter, "station_connects_total", "Sign-ins, by result"),
    metric(Counter, "station_copies_total", "Questions to the copies in Redis, by answer: found, missed or failed"),
    metric(Counter, "station_dedupe_skipped_total", "Sends that went on without a dedupe key, because the mailbox did not answer"),
    metric(Counter, "station_dedupe_unresolved_total", "Batches of dedupe keys that stay pending, because the mailbox did not answer"),
    metric(Counter, "station_devices_forgotten_total", "Platforms that could not be remembered at sign-in"),
    metric(Counter, "station_edge_requests_total", "Requests for addresses of boats, by result: listed, unknown where discovery has been away for a minute, refused for their rate or a balancer's header"),
    metric(Counter, "station_id_reservations_failed_total", "Attempts to reserve message ids that failed"),
    metric(Counter, "station_id_reservations_uncopied_total", "Reservations of message ids without their copy in the store"),
    metric(Counter, "station_ids_refused_total", "Message ids that could not be made: their sends are refused"),
    metric(Counter, "station_installation_differs_total", "Looks at which discovery and store had two installation numbers"),
    metric(Counter, "station_installation_restored_total", "Installation numbers that were put back where one was missing"),
    metric(Gauge, "station_jwks_age_seconds", "Age of the last good set of keys from a URL, by issuer, that of admin.assertion included; time since the start where none came"),
    metric(Counter, "station_kickouts_given_up_total", "Kickouts that could not be published"),
    metric(Counter, "station_kickouts_published_total", "Kickouts that were published"),
    metric(Counter, "station_last_received_total", "Places of devices, by result: written or dropped"),
    metric(Counter, "station_ledger_lost_total", "Ends of mail of which the ledger did not hear"),
    metric(Counter, "station_mail_expired_total", "Mail that was too old when its device came"),
    metric(Counter, "station_mail_lost_total", "Mail that the box named and no longer had"),
    metric(Counter, "station_members_unasked_total", "Sends to groups that were let in unasked, because the store did not answer"),
    metric(Counter, "station_node_numbers_lost_total", "Node numbers for message ids that this station lost"),
    metric(Counter, "station_pages_total", "Pages of history, by where they came from: memory or stores"),
    metric(Counter, "station_receipt_pushes_total", "Pushes of receipts, by result: sent; repeated, after a failure; failed, for good or to a session that had ended"),
    metric(Counter, "station_receipts_total", "Receipts, by result"),
    metric(Counter, "station_remote_sign_ins_total", "Sign-ins that were for station.auth.remote, by result: accepted or refused by it; unanswered, for an error or silence; malformed, for an answer that cannot be; busy, beyond 256 that wait; broken, while it is left alone after failures"),
    metric(Gauge, "station_revocations", "Users whose tokens were revoked and may not have ended"),
    metric(Gauge, "station_revocations_age_seconds", "Time since revocations were read last: from a minute on a revoked token may be let in"),
    metric(Counter, "station_revocations_dropped_total", "Revocations that a station had no room for"),
    metric(Counter, "station_route_lookups_total", "Questions for a user's sessions, by result"),
    metric(Counter, "station_sends_to_partitions_away_total", "Sends that were refused at once, because their partition was away"),
    metric(Counter, "station_sends_total", "Sends, by result: accepted, or the code of the refusal"),
    metric(Counter, "station_sessions_displaced_total", "Sessions that another sign-in of the platform ended"),
    metric(Counter, "station_sessions_replaced_total", "Sessions that the same device replaced"),
    metric(Counter, "station_sessions_resumed_total", "Sign-ins with the ticket of a boat that left, in place of a token"),
    metric(Counter, "station_store_failures_total", "Answers of stores that were failures or late, by seam"),
    metric(Counter, "station_ticket_keys_reloads_total", "Keys of session tickets that changed in their file, by result: reloaded or refused"),
    metric(Counter, "station_tickets_refused_total", "Tickets of sessions that were refused, by reason: forged, expired, missing or unknown_key"),
    metric(Counter, "station_token_key_reloads_total", "Keys of tokens that changed in their files or at their URL, by issuer and result: reloaded or refused; unanswered where a URL gave none"),
    metric(Counter, "station_tokens_refreshed_total", "New tokens of sessions that live, by result: refreshed, or the code of the refusal"),
    metric(Counter, "station_tokens_revoked_total", "Sign-ins with a token that was revoked"),
    metric(Counter, "tls_reloads_total", "Certificates and passwords that changed in their files, by result: reloaded or refused"),
];

/// Gives the recorder a line on each.
pub(super) fn describe() {
    for Metric { name, kind, help } in METRICS {
        match kind {
            Counter => describe_counter!(*name, *help),
            Gauge => describe_gauge!(*name, *help),
            Histogram => describe_histogram!(*name, *help),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::{Path, PathBuf};

    use super::*;

    const PAGE_HEAD: &str = "# Metrics

<!-- Written by the program from its table: make settings -->

`GET /metrics` of the health port says all of these in the text format of Prometheus, as far as the process has something to count.
[Which are worth an alarm](running.md#health).

| metric | kind | |
| --- | --- | --- |
";

    fn page() -> String {
        let mut page = PAGE_HEAD.to_owned();
        for Metric { name, kind, help } in METRICS {
            let kind = format!("{kind:?}").to_lowercase();
            let _ = writeln!(page, "| `{name}` | {kind} | {help} |");
        }
        page
    }

    #[test]
    fn the_table_is_in_order_and_its_names_say_what_they_are() {
        assert!(METRICS.is_sorted_by(|one, two| one.name < two.name));
        for Metric { name, kind, .. } in METRICS {
            assert_eq!(name.ends_with("_total"), *kind == Counter, "{name}");
        }
    }

    #[test]
    fn the_page_of_metrics_is_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations/metrics.md");
        if std::env::var_os("PACKETBOAT_TEST_WRITE").is_some() {
            std::fs::write(&path, page()).expect("written");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == page(),
            "docs/operations/metrics.md is old: make settings"
        );
    }

    fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("readable").path();
            match path.extension() {
                _ if path.is_dir() => sources(&path, into),
                Some(extension) if extension == "rs" => into.push(path),
                _ => {}
            }
        }
    }

    /// A metric that is counted without a line in the table fails here, and before it reaches a scrape.
    #[test]
    fn every_metric_of_the_sources_stands_in_the_table() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        sources(&crates, &mut files);
        let mut found = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).expect("text");
            let own = text.split("#[cfg(test)]").next().unwrap_or_default();
            for kind in ["counter!(\"", "gauge!(\"", "histogram!(\""] {
                for rest in own.split(kind).skip(1) {
                    let name = rest.split('"').next().unwrap_or_default();
                    let is_listed = METRICS.iter().any(|metric| metric.name == name);
                    assert!(is_listed, "{name} in {} has no line", file.display());
                    found += 1;
                }
            }
        }
        assert!(found > 80, "{found} is not all");
    }
}
