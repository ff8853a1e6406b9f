// Progress of a task in words, and the changes it allows.

import { counted } from '../amount';
import type { Change, State, Task } from '../api/tasks';

/** Poll interval of a working task, in milliseconds. */
const SOON = 1000;
/** Poll interval of a paused task, which another operator may resume. */
const LATER = 5000;
/** Polls after a cancel, until the last letters are processed. */
const LAST_LOOKS = 3;

export interface Told {
  word: string;
  tone: 'accent' | 'warn' | 'good' | 'quiet';
}

export function told(state: State): Told {
  switch (state.type) {
    case 'choosing':
      return { word: 'begun', tone: 'accent' };
    case 'running':
      return { word: 'running', tone: 'accent' };
    case 'paused':
      return { word: 'paused', tone: 'warn' };
    case 'cancelled':
      return { word: 'cancelled', tone: 'quiet' };
    case 'over':
      return { word: 'over', tone: 'good' };
  }
}

/** Title, such as `Redrive of 6 letters`. */
export function titleOf({ work, letters }: Task): string {
  const name = work.charAt(0).toUpperCase() + work.slice(1);
  return `${name} of ${counted(letters, 'letter')}`;
}

/** Changes that the task allows now. */
export function changesOf({ state }: Task): Change[] {
  switch (state.type) {
    case 'running':
      return ['pause', 'cancel'];
    case 'paused':
      return ['resume', 'cancel'];
    case 'choosing':
      return ['cancel'];
    case 'cancelled':
    case 'over':
      return [];
  }
}

/** Number of letters processed. */
export function doneOf(task: Task): number {
  return Object.values(task.outcomes).reduce((sum, count) => sum + count, 0);
}

export function works({ state }: Task): boolean {
  return state.type === 'choosing' || state.type === 'running';
}

/** Delay to the next poll in milliseconds; `seen` counts polls that found it cancelled. */
export function pauseOf(task: Task, seen = LAST_LOOKS): number | undefined {
  if (works(task)) return SOON;
  if (task.state.type === 'paused') return LATER;
  return task.state.type === 'cancelled' && seen < LAST_LOOKS ? SOON : undefined;
}

/** Delay to the next poll of a list of tasks. */
export function pauseOfAll(tasks: readonly Task[]): number | undefined {
  const pauses = tasks.map((task) => pauseOf(task)).filter((pause) => pause !== undefined);
  // Polls of the list are slower: it shows less per task and costs more.
  return pauses.length === 0 ? undefined : Math.max(2 * SOON, Math.min(...pauses));
}
