// Tasks of operators on dead letters, and their progress.

import type { List, Time } from './answer';
import { ask, tell } from './desk';
import type { Role } from './operator';
import type { Selection } from './selection';

export type Work = 'redrive' | 'discard' | 'restore';

/** Role that may start and stop a task. */
export const ROLE_OF: Record<Work, Role> = { redrive: 'redrive', discard: 'discard', restore: 'discard' };

export interface Pace {
  /** Letters per second. */
  per_second: number;
  /** Percentage of redriven letters that died again, above which the task pauses. */
  pause_above: number;
}

export const PACE: Pace = { per_second: 50, pause_above: 20 };
export const PER_SECOND_MAX = 1000;

/** Outcome for one letter. */
export type Outcome =
  | 'to_retry'
  | 'to_message'
  | 'to_notification'
  | 'discarded'
  | 'restored'
  | 'before'
  | 'is_discarded'
  | 'not_discarded'
  | 'final'
  | 'no_such_letter'
  | 'bytes_gone'
  | 'belongs_nowhere';

export type State =
  | { type: 'choosing' | 'running' | 'over' }
  | { type: 'paused'; by: string; why: string }
  | { type: 'cancelled'; by: string };

/** Letter, and what became of it. */
export interface LetterOutcome {
  id: string;
  outcome: Outcome;
}

export interface Task {
  id: string;
  work: Work;
  letters: number;
  pace: Pace;
  /** Selection in words. */
  selection: string;
  why: string;
  /** Operator. */
  by: string;
  started_at: Time;
  ended_at: Time | null;
  state: State;
  outcomes: Partial<Record<Outcome, number>>;
  /** Outcomes letter by letter; a list of tasks counts them only. */
  results: List<LetterOutcome>;
  /** Ids of new letters, from letters that died again; a list of tasks counts them only. */
  new_letters: List<string>;
}

export interface Request {
  /** Name of the task. A repeated request with the same name returns the same task. */
  task: string;
  work: Work;
  selection: Selection;
  pace?: Pace;
  why: string;
}

export type Change = 'pause' | 'resume' | 'cancel';

export function begin(request: Request): Promise<Task> {
  return tell('/dead-letters/tasks', request);
}

/** Newest first. */
export function tasks(signal: AbortSignal): Promise<List<Task>> {
  return ask('/dead-letters/tasks', {}, signal);
}

export function task(name: string, signal: AbortSignal): Promise<Task> {
  return ask(`/dead-letters/tasks/${encodeURIComponent(name)}`, {}, signal);
}

/** Changes a task; only a pause takes a reason. */
export function change(name: string, what: Change, why = ''): Promise<Task> {
  return tell(`/dead-letters/tasks/${encodeURIComponent(name)}/${what}`, what === 'pause' ? { why } : {});
}

/** Unique name for a task. */
export function newName(now: number): string {
  const chance = crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
  return `t${now}-${chance.toString(16).padStart(8, '0')}`;
}
