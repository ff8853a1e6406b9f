// The desk's audit of log and ledger.

import { ask } from './desk';
import type { Shortlist } from './shortlist';

export interface Minute {
  at: number;
  accepted: number;
  settled: number;
  in_flight: number;
  missing: number;
}

export interface Report {
  even: boolean;
  since: number;
  until: number | null;
  accepted: number;
  settled: number;
  in_flight: number;
  missing: Shortlist<string>;
  contradictions: Shortlist<string>;
  unreadable: number;
  minutes: Shortlist<Minute>;
  left_off: number;
  next: number | null;
  /** Minutes answered from their stored balance; the others were read from the log. */
  closed?: number;
}

/** Period of an audit, by time of acceptance. */
export interface Span {
  since?: number | undefined;
  until?: number | undefined;
  all?: boolean | undefined;
}

export function audit(span: Span, signal: AbortSignal): Promise<Report> {
  return ask('/audit', { ...span }, signal);
}
