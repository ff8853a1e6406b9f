// Ledger events in words.

import type { LedgerEvent } from '../api/trace';

export type Tone = 'quiet' | 'good' | 'warn' | 'bad' | 'accent';

export interface Told {
  /** Name, such as `stored offline`. */
  name: string;
  tone: Tone;
  /** Fields, in the order of the ledger. */
  details: [string, string][];
  /** Letter that the event names. */
  letter?: string;
  /** Message that the event names. */
  message?: string;
}

const TONES: Record<string, Tone> = {
  placed: 'accent',
  acked: 'good',
  written: 'good',
  fetched: 'good',
  settled: 'good',
  stored_offline: 'accent',
  reachable_by_sync: 'accent',
  failed: 'warn',
  retried: 'warn',
  dropped: 'warn',
  repeat: 'warn',
  dead: 'bad',
  redriven: 'accent',
};

export function told({ type, letter, original, ...fields }: LedgerEvent): Told {
  const refused = type === 'notification_sent' && fields['ok'] === false;
  const details = Object.entries(fields).filter(([, value]) => value !== null);
  return {
    name: refused ? 'notification refused' : spaced(type),
    tone: refused ? 'warn' : (TONES[type] ?? 'quiet'),
    details: details.map(([key, value]) => [spaced(key), written(key, value)]),
    ...(letter === undefined ? {} : { letter: String(letter) }),
    ...(original === undefined ? {} : { message: String(original) }),
  };
}

/** Writes `stored_offline` as `stored offline`. */
function spaced(name: string): string {
  return name.replaceAll('_', ' ');
}

function written(key: string, value: unknown): string {
  return key === 'reason' || key === 'cause' ? spaced(String(value)) : String(value);
}
