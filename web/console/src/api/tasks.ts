// What operators ask to have done with letters, and how far that is.

import { ask, tell } from './desk';
import type { Role } from './operator';
import type { Selection } from './selection';

export type Work = 'redrive' | 'discard' | 'restore';

/** Who may begin a task may stop it. */
export const ROLE_OF: Record<Work, Role> = { redrive: 'redrive', discard: 'discard', restore: 'discard' };

export interface Pace {
  /** Letters a second. */
  per_second: number;
  /** It pauses when more than this percentage of what went has died again. */
  pause_above: number;
}

export const PACE: Pace = { per_second: 50, pause_above: 20 };
export const PER_SECOND_MAX = 1000;

/** What became of one letter. */
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

export type Progress =
  | { is: 'choosing' | 'running' | 'over' }
  | { is: 'paused'; by: string; why: string }
  | { is: 'cancelled'; by: string };

export interface Begun {
  task: string;
  work: Work;
  letters: number;
  pace: Pace;
  /** Which letters were meant, in words. */
  about: string;
  why: string;
}

export interface Task {
  begun: Begun;
  by: string;
  at: number;
  progress: Progress;
  outcomes: Partial<Record<Outcome, number>>;
  /** The first thousand of them, letter by letter. */
  told: [string, Outcome][];
  /** How many new letters its letters died again as. */
  died_again: number;
  /** The first thousand of them. */
  died_again_as: string[];
  ended_at: number | null;
}

export interface Request {
  /** Who asks twice under one name gets the same task. */
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

/** The newest first. */
export function tasks(signal: AbortSignal): Promise<Task[]> {
  return ask('/dead-letters/tasks', {}, signal);
}

export function task(name: string, signal: AbortSignal): Promise<Task> {
  return ask(`/dead-letters/tasks/${encodeURIComponent(name)}`, {}, signal);
}

/** Only a pause is asked for a reason. */
export function change(name: string, what: Change, why = ''): Promise<Task> {
  return tell(`/dead-letters/tasks/${encodeURIComponent(name)}/${what}`, what === 'pause' ? { why } : {});
}

/** A name that nobody else chooses. */
export function newName(now: number): string {
  const chance = crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
  return `t${now}-${chance.toString(16).padStart(8, '0')}`;
}
