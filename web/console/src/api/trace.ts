// Life of a message in the desk's API.

import { ask } from './desk';
import type { Shortlist } from './shortlist';

/** Name such as `"Settled"`, or a name with fields: `{ "Pushed": { "attempt": 1, … } }`. */
export type LedgerEvent = string | Record<string, Record<string, unknown>>;

export interface Entry {
  at: number;
  /** Target as `user/platform`, if the event has one. */
  target: string | null;
  event: LedgerEvent;
}

export interface Life {
  msg_id: string;
  accepted_at: number;
  settled: boolean;
  verdict: Shortlist<string>;
  events: Shortlist<Entry>;
}

export function trace(id: string, signal: AbortSignal): Promise<Life[]> {
  return ask(`/trace/${encodeURIComponent(id)}`, {}, signal);
}
