// Life of a message in the desk's API.

import type { List, Time } from './answer';
import { ask } from './desk';

/** Event by type, such as `settled`, with its fields. */
export type LedgerEvent = { type: string } & Record<string, unknown>;

export interface Entry {
  at: Time;
  /** Target as `user/platform`, if the event has one. */
  target: string | null;
  event: LedgerEvent;
}

export interface Life {
  msg_id: string;
  accepted_at: Time;
  settled: boolean;
  verdict: List<string>;
  events: List<Entry>;
}

export function trace(id: string, signal: AbortSignal): Promise<List<Life>> {
  return ask(`/trace/${encodeURIComponent(id)}`, {}, signal);
}
