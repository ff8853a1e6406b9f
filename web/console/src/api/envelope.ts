// What a letter holds, to be mended. It may be what people wrote to each other.

import { tell } from './desk';

/** An edit that counts. What was written is not in it. */
export interface Edit {
  by: string;
  at: number;
  edited: { base: string; version: string; fields: string[]; why: string };
}

export interface Envelope {
  letter: string;
  /** `packetboat.v1.Task`. */
  schema: string;
  /** Names the bytes; an edit says which it was made of. */
  version: string;
  /** As JSON; `null` where the bytes are no such message. */
  text: string | null;
  /** Fields that the desk does not know, and that the text leaves out. */
  unknown: string[];
  /** The first of bytes that are no such message. */
  raw: string | null;
  /** What it would die of at once. */
  dies_of: string | null;
  /** Why it cannot be edited now. */
  locked: string | null;
  edit: Edit | null;
}

export interface Change {
  base: string;
  envelope: string;
  why: string;
  /** Only tell what it would be. */
  dry_run: boolean;
  /** Fields that the desk does not know may be lost. */
  drop_unknown: boolean;
}

export interface Changed {
  version: string;
  /** Line by line; empty where nothing changes. */
  diff: string;
  fields: string[];
  dies_of: string | null;
  /** It counts. */
  done: boolean;
}

/** That somebody looked is written down, with the reason. */
export function envelope(id: string, why: string, signal: AbortSignal): Promise<Envelope> {
  return tell(`/dead-letters/${encodeURIComponent(id)}/envelope`, { why }, signal);
}

export function edit(id: string, change: Change, signal?: AbortSignal): Promise<Changed> {
  return tell(`/dead-letters/${encodeURIComponent(id)}/edit`, change, signal);
}
