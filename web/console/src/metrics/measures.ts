// Measures of the overview, by the names of the services' metrics.

import { quantile, rate, type Labels, type Scrape } from './scrape';

/** Scrapes that a measure compares. */
export interface Moments {
  now: Scrape;
  /** Scrape before `now`. */
  before?: Scrape | undefined;
  /** Scrape half a minute before: rare events need a longer window. */
  lately?: Scrape | undefined;
}

type Measure = (moments: Moments) => number | null;

const gauge =
  (name: string, labels: Labels = {}): Measure =>
  ({ now }) =>
    now.sum(name, labels) ?? never(now, name);

const speed =
  (name: string, labels: Labels = {}): Measure =>
  ({ before, now }) =>
    now.sum(name, labels) === null ? never(now, name) : rate(before, now, name, labels);

/** Value of an absent metric: 0 if its service runs here, as some counters appear with the first event. */
function never(now: Scrape, name: string): 0 | null {
  return now.tellsOf(name.slice(0, name.indexOf('_') + 1)) ? 0 : null;
}

const share =
  (part: number, name: string): Measure =>
  ({ lately, now }) =>
    quantile(part, lately, now, name);

/** Results of refused sends. */
function refusals(now: Scrape): string[] {
  const results = now.by('station_sends_total', 'result').map(([result]) => result);
  return results.filter((result) => result !== 'accepted');
}

/** Sum of the known measures; `null` if none is known. */
function both(...measures: Measure[]): Measure {
  return (moments) => {
    const known = measures.map((measure) => measure(moments)).filter((value) => value !== null);
    return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0);
  };
}

export const MEASURES = {
  websockets: gauge('boat_connections', { transport: 'websocket' }),
  tcp: gauge('boat_connections', { transport: 'tcp' }),
  connections: gauge('boat_connections'),
  sessions: gauge('boat_sessions'),
  framesIn: speed('boat_frames_received_total'),
  framesOut: speed('boat_frames_sent_total'),
  outgoing: gauge('boat_outbound_queue_bytes'),
  disconnects: speed('boat_disconnects_total'),
  pushed: speed('boat_deliveries_total', { outcome: 'done' }),
  unacked: speed('boat_deliveries_total', { outcome: ['no_ack', 'no_session', 'full'] }),

  accepted: speed('station_sends_total', { result: 'accepted' }),
  refused: ({ before, now }) => rate(before, now, 'station_sends_total', { result: refusals(now) }),
  acceptHalf: share(0.5, 'station_accept_seconds'),
  acceptMost: share(0.99, 'station_accept_seconds'),
  connects: speed('station_connects_total', { result: 'admitted' }),
  lookups: speed('station_route_lookups_total'),
  storeFailures: gauge('station_store_failures_total'),

  inFlight: gauge('carrier_in_flight'),
  inFlightMax: gauge('carrier_in_flight_max'),
  pushesOpen: gauge('carrier_pushes_open'),
  settled: speed('carrier_records_settled_total'),
  acked: speed('carrier_deliveries_acked_total'),
  storedOffline: speed('carrier_deliveries_stored_total'),
  retried: speed('carrier_deliveries_retried_total'),
  ackHalf: share(0.5, 'carrier_ack_latency_seconds'),
  ackMost: share(0.99, 'carrier_ack_latency_seconds'),
  delivered: both(speed('carrier_deliveries_acked_total'), speed('carrier_deliveries_stored_total')),
  deadMessages: gauge('carrier_dead_letters_total'),
  deadNotifications: gauge('horn_notifications_total', { outcome: 'dead' }),
  dead: both(gauge('carrier_dead_letters_total'), gauge('horn_notifications_total', { outcome: 'dead' })),
  stalls: gauge('carrier_stalls_total'),

  auditLag: gauge('audit_lag_seconds'),
  auditMissing: gauge('audit_missing'),
  auditInFlight: gauge('audit_in_flight'),
  auditMinutes: gauge('audit_minutes_total'),
  contradictions: gauge('audit_contradictions_total'),

  told: speed('horn_notifications_total', { outcome: 'sent' }),
  hornRetries: speed('horn_retries_total'),
  pending: gauge('horn_pending_notifications'),
  tellMost: share(0.99, 'horn_send_seconds'),
} satisfies Record<string, Measure>;

export type MeasureName = keyof typeof MEASURES;

export const MEASURE_NAMES = Object.keys(MEASURES) as MeasureName[];
