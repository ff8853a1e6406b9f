// Where a task stands, in words, and what may be done about it.

import { counted } from '../amount';
import type { Change, Progress, Task } from '../api/tasks';

/** While it works. */
const SOON = 1000;
/** While it rests: somebody else may let it go on. */
const LATER = 5000;
/** After a cancel its last letters come to their end. */
const LAST_LOOKS = 3;

export interface Told {
  word: string;
  tone: 'accent' | 'warn' | 'good' | 'quiet';
}

export function told(progress: Progress): Told {
  switch (progress.is) {
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

/** `Redrive of 6 letters`. */
export function titleOf({ begun }: Task): string {
  const work = begun.work.charAt(0).toUpperCase() + begun.work.slice(1);
  return `${work} of ${counted(begun.letters, 'letter')}`;
}

/** What it can be told. */
export function changesOf({ progress }: Task): Change[] {
  switch (progress.is) {
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

/** Letters that came to an end. */
export function doneOf(task: Task): number {
  return Object.values(task.outcomes).reduce((sum, count) => sum + count, 0);
}

export function works({ progress }: Task): boolean {
  return progress.is === 'choosing' || progress.is === 'running';
}

/** In how many milliseconds it is worth another look; `seen`: how often it was cancelled already. */
export function pauseOf(task: Task, seen = LAST_LOOKS): number | undefined {
  if (works(task)) return SOON;
  if (task.progress.is === 'paused') return LATER;
  return task.progress.is === 'cancelled' && seen < LAST_LOOKS ? SOON : undefined;
}

/** The same for many. */
export function pauseOfAll(tasks: readonly Task[]): number | undefined {
  const pauses = tasks.map((task) => pauseOf(task)).filter((pause) => pause !== undefined);
  // A list tells less than a page of its own, and costs more.
  return pauses.length === 0 ? undefined : Math.max(2 * SOON, Math.min(...pauses));
}
