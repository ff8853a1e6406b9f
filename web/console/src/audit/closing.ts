// How far the continuous audit has closed minutes, in words.

import { length } from '../when';

/** Later than this is worth a look: `audit.settle` is two minutes by default. */
const LATE = 600;

export interface Told {
  text: string;
  late: boolean;
}

/** From `audit_lag_seconds` of this process; `null`: it does not count that. */
export function told(lag: number | null): Told {
  if (lag === null) {
    return { text: 'Minutes are not closed by this process: audit.continuous is off, or another one does it.', late: false };
  }
  if (lag === 0) return { text: 'The continuous audit has closed no minute yet.', late: false };
  const text = `The continuous audit has closed all minutes up to ${length(Math.round(lag))} ago.`;
  return { text, late: lag > LATE };
}
