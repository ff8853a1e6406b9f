// Letters that were selected on a page, as dialogs speak of them.

import { counted } from '../amount';
import type { Filter } from '../api/letters';
import { TASK_MAX, type Selection } from '../api/selection';
import { PER_SECOND_MAX, type Work } from '../api/tasks';
import { moment } from '../when';

export interface Selected {
  work: Work;
  selection: Selection;
  /** `all that match`, or a cause; letters by name need no such word. */
  what?: string;
}

/** Above the dialog. */
export function question({ work, selection, what }: Selected): string {
  const name = { redrive: 'Redrive', discard: 'Discard', restore: 'Restore' }[work];
  if (!('ids' in selection)) return `${name} ${what ?? 'all that match'}?`;
  return `${name} ${counted(selection.ids.length, 'letter')}?`;
}

/** What letters have in common, for people. */
export function partsOf(filter: Filter): [string, string][] {
  const { kind, since, until, redriven: _, discarded: __, ...rest } = filter;
  const told: Record<string, string | bigint | undefined> = {
    topic: kind,
    ...rest,
    'died since': since === undefined ? undefined : moment(since),
    'died before': until === undefined ? undefined : moment(until),
  };
  const set = Object.entries(told).filter(([, value]) => value !== undefined);
  return set.map(([name, value]) => [name, String(value)]);
}

/** What is wrong with a whole number, if something is. */
function wrongNumber(value: number | null | undefined, least: number, most: number): string | undefined {
  const fits = Number.isInteger(value) && Number(value) >= least && Number(value) <= most;
  return fits ? undefined : `${least} to ${most.toLocaleString('en')}.`;
}

export const wrongRate = (value: number | null | undefined) => wrongNumber(value, 1, PER_SECOND_MAX);
export const wrongShare = (value: number | null | undefined) => wrongNumber(value, 0, 100);
export const wrongLimit = (value: number | null | undefined) => wrongNumber(value, 1, TASK_MAX);

/** How long so many letters take at least. */
export function secondsAt(letters: number, perSecond: number): number {
  return Math.ceil(letters / Math.max(1, perSecond));
}
