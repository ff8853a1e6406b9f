// Body of a letter, for editing. It may contain private messages.

import type { Time } from './answer';
import { tell } from './desk';

/** Saved edit, without the text. */
export interface Edit {
  by: string;
  at: Time;
  base: string;
  version: string;
  fields: string[];
  why: string;
}

export interface Envelope {
  letter: string;
  /** Type of the body, such as `packetboat.v1.Task`. */
  schema: string;
  /** Version of the bytes; an edit names the version it is based on. */
  version: string;
  /** Body as JSON; `null` if the bytes do not decode. */
  text: string | null;
  /** Fields unknown to the desk and missing in the text. */
  unknown_fields: string[];
  /** First bytes of a body that does not decode. */
  raw: string | null;
  /** Error with which a carrier would refuse it. */
  flaw: string | null;
  /** Obstacle to an edit now. */
  locked: string | null;
  edit: Edit | null;
}

export interface Change {
  base: string;
  envelope: string;
  why: string;
  /** Preview only. */
  dry_run: boolean;
  /** Accept the loss of fields unknown to the desk. */
  drop_unknown: boolean;
}

export interface Changed {
  version: string;
  /** Unified diff; empty if nothing changes. */
  diff: string;
  fields: string[];
  flaw: string | null;
  /** True if the edit was saved. */
  done: boolean;
}

/** Reads the body. The operations log records the access and the reason. */
export function envelope(id: string, why: string, signal: AbortSignal): Promise<Envelope> {
  return tell(`/dead-letters/${encodeURIComponent(id)}/envelope`, { why }, signal);
}

export function edit(id: string, change: Change, signal?: AbortSignal): Promise<Changed> {
  return tell(`/dead-letters/${encodeURIComponent(id)}/edit`, change, signal);
}
