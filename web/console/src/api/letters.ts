// Dead letters, as the desk tells of them.

import { ask, tell } from './desk';
import type { Edit } from './envelope';

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
  cause: string;
  redriven: boolean;
  discarded: boolean;
  discarded_at: number | null;
  /** It can be restored no more, and what it holds is not shown. */
  gone: boolean;
  /** It holds what an operator made of it. */
  edited: boolean;
  /** The letter that was redriven, and died again as this one. */
  parent: string | null;
}

/** What was done with it last. */
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
  /** The newest, if there is one. */
  edit: Edit | null;
}

export interface Summary {
  letters: number;
  redriven: number;
  discarded: number;
  oldest: number | null;
  newest: number | null;
}

/** Letters that died of the same: the reason, and the error without what differs. */
export interface CauseSummary {
  kind: Topic;
  cause: string;
  summary: Summary;
  /** One of them. */
  example: string;
}

export interface Stats {
  messages: Record<string, Summary>;
  notifications: Record<string, Summary>;
  /** The most frequent first. */
  causes: CauseSummary[];
  /** Newer letters that were not counted. */
  left_off: number;
}

/** Which letters are meant: those for which all that is set here is so. */
export interface Filter {
  kind?: Topic | undefined;
  reason?: string | undefined;
  /** As `Stats` tells it. */
  cause?: string | undefined;
  /** A part of the error. */
  text?: string | undefined;
  conversation?: string | undefined;
  user?: bigint | undefined;
  /** Died then or later, milliseconds since 1970. */
  since?: number | undefined;
  /** Died before. */
  until?: number | undefined;
  redriven?: boolean | undefined;
  discarded?: boolean | undefined;
}

/** As the desk wants to hear where to go on. */
export function place(cursor: Cursor): string {
  return `${cursor.kind}-${cursor.partition}-${cursor.offset}`;
}

/** Letters that the filter lets through, at most so many, from a place on. */
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

/** With what is in it. That somebody looked is written down, with the reason. */
export function read(id: string, why: string, signal: AbortSignal): Promise<Shown> {
  return tell(`/dead-letters/${encodeURIComponent(id)}/read`, { why }, signal);
}
