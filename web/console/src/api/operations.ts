// Operations log: requests of operators and the work on them, line by line.

import type { Page, Time } from './answer';
import { ask } from './desk';
import type { LetterOutcome, Work } from './tasks';

export type Action =
  | { type: 'begun'; task: string; work: Work; letters: number; selection: string; why: string }
  | { type: 'chosen'; task: string; letters: string[] }
  | { type: 'claimed'; task: string; claims: { letter: string }[] }
  | { type: 'done'; task: string; outcomes: LetterOutcome[] }
  | { type: 'paused'; task: string; why: string }
  | { type: 'resumed'; task: string }
  | { type: 'cancelled'; task: string }
  | { type: 'looked'; letter: string; why: string }
  | { type: 'exported'; from: string; letters: number; why: string }
  | { type: 'imported'; letters: string[]; why: string }
  | { type: 'repaired'; user: string; steps: string[]; why: string }
  | { type: 'drained'; boat: string; cancel: boolean }
  | {
      type: 'signed_out';
      user: string;
      platform: string | null;
      revoked_before: Time | null;
      why: string;
      outcome: string | null;
    }
  | { type: 'edited'; letter: string; fields: string[]; why: string }
  | { type: 'died_again'; task: string; letters: string[] }
  | { type: 'forgotten'; letters: string[] };

export interface Operation {
  at: Time;
  /** Operator, or process that works on tasks. */
  by: string;
  action: Action;
}

/** Newest lines, up to `limit`; with `decisions`, only requests of operators. */
export function operations(limit: number, decisions: boolean, signal: AbortSignal): Promise<Page<Operation>> {
  return ask('/dead-letters/log', { limit, decisions }, signal);
}
