// Filter of dead letters in the address bar.

import type { Filter, Topic } from '../api/letters';
import type { Work } from '../api/tasks';

/** Letters on a page. */
export const LIMIT = 50;

export type Shown = 'open' | 'redriven' | 'discarded' | 'all';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
/** Id of no user. */
const NOBODY = '0';

/** Choices for the time of the last failure. */
export const DIED: { value: string; name: string; since?: number; until?: number }[] = [
  { value: 'hour', name: 'last hour', since: HOUR },
  { value: 'day', name: 'last day', since: DAY },
  { value: 'week', name: 'last week', since: 7 * DAY },
  { value: 'before-day', name: 'more than a day ago', until: DAY },
  { value: 'before-week', name: 'more than a week ago', until: 7 * DAY },
];

/** State to show; `open` by default. */
export function shownOf(query: Record<string, string>): Shown {
  const shown = query['show'];
  return shown === 'redriven' || shown === 'discarded' || shown === 'all' ? shown : 'open';
}

/** True if a filter other than the state is set. */
export function isFiltered(query: Record<string, string>): boolean {
  return ['topic', 'reason', 'cause', 'text', 'conversation', 'user', 'died'].some((name) => query[name]);
}

/** Filter of the list. */
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

/** Filter of the listed letters in the right state for `work`. */
export function workedOf(query: Record<string, string>, work: Work, now: number): Filter {
  return { ...filterOf(query, now), redriven: false, discarded: work === 'restore' };
}

/** Filter of the open letters of one cause. */
export function ofCause(kind: Topic, cause: string): Filter {
  return { kind, cause, redriven: false, discarded: false };
}

function filterOf(query: Record<string, string>, now: number): Filter {
  return {
    // The server refuses unknown topics and reasons.
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

/** Parses a user id. Invalid text becomes `NOBODY`, so that it does not match every user. */
export function userOf(text: string | undefined): string | undefined {
  if (!text) return undefined;
  return /^\d{1,18}$/.test(text) ? text : NOBODY;
}

/** Parses a choice of `DIED`, or a start time in milliseconds. Anything else matches no letter. */
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
