// The balance of the log and the ledger, as the desk draws it.

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
  /** Minutes that were answered from what is kept of them; the others were read from the log. */
  closed?: number;
}

/** Which messages are accounted for: those accepted then. */
export interface Span {
  since?: number | undefined;
  until?: number | undefined;
  all?: boolean | undefined;
}

export function audit(span: Span, signal: AbortSignal): Promise<Report> {
  return ask('/audit', { ...span }, signal);
}
