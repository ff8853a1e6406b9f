// The log of operations: what operators asked for, and what was done about it, line by line.

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
  | { looked: { letter: string; why: string } };

export interface Operation {
  at: number;
  /** An operator, or the process that works. */
  by: string;
  act: Act;
}

/** The newest first. */
export function operations(limit: number, signal: AbortSignal): Promise<Operation[]> {
  return ask('/dead-letters/log', { limit }, signal);
}
