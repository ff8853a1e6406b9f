// Forecasts of a redrive in words.

import type { Forecast, Plan } from '../api/plan';
import { told as toldOf } from './outcome';

export interface Told {
  tone: 'good' | 'warn' | 'bad' | 'quiet';
  /** Name, such as `would be pushed`. */
  name: string;
  text: string;
}

export function told(forecast: Forecast): Told {
  switch (forecast.type) {
    case 'deliver':
      return { tone: 'good', name: 'would be pushed', text: 'a target without it is online' };
    case 'store':
      return { tone: 'good', name: 'would wait', text: 'targets without it are offline: stored for them, or found by sync' };
    case 'place':
      return { tone: 'good', name: 'would be placed', text: 'in its conversation and delivered' };
    case 'notify':
      return { tone: 'good', name: 'would be notified again', text: 'through the push provider' };
    case 'already_there':
      return { tone: 'quiet', name: 'would change nothing', text: 'delivered to or stored for all targets' };
    case 'fail_again':
      return { tone: 'bad', name: 'would die again', text: forecast.cause };
    case 'left_alone':
      return { tone: 'quiet', name: 'would be skipped', text: toldOf(forecast.outcome).text };
    default: {
      // Unknown forecast of a later server.
      const { type }: { type: string } = forecast;
      return { tone: 'quiet', name: type, text: '' };
    }
  }
}

/** Number of letters that would die again. */
export function dying(plan: Plan): number {
  const shares = plan.forecasts.filter(({ forecast }) => forecast.type === 'fail_again');
  return shares.reduce((sum, share) => sum + share.letters, 0);
}

/** Number of letters that would be redriven. */
export function going(plan: Plan): number {
  const shares = plan.forecasts.filter(({ forecast }) => forecast.type !== 'left_alone');
  return shares.reduce((sum, share) => sum + share.letters, 0);
}
