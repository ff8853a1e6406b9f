// Period of the audit in the address bar.

import type { Minute, Span } from '../api/audit';

export type Choice = 'hour' | 'day' | 'all' | 'chosen';

const HOUR = 3_600_000;
const MINUTE = 60_000;
/** Most minutes to fill in, a little over a week; longer spans are left as they are. */
const FILLED = 11_000;

export function choiceOf(query: Record<string, string>): Choice {
  if (query['since'] || query['until']) return 'chosen';
  const last = query['last'];
  return last === 'day' || last === 'all' || last === 'chosen' ? last : 'hour';
}

export function spanOf(query: Record<string, string>, now: number): Span {
  switch (choiceOf(query)) {
    case 'hour':
      return { since: now - HOUR };
    case 'day':
      return { since: now - 24 * HOUR };
    case 'all':
      return { all: true };
    case 'chosen':
      return { since: whole(query['since']), until: whole(query['until']) };
  }
}

function whole(text: string | undefined): number | undefined {
  return text && /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

/** Fills in minutes without accepted messages, so that the time axis is even. */
export function everyMinute(minutes: readonly Minute[]): Minute[] {
  const [first, last] = [minutes[0], minutes.at(-1)];
  if (!first || !last || (last.at.ms - first.at.ms) / MINUTE > FILLED) return [...minutes];
  const known = new Map(minutes.map((minute) => [minute.at.ms, minute]));
  const all: Minute[] = [];
  for (let ms = first.at.ms; ms <= last.at.ms; ms += MINUTE) all.push(known.get(ms) ?? quiet(ms));
  return all;
}

function quiet(ms: number): Minute {
  const at = { utc: new Date(ms).toISOString(), ms };
  return { at, accepted: 0, settled: 0, in_flight: 0, missing: 0 };
}
