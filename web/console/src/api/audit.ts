// The desk's audit of log and ledger.

import type { List, Time } from './answer';
import { ask } from './desk';

export interface Minute {
  /** Start of the minute. */
  at: Time;
  accepted: number;
  settled: number;
  in_flight: number;
  missing: number;
}

/** Two entries of the ledger that exclude each other. */
export type Contradiction =
  | { type: 'placed_twice'; message: string }
  | { type: 'seq_reused'; conversation: string; seq: number; messages: [string, string] };

export interface Report {
  balanced: boolean;
  since: Time;
  until: Time | null;
  accepted: number;
  settled: number;
  in_flight: number;
  missing: List<string>;
  contradictions: List<Contradiction>;
  unreadable: number;
  minutes: List<Minute>;
  /** Messages that are too many for one audit. */
  truncated: number;
  /** `since` of the audit that continues with them. */
  next: Time | null;
  /** Minutes answered from their stored balance; the others were read from the log. */
  closed_minutes: number;
}

/** Period of an audit, by time of acceptance, in milliseconds since 1970. */
export interface Span {
  since?: number | undefined;
  until?: number | undefined;
  all?: boolean | undefined;
}

export function audit(span: Span, signal: AbortSignal): Promise<Report> {
  return ask('/audit', { ...span }, signal);
}
