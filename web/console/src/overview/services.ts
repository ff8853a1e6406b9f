// What the overview shows of each service, and how it is written.

import { amount, bytes, seconds } from '../amount';
import type { MeasureName } from '../metrics/measures';
import { length } from '../when';

export interface Fact {
  name: string;
  measure: MeasureName;
  told?: (value: number) => string;
  unit?: string;
  /** More than none of it is worth a look. */
  alarming?: boolean;
  /** The measure that bounds it. */
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
  /** What its metrics begin with. */
  prefix: string;
  /** It is no role of its own: where it is not, nothing is said of it. */
  optional?: boolean;
  facts: Fact[];
  pictures: Picture[];
}

const PER_SECOND = '/s';

export const SERVICES: Service[] = [
  {
    name: 'Boat',
    does: 'holds the connections of clients',
    prefix: 'boat_',
    facts: [
      { name: 'WebSocket connections', measure: 'websockets' },
      { name: 'TCP connections', measure: 'tcp' },
      { name: 'Sessions', measure: 'sessions' },
      { name: 'Frames in', measure: 'framesIn', unit: PER_SECOND },
      { name: 'Frames out', measure: 'framesOut', unit: PER_SECOND },
      { name: 'Waiting to go out', measure: 'outgoing', told: bytes },
      { name: 'Disconnects', measure: 'disconnects', unit: PER_SECOND },
    ],
    pictures: [
      { name: 'Connections', lines: [{ name: 'open', measure: 'connections', tone: '1' }] },
      {
        name: 'Deliveries to devices, per second',
        lines: [
          { name: 'acknowledged', measure: 'pushed', tone: '1' },
          { name: 'not', measure: 'unacked', tone: 'bad' },
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
      { name: 'Accept time, median', measure: 'acceptHalf', told: seconds },
      { name: 'Accept time, 99th', measure: 'acceptMost', told: seconds },
      { name: 'Sign-ins', measure: 'connects', unit: PER_SECOND },
      { name: 'Look-ups', measure: 'lookups', unit: PER_SECOND },
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
        name: 'Time to accept',
        told: seconds,
        lines: [
          { name: 'median', measure: 'acceptHalf', tone: '1' },
          { name: '99th', measure: 'acceptMost', tone: '2' },
        ],
      },
    ],
  },
  {
    name: 'Carrier',
    does: 'places and delivers what was accepted',
    prefix: 'carrier_',
    facts: [
      { name: 'In flight', measure: 'inFlight', of: 'inFlightMax' },
      { name: 'Open pushes', measure: 'pushesOpen' },
      { name: 'Settled', measure: 'settled', unit: PER_SECOND },
      { name: 'Retried', measure: 'retried', unit: PER_SECOND },
      { name: 'Time to acknowledge, median', measure: 'ackHalf', told: seconds },
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
    does: 'tells users who are away',
    prefix: 'horn_',
    facts: [
      { name: 'Told', measure: 'told', unit: PER_SECOND },
      { name: 'Pending', measure: 'pending' },
      { name: 'Retries', measure: 'hornRetries', unit: PER_SECOND },
      { name: 'Provider time, 99th', measure: 'tellMost', told: seconds },
      { name: 'Dead letters', measure: 'deadNotifications', alarming: true },
    ],
    pictures: [
      { name: 'Notifications, per second', lines: [{ name: 'told', measure: 'told', tone: '1' }] },
      { name: 'Pending', lines: [{ name: 'pending', measure: 'pending', tone: '1' }] },
    ],
  },
  {
    name: 'Audit',
    does: 'closes minute after minute, where audit.continuous is set; the process that works counts',
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
      { name: 'Lag', told: whole, lines: [{ name: 'behind', measure: 'auditLag', tone: '1' }] },
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

/** Seconds; nothing is known before the first minute is closed. */
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
