// Which letters the address bar asks for.

import type { Filter, Topic } from '../api/letters';
import type { Work } from '../api/tasks';

/** Letters on a page. */
export const LIMIT = 50;

export type Shown = 'open' | 'redriven' | 'discarded' | 'all';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
/** There is no user of this number. */
const NOBODY = 0n;

/** When they died, as it can be chosen. */
export const DIED: { value: string; name: string; since?: number; until?: number }[] = [
  { value: 'hour', name: 'in the last hour', since: HOUR },
  { value: 'day', name: 'in the last day', since: DAY },
  { value: 'week', name: 'in the last week', since: 7 * DAY },
  { value: 'before-day', name: 'longer ago than a day', until: DAY },
  { value: 'before-week', name: 'longer ago than a week', until: 7 * DAY },
];

/** What nobody chose is open: it is what one comes for. */
export function shownOf(query: Record<string, string>): Shown {
  const shown = query['show'];
  return shown === 'redriven' || shown === 'discarded' || shown === 'all' ? shown : 'open';
}

/** Whether less than all is asked for. */
export function isFiltered(query: Record<string, string>): boolean {
  return ['topic', 'reason', 'cause', 'text', 'conversation', 'user', 'died'].some((name) => query[name]);
}

/** Those that are listed. */
export function wantedOf(query: Record<string, string>, now: number): Filter {
  const common = filterOf(query, now);
  switch (shownOf(query)) {
    case 'open':
      return { ...common, redriven: false, discarded: false };
    case 'redriven':
      return { ...common, redriven: true };
    case 'discarded':
      return { ...common, discarded: true };
    case 'all':
      return common;
  }
}

/** Those of them with which this can be done. */
export function workedOf(query: Record<string, string>, work: Work, now: number): Filter {
  return { ...filterOf(query, now), redriven: false, discarded: work === 'restore' };
}

/** The same for letters of one cause. */
export function ofCause(kind: Topic, cause: string): Filter {
  return { kind, cause, redriven: false, discarded: false };
}

function filterOf(query: Record<string, string>, now: number): Filter {
  return {
    // The server refuses a topic and a reason that it does not know.
    kind: set(query['topic']) as Topic | undefined,
    reason: set(query['reason']),
    cause: set(query['cause']),
    text: set(query['text']),
    conversation: set(query['conversation']),
    user: userOf(query['user']),
    ...diedOf(query['died'], now),
  };
}

function set(text: string | undefined): string | undefined {
  return text === '' ? undefined : text;
}

/** What is no user is nobody: letters of everybody are not what was asked for. */
export function userOf(text: string | undefined): bigint | undefined {
  if (!text) return undefined;
  return /^\d{1,18}$/.test(text) ? BigInt(text) : NOBODY;
}

/** A choice, or a moment in milliseconds: since then. What is neither is never. */
function diedOf(text: string | undefined, now: number): Pick<Filter, 'since' | 'until'> {
  if (!text) return {};
  if (/^\d{1,15}$/.test(text)) return { since: Number(text) };
  const chosen = DIED.find(({ value }) => value === text);
  if (!chosen) return { until: 0 };
  return {
    ...(chosen.since === undefined ? {} : { since: now - chosen.since }),
    ...(chosen.until === undefined ? {} : { until: now - chosen.until }),
  };
}
