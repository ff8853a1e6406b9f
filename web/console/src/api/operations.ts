// Operations log: requests of operators and the work on them, line by line.

import { ask } from './desk';
import type { Begun, Outcome } from './tasks';

export type Act =
  | { begun: Begun }
  | { chosen: { task: string; letters: string[] } }
  | { claimed: { task: string; claims: { letter: string }[] } }
  | { done: { task: string; outcomes: [string, Outcome][] } }
  | { paused: { task: string; why: string } }
  | { resumed: { task: string } }
  | { cancelled: { task: string } }
  | { looked: { letter: string; why: string } }
  | { exported: { from: string; letters: number; why: string } }
  | { imported: { letters: string[]; why: string } }
  | { repaired: { user: number | string; what: string[]; why: string } }
  | { drained: { boat: string; cancel?: boolean } }
  | { signed_out: { user: number | string; platform?: string; revoked_before?: number; why: string; outcome?: string } }
  | { edited: { letter: string; fields: string[]; why: string } }
  | { died_again: { task: string; letters: string[] } }
  | { forgotten: { letters: string[] } };

export interface Operation {
  at: number;
  /** Operator, or process that works on tasks. */
  by: string;
  act: Act;
}

/** Newest first. */
export interface Log {
  entries: Operation[];
  /** Cursor to older lines. */
  next: number | null;
}

/** Newest lines, up to `limit`; with `decisions`, only requests of operators. */
export function operations(limit: number, decisions: boolean, signal: AbortSignal): Promise<Log> {
  return ask('/dead-letters/log', { limit, decisions }, signal);
}
