// Letters selected on a page, in the words of dialogs.

import { counted } from '../amount';
import { nameOf, type Filter } from '../api/letters';
import { TASK_MAX, type Selection } from '../api/selection';
import { PER_SECOND_MAX, type Work } from '../api/tasks';
import { moment } from '../when';

export interface Selected {
  work: Work;
  selection: Selection;
  /** Phrase such as `all matching letters`; unused for letters selected by id. */
  what?: string;
}

/** Title of the dialog. */
export function question({ work, selection, what }: Selected): string {
  const name = { redrive: 'Redrive', discard: 'Discard', restore: 'Restore' }[work];
  if (selection.type === 'filter') return `${name} ${what ?? 'all matching letters'}?`;
  return `${name} ${counted(selection.ids.length, 'letter')}?`;
}

/** Conditions of a filter, for people. */
export function partsOf(filter: Filter): [string, string][] {
  const { kind, reason, since, until, redriven: _, discarded: __, ...rest } = filter;
  const told: Record<string, string | undefined> = {
    topic: kind,
    reason: reason === undefined ? undefined : nameOf(reason),
    ...rest,
    'failed since': since === undefined ? undefined : moment(since),
    'failed before': until === undefined ? undefined : moment(until),
  };
  const set = Object.entries(told).filter(([, value]) => value !== undefined);
  return set.map(([name, value]) => [name, value ?? '']);
}

/** Error for a number that is not whole or out of range. */
function wrongNumber(value: number | null | undefined, least: number, most: number): string | undefined {
  const fits = Number.isInteger(value) && Number(value) >= least && Number(value) <= most;
  return fits ? undefined : `Enter a whole number from ${least} to ${most.toLocaleString('en')}.`;
}

export const wrongRate = (value: number | null | undefined) => wrongNumber(value, 1, PER_SECOND_MAX);
export const wrongShare = (value: number | null | undefined) => wrongNumber(value, 0, 100);
export const wrongLimit = (value: number | null | undefined) => wrongNumber(value, 1, TASK_MAX);

/** Shortest duration for that many letters, in seconds. */
export function secondsAt(letters: number, perSecond: number): number {
  return Math.ceil(letters / Math.max(1, perSecond));
}
