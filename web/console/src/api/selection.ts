// Selection of letters for an action: by id or by filter.

import { tell } from './desk';
import type { Filter } from './letters';

/** Most letters in a plan. */
export const PLANNED_MAX = 1000;
/** Most letters in a task. */
export const TASK_MAX = 10_000;

/** Number of letters that match now; `more` if they exceed one task. */
export interface Count {
  letters: number;
  more: boolean;
}

export function count(selection: Selection, signal: AbortSignal): Promise<Count> {
  return tell('/dead-letters/count', selection, signal);
}

/** Text such as `more than 10,000`. */
export function amountOf({ letters, more }: Count): string {
  return `${more ? 'more than ' : ''}${letters.toLocaleString('en')}`;
}

/** Letters by id, or up to `limit` matching letters, oldest first. */
export type Selection = { type: 'ids'; ids: string[] } | { type: 'filter'; filter: Filter; limit: number };

export function byName(ids: string[]): Selection {
  return { type: 'ids', ids };
}

export function byFilter(filter: Filter): Selection {
  return { type: 'filter', filter, limit: PLANNED_MAX };
}

/** Selection with another limit; one by id has no limit. */
export function atMost(selection: Selection, limit: number): Selection {
  return selection.type === 'ids' ? selection : { ...selection, limit };
}

/** True if more letters may match than the plan covers. */
export function isCutOff(selection: Selection, planned: number): boolean {
  return selection.type === 'filter' && planned >= selection.limit;
}
