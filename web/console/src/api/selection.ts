// Letters that something is to be done with: by name, or by what they have in common.

import { tell } from './desk';
import type { Filter } from './letters';

/** The desk plans for so many at a time. */
export const PLANNED_MAX = 1000;
/** One task takes so many. */
export const TASK_MAX = 10_000;

/** How many letters are meant by now; `more`: than one task takes. */
export interface Count {
  letters: number;
  more: boolean;
}

export function count(selection: Selection, signal: AbortSignal): Promise<Count> {
  return tell('/dead-letters/count', selection, signal);
}

/** As `more than 10,000`. */
export function amountOf({ letters, more }: Count): string {
  return `${more ? 'more than ' : ''}${letters.toLocaleString('en')}`;
}

/** By filter: at most so many, the oldest first. */
export type Selection = { ids: string[] } | { filter: { filter: Filter; limit: number } };

export function byName(ids: string[]): Selection {
  return { ids };
}

export function byFilter(filter: Filter): Selection {
  return { filter: { filter, limit: PLANNED_MAX } };
}

/** The same with another limit; letters that are named are as many as they are. */
export function atMost(selection: Selection, limit: number): Selection {
  return 'ids' in selection ? selection : { filter: { ...selection.filter, limit } };
}

/** Whether there may be more than the plan looked at. */
export function isCutOff(selection: Selection, planned: number): boolean {
  return 'filter' in selection && planned >= selection.filter.limit;
}
