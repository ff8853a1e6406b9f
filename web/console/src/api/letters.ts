// Dead letters in the desk's API.

import type { List, Page, Time } from './answer';
import { ask, tell } from './desk';
import type { Edit } from './envelope';

export const TOPICS = ['message', 'notification'] as const;
export type Topic = (typeof TOPICS)[number];

/** Closed list; docs/operations/dead-letters.md explains each reason. */
export const REASONS = [
  'undecodable',
  'too_large',
  'misplaced',
  'max_retries',
  'store_rejected',
  'handler_panic',
  'expired',
  'refused',
] as const;

/** Name in the documentation and in headers: `too-large` for `too_large`. */
export function nameOf(reason: string): string {
  return reason.replaceAll('_', '-');
}

export interface Letter {
  id: string;
  kind: Topic;
  cursor: string;
  reason: string;
  error: string;
  origin_topic: string;
  origin_partition: number;
  origin_offset: number;
  message: string | null;
  conversation: string | null;
  targets: string[];
  retry_count: number;
  first_failed_at: Time;
  last_failed_at: Time;
  carrier: string;
  bytes: number;
  cause: string;
  redriven: boolean;
  discarded: boolean;
  discarded_at: Time | null;
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

export interface Shown {
  letter: Letter;
  headers: { name: string; value: string }[];
  body: string | null;
  /** Newest edit. */
  edit: Edit | null;
}

export interface Summary {
  letters: number;
  redriven: number;
  discarded: number;
  oldest: Time | null;
  newest: Time | null;
}

/** Letters of one cause: the reason, and the error without its variable parts. */
export interface CauseSummary {
  kind: Topic;
  cause: string;
  summary: Summary;
  /** Id of one of the letters. */
  example: string;
}

/** Letters of one reason. */
export interface ReasonSummary {
  kind: Topic;
  reason: string;
  summary: Summary;
}

export interface Stats {
  reasons: ReasonSummary[];
  /** Most frequent first. */
  causes: List<CauseSummary>;
  /** Newer letters that are not counted. */
  uncounted: number;
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
  user?: string | undefined;
  /** Time of death, inclusive lower bound, in milliseconds since 1970. */
  since?: number | undefined;
  /** Time of death, exclusive upper bound. */
  until?: number | undefined;
  redriven?: boolean | undefined;
  discarded?: boolean | undefined;
}

export function list(filter: Filter, limit: number, after?: string, signal?: AbortSignal): Promise<Page<Letter>> {
  return ask('/dead-letters', { ...filter, limit, after }, signal);
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
