// What a redrive would do now, as the desk forecasts it.

import { tell } from './desk';
import type { Selection } from './selection';
import type { Outcome } from './tasks';

/** A word, or a word with what belongs to it. */
export type Forecast =
  | 'deliver'
  | 'store'
  | 'place'
  | 'notify'
  | 'already_there'
  | { fail_again: string }
  | { left_alone: Outcome };

/** Letters of which the same would become. */
export interface Share {
  forecast: Forecast;
  letters: number;
  /** Some of them. */
  sample: string[];
}

export interface Plan {
  letters: number;
  forecasts: Share[];
}

/** Does nothing but look. */
export function plan(selection: Selection, signal: AbortSignal): Promise<Plan> {
  return tell('/dead-letters/plan', selection, signal);
}
