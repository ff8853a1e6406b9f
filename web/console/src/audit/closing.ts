// Progress of the continuous audit in words.

import { length } from '../when';

/** Lag in seconds that needs attention; `audit.settle` is two minutes by default. */
const LATE = 600;

export interface Told {
  text: string;
  late: boolean;
}

/** Text for `audit_lag_seconds` of this process; `null` if the process does not report it. */
export function told(lag: number | null): Told {
  if (lag === null) {
    return { text: 'This process closes no minutes: audit.continuous is off, or another process closes them.', late: false };
  }
  if (lag === 0) return { text: 'The continuous audit has not closed a minute yet.', late: false };
  const text = `The continuous audit has closed all minutes up to ${length(Math.round(lag))} ago.`;
  return { text, late: lag > LATE };
}
