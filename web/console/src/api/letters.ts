// Dead letters in the desk's API.

import { ask, tell } from './desk';
import type { Edit } from './envelope';

export const TOPICS = ['message', 'notification'] as const;
export type Topic = (typeof TOPICS)[number];

/** Closed list; docs/operations/dead-letters.md explains each reason. */
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
  cause: string;
  redriven: boolean;
  discarded: boolean;
  discarded_at: number | null;
  /** True if the letter can no longer be restored, and its body is no longer shown. */
  gone: boolean;
  /** True if an operator edited the body. */
  edited: boolean;
  /** Redriven letter that died again as this one. */
  parent: string | null;
}

/** State of a letter. */
export function standing(letter: Letter): 'open' | 'redriven' | 'discarded' | 'gone' {
  if (letter.redriven) return 'redriven';
  if (letter.gone) return 'gone';
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
  /** Newest edit. */
  edit: Edit | null;
}

export interface Summary {
  letters: number;
  redriven: number;
  discarded: number;
  oldest: number | null;
  newest: number | null;
}

/** Letters of one cause: the reason, and the error without its variable parts. */
export interface CauseSummary {
  kind: Topic;
  cause: string;
  summary: Summary;
  /** Id of one of the letters. */
  example: string;
}

export interface Stats {
  messages: Record<string, Summary>;
  notifications: Record<string, Summary>;
  /** Most frequent first. */
  causes: CauseSummary[];
  /** Newer letters that are not counted. */
  left_off: number;
}

/** Filter of letters; all conditions must hold. */
export interface Filter {
  kind?: Topic | undefined;
  reason?: string | undefined;
  /** Cause as in `Stats`. */
  cause?: string | undefined;
  /** Part of the error. */
  text?: string | undefined;
  conversation?: string | undefined;
  user?: bigint | undefined;
  /** Time of death, inclusive lower bound, in milliseconds since 1970. */
  since?: number | undefined;
  /** Time of death, exclusive upper bound. */
  until?: number | undefined;
  redriven?: boolean | undefined;
  discarded?: boolean | undefined;
}

/** Cursor in the form that the desk takes. */
export function place(cursor: Cursor): string {
  return `${cursor.kind}-${cursor.partition}-${cursor.offset}`;
}

/** Lists up to `limit` letters that match the filter, from a cursor on. */
export function list(filter: Filter, limit: number, after?: string, signal?: AbortSignal): Promise<Page> {
  const { kind, user, ...rest } = filter;
  return ask('/dead-letters', { topic: kind, ...rest, user: user?.toString(), limit, after }, signal);
}

export function stats(signal: AbortSignal): Promise<Stats> {
  return ask('/dead-letters/stats', {}, signal);
}

export function show(id: string, signal: AbortSignal): Promise<Shown> {
  return ask(`/dead-letters/${encodeURIComponent(id)}`, {}, signal);
}

/** Reads a letter with its body. The operations log records the access and the reason. */
export function read(id: string, why: string, signal: AbortSignal): Promise<Shown> {
  return tell(`/dead-letters/${encodeURIComponent(id)}/read`, { why }, signal);
}
