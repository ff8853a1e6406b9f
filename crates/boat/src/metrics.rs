//! Metrics of a boat, by room. Handles are held: a lookup by name costs more than the count.

use metrics::{Counter, Gauge, counter, gauge};
use protocol::Code;
use protocol::session::Bound;

/// Metrics of the listeners.
pub(crate) struct DoorMetrics {
    pub(crate) connections_accepted: Counter,
    pub(crate) connections_dropped: Counter,
    pub(crate) origins_refused: Counter,
    pub(crate) accept_pauses: Counter,
    /// Sockets accepted later, at the limit of their rate.
    pub(crate) accept_waits: Counter,
    pub(crate) proxy_headers_refused: Counter,
    pub(crate) tls_handshakes_failed: Counter,
}

impl DoorMetrics {
    pub(crate) fn new() -> DoorMetrics {
        DoorMetrics {
            connections_accepted: counter!("boat_connections_accepted_total"),
            connections_dropped: counter!("boat_connections_dropped_total"),
            origins_refused: counter!("boat_origins_refused_total"),
            accept_pauses: counter!("boat_accept_pauses_total"),
            accept_waits: limit("arrivals"),
            proxy_headers_refused: counter!("boat_proxy_headers_refused_total"),
            tls_handshakes_failed: counter!("boat_tls_handshakes_failed_total"),
        }
    }
}

/// Metrics of connections and their loops.
pub(crate) struct ConnectionMetrics {
    pub(crate) outgoing_bytes: Gauge,
    /// Turns of the loops, and their system calls that moved bytes.
    pub(crate) turns: Counter,
    pub(crate) socket_reads: Counter,
    pub(crate) socket_writes: Counter,
    pub(crate) frames_in: Counter,
    pub(crate) frames_out: Counter,
    pub(crate) reads_paused: Counter,
    pub(crate) frames_too_large: Counter,
    bounds: [Counter; 4],
    connections: [Gauge; 2],
}

impl ConnectionMetrics {
    pub(crate) fn new() -> ConnectionMetrics {
        ConnectionMetrics {
            outgoing_bytes: gauge!("boat_outbound_queue_bytes"),
            turns: counter!("boat_connection_turns_total"),
            socket_reads: counter!("boat_socket_reads_total"),
            socket_writes: counter!("boat_socket_writes_total"),
            frames_in: counter!("boat_frames_received_total"),
            frames_out: counter!("boat_frames_sent_total"),
            reads_paused: limit("session_bytes"),
            frames_too_large: limit("frame_bytes"),
            bounds: [
                "session_frames",
                "body_bytes",
                "session_questions",
                "session_outgoing_bytes",
            ]
            .map(limit),
            connections: ["websocket", "tcp"]
                .map(|transport| gauge!("boat_connections", "transport" => transport)),
        }
    }

    /// Counter of sessions that reached this bound.
    pub(crate) fn bound(&self, bound: Bound) -> &Counter {
        &self.bounds[bound as usize]
    }

    /// Gauge of the connections with this framing.
    pub(crate) fn connections(&self, is_websocket: bool) -> &Gauge {
        &self.connections[usize::from(!is_websocket)]
    }

    /// Counts the end of a connection; `None`: the client went.
    pub(crate) fn record_disconnect(code: Option<Code>) {
        let code = code.map_or("client", Code::name);
        counter!("boat_disconnects_total", "code" => code).increment(1);
    }
}

/// Metrics of calls to stations.
pub(crate) struct UplinkMetrics {
    pub(crate) sends: Counter,
    pub(crate) lane_overflows: Counter,
    /// Sessions admitted while the mailbox was away.
    pub(crate) degraded_sign_ins: Counter,
}

impl UplinkMetrics {
    pub(crate) fn new() -> UplinkMetrics {
        UplinkMetrics {
            sends: counter!("boat_sends_total"),
            lane_overflows: counter!("boat_lane_overflows_total"),
            degraded_sign_ins: counter!("boat_sign_ins_degraded_total"),
        }
    }

    /// Counts a call retried at another station because its first one could not be reached.
    pub(crate) fn record_failover(call: &'static str) {
        counter!("boat_station_calls_elsewhere_total", "call" => call).increment(1);
    }

    /// Counts items that a station refused for good and nobody waits for.
    pub(crate) fn record_drop(call: &'static str, items: usize) {
        counter!("boat_lane_drops_total", "call" => call).increment(items as u64);
    }

    pub(crate) fn record_call(call: &'static str, result: &'static str) {
        counter!("boat_station_calls_total", "call" => call, "result" => result).increment(1);
    }
}

/// Metrics of the lease, and of sessions that are asserted anew.
pub(crate) struct MembershipMetrics {
    pub(crate) sessions_restored: Counter,
    pub(crate) sessions_known: Counter,
    pub(crate) sessions_displaced: Counter,
    pub(crate) sessions_replaced: Counter,
    /// Sessions that had to sign in again because no ticket proved them.
    pub(crate) sessions_unproved: Counter,
    pub(crate) leases_lost: Counter,
    pub(crate) pauses: Counter,
    pub(crate) losses: Counter,
}

impl MembershipMetrics {
    pub(crate) fn new() -> MembershipMetrics {
        let recover = |name: &'static str| counter!("boat_recover_total", "result" => name);
        MembershipMetrics {
            sessions_restored: recover("restored"),
            sessions_known: recover("known"),
            sessions_displaced: recover("displaced"),
            sessions_replaced: recover("replaced"),
            sessions_unproved: counter!("boat_sessions_unproved_total"),
            leases_lost: counter!("boat_leases_lost_total"),
            pauses: counter!("boat_pauses_total"),
            losses: counter!("boat_store_losses_total"),
        }
    }
}

fn limit(name: &'static str) -> Counter {
    counter!("limits_total", "limit" => name)
}
