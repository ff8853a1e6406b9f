// The desk's plan of a redrive.

import { tell } from './desk';
import type { Selection } from './selection';
import type { Outcome } from './tasks';

/** Forecast for a letter. */
export type Forecast =
  | { type: 'deliver' | 'store' | 'place' | 'notify' | 'already_there' }
  | { type: 'fail_again'; cause: string }
  | { type: 'left_alone'; outcome: Outcome };

/** Letters with the same forecast. */
export interface Share {
  forecast: Forecast;
  letters: number;
  /** Ids of some of the letters. */
  sample: string[];
}

export interface Plan {
  letters: number;
  forecasts: Share[];
}

/** Requests a plan; changes nothing. */
export function plan(selection: Selection, signal: AbortSignal): Promise<Plan> {
  return tell('/dead-letters/plan', selection, signal);
}
