// What a redrive would do, in words.

import type { Forecast, Plan } from '../api/plan';
import { told as toldOf } from './outcome';

export interface Told {
  tone: 'good' | 'warn' | 'bad' | 'quiet';
  /** `would be pushed`. */
  name: string;
  text: string;
}

export function told(forecast: Forecast): Told {
  switch (forecast) {
    case 'deliver':
      return { tone: 'good', name: 'would be pushed', text: 'somebody who misses it is there' };
    case 'store':
      return { tone: 'good', name: 'would wait', text: 'who misses it is absent: it waits for them, or sync finds it' };
    case 'place':
      return { tone: 'good', name: 'would get a place', text: 'in its conversation, and be delivered then' };
    case 'notify':
      return { tone: 'good', name: 'would be told again', text: 'to a provider' };
    case 'already_there':
      return { tone: 'quiet', name: 'would reach nobody new', text: 'everybody it was for has it, or has it waiting' };
    default:
      return withMore(forecast);
  }
}

function withMore(forecast: Exclude<Forecast, string>): Told {
  if ('fail_again' in forecast) return { tone: 'bad', name: 'would die again', text: forecast.fail_again };
  if ('left_alone' in forecast) {
    return { tone: 'quiet', name: 'would be left alone', text: toldOf(forecast.left_alone).text.replace(/^left alone: /, '') };
  }
  // A later server may know more.
  return { tone: 'quiet', name: Object.keys(forecast).join(', '), text: '' };
}

/** How many letters would die again. */
export function dying(plan: Plan): number {
  const shares = plan.forecasts.filter(({ forecast }) => typeof forecast === 'object' && 'fail_again' in forecast);
  return shares.reduce((sum, share) => sum + share.letters, 0);
}

/** How many would be sent on their way at all. */
export function going(plan: Plan): number {
  const shares = plan.forecasts.filter(({ forecast }) => typeof forecast === 'string' || !('left_alone' in forecast));
  return shares.reduce((sum, share) => sum + share.letters, 0);
}
