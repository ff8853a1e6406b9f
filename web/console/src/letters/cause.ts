// What letters died of, as the list of causes tells it.

import { counted } from '../amount';
import type { CauseSummary } from '../api/letters';
import { ago } from '../when';

/** How many of them nobody has dealt with. */
export function openOf({ summary }: CauseSummary): number {
  return summary.letters - summary.redriven - summary.discarded;
}

/** Those that need somebody first, the most frequent first. */
export function byUrgency(causes: readonly CauseSummary[]): CauseSummary[] {
  return [...causes].sort((one, other) => openOf(other) - openOf(one));
}

/** `too-large: # bytes` as its reason and its error. */
export function partsOfCause(cause: string): { reason: string; error: string } {
  const [reason = cause, ...error] = cause.split(': ');
  return { reason, error: error.join(': ') };
}

/** `open of 9 messages, 2 redriven, 1 discarded, newest 5 min ago`. */
export function told({ kind, summary }: CauseSummary, now: number): string {
  const parts = [`open of ${counted(summary.letters, kind)}`];
  if (summary.redriven > 0) parts.push(`${summary.redriven.toLocaleString('en')} redriven`);
  if (summary.discarded > 0) parts.push(`${summary.discarded.toLocaleString('en')} discarded`);
  if (summary.newest !== null) parts.push(`newest ${ago(summary.newest, now)}`);
  return parts.join(', ');
}
