// Dead letters, as the desk tells of them.

import { ask, tell } from './desk';

export const TOPICS = ['message', 'notification'] as const;
export type Topic = (typeof TOPICS)[number];

/** A closed list; docs/operations/dead-letters.md tells of each. */
export const REASONS = [
  'undecodable',
  'too-large',
  'misplaced',
  'max-retries',
  'store-rejected',
  'handler-panic',
  'expired',
  'refused',
] as const;

export interface Cursor {
  kind: Topic;
  partition: number;
  offset: number | string;
}

export interface Letter {
  id: string;
  cursor: Cursor;
  reason: string;
  error: string;
  origin_topic: string;
  origin_partition: number;
  origin_offset: number | string;
  message: string | number | null;
  conversation: string | null;
  targets: string[];
  retry_count: number;
  first_failed_at: number;
  last_failed_at: number;
  carrier: string;
  bytes: number;
  redriven: boolean;
  discarded: boolean;
}

/** What was done with it last. */
export function standing(letter: Letter): 'open' | 'redriven' | 'discarded' {
  if (letter.redriven) return 'redriven';
  return letter.discarded ? 'discarded' : 'open';
}

export interface Page {
  letters: Letter[];
  next: Cursor | null;
}

export interface Shown {
  letter: Letter;
  headers: [string, string][];
  body: string | null;
}

export interface Summary {
  letters: number;
  redriven: number;
  discarded: number;
  oldest: number | null;
  newest: number | null;
}

export interface Stats {
  messages: Record<string, Summary>;
  notifications: Record<string, Summary>;
  left_off: number;
}

export type Outcome =
  | 'to_retry'
  | 'to_message'
  | 'to_notification'
  | 'before'
  | 'is_discarded'
  | 'no_such_letter'
  | 'bytes_gone'
  | 'belongs_nowhere';

export interface Redrive {
  id: string;
  outcome: Outcome;
}

export interface Wanted {
  topic?: string | undefined;
  reason?: string | undefined;
  conversation?: string | undefined;
  redriven?: boolean | undefined;
  discarded?: boolean | undefined;
  after?: string | undefined;
  limit: number;
}

/** As the desk wants to hear where to go on. */
export function place(cursor: Cursor): string {
  return `${cursor.kind}-${cursor.partition}-${cursor.offset}`;
}

export function list(wanted: Wanted, signal: AbortSignal): Promise<Page> {
  return ask('/dead-letters', { ...wanted }, signal);
}

export function stats(signal: AbortSignal): Promise<Stats> {
  return ask('/dead-letters/stats', {}, signal);
}

export function show(id: string, body: boolean, signal: AbortSignal): Promise<Shown> {
  return ask(`/dead-letters/${encodeURIComponent(id)}`, { body }, signal);
}

export function redrive(ids: string[]): Promise<Redrive[]> {
  return tell('/dead-letters/redrive', { ids });
}
