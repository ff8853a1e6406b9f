// The life of a message, as the desk tells it.

import { ask } from './desk';
import type { Shortlist } from './shortlist';

/** `"Settled"`, or a name with what belongs to it: `{ "Pushed": { "attempt": 1, … } }`. */
export type LedgerEvent = string | Record<string, Record<string, unknown>>;

export interface Entry {
  at: number;
  /** `user/platform`, where it concerns one. */
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
