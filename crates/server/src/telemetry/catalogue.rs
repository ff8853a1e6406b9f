//! Every metric: its help text for Prometheus, and the reference page.

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

/// Metrics, by name.
#[rustfmt::skip]
const METRICS: &[Metric] = &[
    metric(Counter, "admin_sign_ins_total", "Requests to the desk with a token or a proxy's assertion, by result: accepted, refused, ignored, forbidden (admin.assertion.roles grants nothing) or unanswered (no keys to check with yet)"),
    metric(Counter, "audit_contradictions_total", "Entries of the ledger that exclude each other, such as two messages at one position"),
    metric(Gauge, "audit_in_flight", "Messages of closed minutes that are still in flight"),
    metric(Gauge, "audit_lag_seconds", "Age of the newest closed minute"),
    metric(Counter, "audit_minutes_total", "Minutes closed by this process"),
    metric(Gauge, "audit_missing", "Messages of closed minutes that are neither settled nor in flight"),
    metric(Counter, "boat_accept_pauses_total", "Pauses in accepting, because the system gave no socket"),
    metric(Counter, "boat_connection_turns_total", "Loop turns for a connection that had work: bytes, a push or a timer"),
    metric(Gauge, "boat_connections", "Client sockets, admitted or not, by transport"),
    metric(Counter, "boat_connections_accepted_total", "Accepted sockets"),
    metric(Counter, "boat_connections_dropped_total", "Sockets closed at once, without room for a refusal"),
    metric(Counter, "boat_deliveries_total", "Pushes to sessions, by outcome: done, no_ack, no_session or full"),
    metric(Counter, "boat_disconnects_total", "Ended connections, by code; client: the client left"),
    metric(Gauge, "boat_drain_waits", "1 while clients have to leave and no other boat has room for them"),
    metric(Counter, "boat_frames_received_total", "Frames from clients"),
    metric(Counter, "boat_frames_sent_total", "Frames to clients"),
    metric(Counter, "boat_lane_drops_total", "Items dropped from the queues to stations because a station refused them permanently, by call"),
    metric(Counter, "boat_lane_overflows_total", "Items that found a full queue to the stations"),
    metric(Counter, "boat_leases_lost_total", "Leases of this boat lost while it ran"),
    metric(Gauge, "boat_memory_bytes", "Memory of this process as its container counts it, if there is a limit"),
    metric(Gauge, "boat_memory_max_bytes", "Memory limit of this process; from 80 % of it newcomers are sent elsewhere"),
    metric(Counter, "boat_origins_refused_total", "WebSockets refused for the origin of their page"),
    metric(Gauge, "boat_outbound_queue_bytes", "Bytes waiting for clients to read them"),
    metric(Counter, "boat_pauses_total", "Pauses longer than 10 s in which this process did not run"),
    metric(Counter, "boat_proxy_headers_refused_total", "Connections from balancers with a missing or wrong header"),
    metric(Counter, "boat_recover_total", "Sessions asserted again, by result"),
    metric(Gauge, "boat_revocations_age_seconds", "Time since the last list of revocations from a station"),
    metric(Counter, "boat_sends_total", "Messages from clients"),
    metric(Gauge, "boat_sessions", "Admitted sessions"),
    metric(Counter, "boat_sessions_revoked_total", "Sessions ended because their token was revoked"),
    metric(Counter, "boat_sessions_unproved_total", "Sessions that had to sign in again because their ticket was no longer proof"),
    metric(Counter, "boat_sign_ins_degraded_total", "Sessions admitted while the mailbox was unavailable"),
    metric(Counter, "boat_socket_reads_total", "System calls that read bytes from sessions' sockets, for comparison with the frames"),
    metric(Counter, "boat_socket_writes_total", "System calls that wrote bytes to sessions' sockets, for comparison with the frames"),
    metric(Counter, "boat_station_calls_elsewhere_total", "Calls repeated at another station, by call"),
    metric(Counter, "boat_station_calls_total", "Calls to stations, by call and result"),
    metric(Counter, "boat_store_losses_total", "Losses in the mailbox noticed by this boat"),
    metric(Counter, "boat_tls_handshakes_failed_total", "TLS handshakes that failed or took too long"),
    metric(Histogram, "carrier_ack_latency_seconds", "Time from a push to its acknowledgement by the device"),
    metric(Counter, "carrier_boats_denied_total", "Lives of boats that count as ended: no lease in discovery and no answer from the boat"),
    metric(Gauge, "carrier_bytes_in_flight", "Bytes of the frames of records in flight, by shard"),
    metric(Counter, "carrier_cache_failures_total", "Copies of groups not renewed because the cache did not answer"),
    metric(Counter, "carrier_dead_letters_total", "Messages that became dead letters, by reason"),
    metric(Counter, "carrier_deliveries_acked_total", "Deliveries acknowledged by a device"),
    metric(Counter, "carrier_deliveries_retried_total", "Deliveries sent to a retry topic for another attempt"),
    metric(Counter, "carrier_deliveries_stored_total", "Deliveries stored in the mailbox for an absent device"),
    metric(Gauge, "carrier_in_flight", "Records in flight, by shard"),
    metric(Gauge, "carrier_in_flight_max", "Present limit of records in flight, by shard"),
    metric(Counter, "carrier_kickouts_put_off_total", "Kickouts deferred to a retry topic for lack of room"),
    metric(Gauge, "carrier_lanes", "Open lanes of deliveries, by shard"),
    metric(Counter, "carrier_notices_dropped_total", "Notices for boats dropped for lack of room"),
    metric(Counter, "carrier_notifications_total", "Requested notifications"),
    metric(Counter, "carrier_pushes_expired_total", "Pushes that waited too long for their boat"),
    metric(Counter, "carrier_pushes_failed_total", "Deliveries whose last attempt failed"),
    metric(Gauge, "carrier_pushes_open", "Pushes without an outcome yet, by shard"),
    metric(Counter, "carrier_records_given_up_total", "Records given up because the log refused \
                                                       them permanently, by topic"),
    metric(Counter, "carrier_records_settled_total", "Records with an end for every recipient"),
    metric(Counter, "carrier_records_total", "Records read, by topic"),
    metric(Counter, "carrier_settle_failures_total", "Failed attempts to write an end to log or ledger"),
    metric(Gauge, "carrier_settling", "Ends being written, by shard"),
    metric(Counter, "carrier_slow_writes_total", "Writes to stores not finished within 5 s"),
    metric(Counter, "carrier_stalls_total", "Writes failed by a store: the partitions of their records wait"),
    metric(Counter, "carrier_timeline_failures_total", "Failed writes to the newest messages of groups"),
    metric(Gauge, "carrier_users_in_flight", "Users owed records in flight, by shard"),
    metric(Gauge, "cert_expiry_seconds", "Time until the first certificate of a listener expires, by listener: boat, desk, services (shown between services), sign-in (shown to station.auth.remote), or a part to which this process shows one (kafka, redis, etcd, scylla)"),
    metric(Gauge, "desk_letters_open", "Open dead letters, which no operator has dealt with, by kind and reason"),
    metric(Gauge, "desk_oldest_open_seconds", "Age of the oldest open dead letter"),
    metric(Counter, "desk_panics_total", "Panics in the desk's background work, by work"),
    metric(Counter, "desk_redrives_total", "Redriven letters, by outcome"),
    metric(Counter, "horn_notifications_total", "Notifications with an outcome, by provider and outcome"),
    metric(Gauge, "horn_pending_notifications", "Notifications without a recorded outcome"),
    metric(Counter, "horn_retries_total", "Failed attempts that are repeated"),
    metric(Histogram, "horn_send_seconds", "Duration of a call to the provider"),
    metric(Counter, "limits_total", "Refusals by limit, or waits for limits that refuse nothing"),
    metric(Counter, "log_lines_dropped_total", "Log lines dropped because stderr is not being read"),
    metric(Counter, "log_lines_repeated_total", "Warnings suppressed because the same place had \
                                                 logged twenty in five seconds"),
    metric(Counter, "otlp_spans_total", "Spans for the collector, by result"),
    metric(Gauge, "packetboat_build_info", "1, with version and service (or all) as labels"),
    metric(Gauge, "part_up", "1 if a part answered its last call, 0 if not, by part"),
    metric(Counter, "process_cpu_seconds_total", "Processor time of this process, in user and system mode"),
    metric(Gauge, "process_max_fds", "Maximum number of files that this process may open"),
    metric(Gauge, "process_open_fds", "Files open in this process"),
    metric(Gauge, "process_resident_memory_bytes", "Resident memory of this process"),
    metric(Gauge, "process_start_time_seconds", "Start time of this process, in seconds since 1970"),
    metric(Gauge, "process_threads", "Threads of this process"),
    metric(Gauge, "process_virtual_memory_bytes", "Address space of this process"),
    metric(Counter, "queue_partitions_without_offset_total", "Partitions assigned to a group that had no offset for them, after their log had lost its beginning"),
    metric(Histogram, "station_accept_seconds", "Time from a send's arrival to its answer, measured over its part of a batch"),
    metric(Counter, "station_background_dropped_total", "Work after an answer dropped for lack of room, by work"),
    metric(Counter, "station_connects_degraded_total", "Sign-ins admitted while the mailbox was unavailable"),
    metric(Counter, "station_connects_total", "Sign-ins, by result"),
    metric(Counter, "station_copies_total", "Lookups in the cache of conversation lists in Redis, by answer: found, missed or failed"),
    metric(Counter, "station_dedupe_skipped_total", "Sends that went on without a dedupe key because the mailbox did not answer"),
    metric(Counter, "station_dedupe_unresolved_total", "Batches of dedupe keys left pending because the mailbox did not answer"),
    metric(Counter, "station_devices_forgotten_total", "Platforms that could not be recorded at sign-in"),
    metric(Counter, "station_edge_requests_total", "Requests for addresses of boats, by result: listed, unknown (discovery away for a minute) or refused (for their rate or a balancer's header)"),
    metric(Counter, "station_id_reservations_failed_total", "Failed attempts to reserve message ids"),
    metric(Counter, "station_id_reservations_uncopied_total", "Reservations of message ids without their copy in the store"),
    metric(Gauge, "station_ids_ahead_seconds", "Lead of the last message id over the station's clock: more than 1 s after the clock was set back"),
    metric(Counter, "station_ids_refused_total", "Message ids that could not be created; their sends are refused"),
    metric(Counter, "station_installation_differs_total", "Checks in which discovery and store had different installation numbers"),
    metric(Counter, "station_installation_restored_total", "Installation numbers restored where one was missing"),
    metric(Gauge, "station_jwks_age_seconds", "Age of the last good key set from a URL, by issuer, including that of admin.assertion; time since the start if none has come"),
    metric(Counter, "station_kickouts_given_up_total", "Kickouts that could not be published"),
    metric(Counter, "station_kickouts_published_total", "Published kickouts"),
    metric(Counter, "station_last_received_total", "Last-received registers of users, by result: written or dropped"),
    metric(Counter, "station_ledger_lost_total", "Ends of mail that the ledger did not get"),
    metric(Counter, "station_mail_expired_total", "Mail that was too old when its device came"),
    metric(Counter, "station_mail_lost_total", "Mail in the index of a mailbox without a body"),
    metric(Counter, "station_members_unasked_total", "Group sends accepted without a membership \
                                                      check because the store did not answer"),
    metric(Counter, "station_node_numbers_lost_total", "Node numbers for message ids lost by this station"),
    metric(Counter, "station_pages_total", "Pages of history, by source: memory or stores"),
    metric(Counter, "station_receipt_pushes_total", "Pushes of receipts, by result: sent, repeated (after a failure) or failed (for good, or to a session that had ended)"),
    metric(Counter, "station_receipts_total", "Receipts, by result"),
    metric(Counter, "station_remote_sign_ins_total", "Sign-ins for station.auth.remote, by result: accepted, refused, unanswered (an error or silence), malformed (an impossible answer), busy (beyond 256 that wait) or broken (the service is left alone after failures)"),
    metric(Gauge, "station_revocations", "Users with revoked tokens that may not have expired yet"),
    metric(Gauge, "station_revocations_age_seconds", "Time since the last read of revocations; \
                                                      beyond a minute, revoked tokens may be \
                                                      accepted"),
    metric(Counter, "station_revocations_dropped_total", "Revocations dropped by a station for lack of room"),
    metric(Counter, "station_route_lookups_total", "Lookups of a user's sessions, by result"),
    metric(Counter, "station_sends_to_partitions_away_total", "Sends refused at once because their partition was unavailable"),
    metric(Counter, "station_sends_total", "Sends, by result: accepted, or the code of the refusal"),
    metric(Counter, "station_sessions_displaced_total", "Sessions ended by another sign-in on their platform"),
    metric(Counter, "station_sessions_replaced_total", "Sessions replaced by the same device"),
    metric(Counter, "station_sessions_resumed_total", "Sign-ins with the ticket of a boat that left, in place of a token"),
    metric(Counter, "station_store_failures_total", "Failed or late answers of stores, by seam"),
    metric(Counter, "station_ticket_keys_reloads_total", "Reloads of changed session ticket keys, by result: reloaded or refused"),
    metric(Counter, "station_tickets_refused_total", "Refused session tickets, by reason: forged, expired, missing or unknown_key"),
    metric(Counter, "station_token_key_reloads_total", "Reloads of changed token keys from files or a URL, by issuer and result: reloaded, refused or unanswered (a URL gave none)"),
    metric(Counter, "station_tokens_refreshed_total", "New tokens of live sessions, by result: refreshed, or the code of the refusal"),
    metric(Counter, "station_tokens_revoked_total", "Sign-ins with a revoked token"),
    metric(Counter, "tls_reloads_total", "Reloads of changed certificates and passwords, by result: reloaded or refused"),
];

/// Gives the recorder the help text of each metric.
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

`GET /metrics` of the health port says all of these in the text format of Prometheus, as far as the process has
something to count. [Which are worth an alarm](running.md#metrics-worth-an-alarm).

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
        let contents = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            contents == page(),
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

    /// A metric without a line in the table fails here, before it reaches a scrape.
    #[test]
    fn every_metric_of_the_sources_stands_in_the_table() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        sources(&crates, &mut files);
        let mut name_count = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).expect("text");
            let own = text.split("#[cfg(test)]").next().unwrap_or_default();
            for kind in ["counter!(\"", "gauge!(\"", "histogram!(\""] {
                for rest in own.split(kind).skip(1) {
                    let name = rest.split('"').next().unwrap_or_default();
                    let is_listed = METRICS.iter().any(|metric| metric.name == name);
                    assert!(is_listed, "{name} in {} has no line", file.display());
                    name_count += 1;
                }
            }
        }
        assert!(name_count > 80, "{name_count} is not all");
    }
}
