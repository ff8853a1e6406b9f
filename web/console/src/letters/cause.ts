// Causes of dead letters, as listed.

import { counted } from '../amount';
import type { CauseSummary } from '../api/letters';
import { ago } from '../when';

/** Number of open letters. */
export function openOf({ summary }: CauseSummary): number {
  return summary.letters - summary.redriven - summary.discarded;
}

/** Causes sorted by open letters, most first. */
export function byUrgency(causes: readonly CauseSummary[]): CauseSummary[] {
  return [...causes].sort((one, other) => openOf(other) - openOf(one));
}

/** Splits `too-large: # bytes` into reason and error. */
export function partsOfCause(cause: string): { reason: string; error: string } {
  const [reason = cause, ...error] = cause.split(': ');
  return { reason, error: error.join(': ') };
}

/** Text such as `open of 9 messages, 2 redriven, 1 discarded, newest 5 min ago`. */
export function told({ kind, summary }: CauseSummary, now: number): string {
  const parts = [`open of ${counted(summary.letters, kind)}`];
  if (summary.redriven > 0) parts.push(`${summary.redriven.toLocaleString('en')} redriven`);
  if (summary.discarded > 0) parts.push(`${summary.discarded.toLocaleString('en')} discarded`);
  if (summary.newest !== null) parts.push(`newest ${ago(summary.newest.ms, now)}`);
  return parts.join(', ');
}
