// Facts and charts of each service on the overview, and their format.

import { amount, bytes, seconds } from '../amount';
import type { MeasureName } from '../metrics/measures';
import { length } from '../when';

export interface Fact {
  name: string;
  measure: MeasureName;
  told?: (value: number) => string;
  unit?: string;
  /** True if any value above zero needs attention. */
  alarming?: boolean;
  /** Measure of its upper bound. */
  of?: MeasureName;
}

export interface Picture {
  name: string;
  told?: (value: number) => string;
  lines: { name: string; measure: MeasureName; tone: '1' | '2' | '3' | 'bad' }[];
}

export interface Service {
  name: string;
  does: string;
  /** Prefix of its metrics. */
  prefix: string;
  /** True if it is no service of its own: a process without it does not list it as missing. */
  optional?: boolean;
  facts: Fact[];
  pictures: Picture[];
}

const PER_SECOND = '/s';

export const SERVICES: Service[] = [
  {
    name: 'Boat',
    does: 'holds client connections',
    prefix: 'boat_',
    facts: [
      { name: 'WebSocket connections', measure: 'websockets' },
      { name: 'TCP connections', measure: 'tcp' },
      { name: 'Sessions', measure: 'sessions' },
      { name: 'Frames in', measure: 'framesIn', unit: PER_SECOND },
      { name: 'Frames out', measure: 'framesOut', unit: PER_SECOND },
      { name: 'Outbound queue', measure: 'outgoing', told: bytes },
      { name: 'Disconnects', measure: 'disconnects', unit: PER_SECOND },
    ],
    pictures: [
      { name: 'Connections', lines: [{ name: 'open', measure: 'connections', tone: '1' }] },
      {
        name: 'Deliveries to devices, per second',
        lines: [
          { name: 'acknowledged', measure: 'pushed', tone: '1' },
          { name: 'not acknowledged', measure: 'unacked', tone: 'bad' },
        ],
      },
    ],
  },
  {
    name: 'Station',
    does: 'admits sessions and accepts messages',
    prefix: 'station_',
    facts: [
      { name: 'Accepted', measure: 'accepted', unit: PER_SECOND },
      { name: 'Refused', measure: 'refused', unit: PER_SECOND },
      { name: 'Accept latency, median', measure: 'acceptHalf', told: seconds },
      { name: 'Accept latency, p99', measure: 'acceptMost', told: seconds },
      { name: 'Sign-ins', measure: 'connects', unit: PER_SECOND },
      { name: 'Route lookups', measure: 'lookups', unit: PER_SECOND },
      { name: 'Store failures', measure: 'storeFailures', alarming: true },
    ],
    pictures: [
      {
        name: 'Sends, per second',
        lines: [
          { name: 'accepted', measure: 'accepted', tone: '1' },
          { name: 'refused', measure: 'refused', tone: 'bad' },
        ],
      },
      {
        name: 'Accept latency',
        told: seconds,
        lines: [
          { name: 'median', measure: 'acceptHalf', tone: '1' },
          { name: 'p99', measure: 'acceptMost', tone: '2' },
        ],
      },
    ],
  },
  {
    name: 'Carrier',
    does: 'places and delivers accepted messages',
    prefix: 'carrier_',
    facts: [
      { name: 'In flight', measure: 'inFlight', of: 'inFlightMax' },
      { name: 'Open pushes', measure: 'pushesOpen' },
      { name: 'Settled', measure: 'settled', unit: PER_SECOND },
      { name: 'Retried', measure: 'retried', unit: PER_SECOND },
      { name: 'Ack latency, median', measure: 'ackHalf', told: seconds },
      { name: 'Stalls', measure: 'stalls', alarming: true },
      { name: 'Dead letters', measure: 'deadMessages', alarming: true },
    ],
    pictures: [
      {
        name: 'Deliveries, per second',
        lines: [
          { name: 'acknowledged', measure: 'acked', tone: '1' },
          { name: 'stored offline', measure: 'storedOffline', tone: '2' },
          { name: 'retried', measure: 'retried', tone: 'bad' },
        ],
      },
      { name: 'Records in flight', lines: [{ name: 'in flight', measure: 'inFlight', tone: '1' }] },
    ],
  },
  {
    name: 'Horn',
    does: 'notifies users who are offline',
    prefix: 'horn_',
    facts: [
      { name: 'Sent', measure: 'told', unit: PER_SECOND },
      { name: 'Pending', measure: 'pending' },
      { name: 'Retries', measure: 'hornRetries', unit: PER_SECOND },
      { name: 'Provider latency, p99', measure: 'tellMost', told: seconds },
      { name: 'Dead letters', measure: 'deadNotifications', alarming: true },
    ],
    pictures: [
      { name: 'Notifications, per second', lines: [{ name: 'sent', measure: 'told', tone: '1' }] },
      { name: 'Pending', lines: [{ name: 'pending', measure: 'pending', tone: '1' }] },
    ],
  },
  {
    name: 'Audit',
    does: 'closes minutes if audit.continuous is set; only the active process reports',
    prefix: 'audit_',
    optional: true,
    facts: [
      { name: 'Lag', measure: 'auditLag', told: lag },
      { name: 'Minutes closed', measure: 'auditMinutes' },
      { name: 'In flight', measure: 'auditInFlight' },
      { name: 'Missing', measure: 'auditMissing', alarming: true },
      { name: 'Contradictions', measure: 'contradictions', alarming: true },
    ],
    pictures: [
      { name: 'Lag', told: whole, lines: [{ name: 'lag', measure: 'auditLag', tone: '1' }] },
      {
        name: 'Messages of closed minutes',
        lines: [
          { name: 'in flight', measure: 'auditInFlight', tone: '1' },
          { name: 'missing', measure: 'auditMissing', tone: 'bad' },
        ],
      },
    ],
  },
];

/** Lag in seconds; unknown until the first minute is closed. */
function lag(value: number): string {
  return value === 0 ? '–' : whole(value);
}

function whole(value: number): string {
  return length(Math.round(value));
}

export const TILES: Fact[] = [
  { name: 'Accepted', measure: 'accepted', unit: PER_SECOND },
  { name: 'Delivered or stored', measure: 'delivered', unit: PER_SECOND },
  { name: 'In flight', measure: 'inFlight' },
  { name: 'Connections', measure: 'connections' },
];

export function written(fact: Fact, value: number | null): string {
  if (value === null) return '–';
  return `${(fact.told ?? amount)(value)}${fact.unit ?? ''}`;
}
