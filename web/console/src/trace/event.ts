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
  Placed: 'accent',
  Acked: 'good',
  Written: 'good',
  Fetched: 'good',
  Settled: 'good',
  StoredOffline: 'accent',
  ReachableBySync: 'accent',
  Failed: 'warn',
  Retried: 'warn',
  Dropped: 'warn',
  Repeat: 'warn',
  Dead: 'bad',
  Redriven: 'accent',
};

export function told(event: LedgerEvent): Told {
  const [name, fields] = typeof event === 'string' ? [event, {}] : (Object.entries(event)[0] ?? ['', {}]);
  const refused = name === 'NotificationSent' && fields['ok'] === false;
  const details = Object.entries(fields).filter(([key]) => key !== 'letter' && key !== 'of');
  return {
    name: refused ? 'notification refused' : spaced(name),
    tone: refused ? 'warn' : (TONES[name] ?? 'quiet'),
    details: details.map(([key, value]) => [key.replaceAll('_', ' '), written(key, value)]),
    ...(fields['letter'] === undefined ? {} : { letter: String(fields['letter']) }),
    ...(fields['of'] === undefined ? {} : { message: String(fields['of']) }),
  };
}

/** Writes `StoredOffline` as `stored offline`. */
function spaced(name: string): string {
  return name.replace(/(?!^)([A-Z])/g, ' $1').toLowerCase();
}

function written(key: string, value: unknown): string {
  if (key === 'conversation') return conversation(value);
  if (key === 'reason' || key === 'cause') return spaced(String(value));
  if (typeof value === 'object' && value !== null) return Object.values(value).map(String).join('/');
  return String(value);
}

/** Conversation id in its usual form: `p:1:2`, `g:7`, `s:2`. */
function conversation(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value);
  const [kind = '', who] = Object.entries(value)[0] ?? [];
  const users: unknown[] = typeof who === 'object' && who !== null ? Object.values(who) : [who];
  return [kind.charAt(0).toLowerCase(), ...users].join(':');
}
