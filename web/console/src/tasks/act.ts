// A line of the log of operations, in words.

import { counted } from '../amount';
import type { Act, Operation } from '../api/operations';
import { meant } from './meant';

export interface Told {
  /** `paused`. */
  verb: string;
  /** What it is about. */
  task?: string;
  letter?: string;
  text: string;
  why?: string;
}

export function told(act: Act): Told {
  if ('begun' in act) {
    const { work, task, why } = act.begun;
    return { verb: work, task, text: meant(act.begun), why };
  }
  if ('chosen' in act) return { verb: 'chose', task: act.chosen.task, text: counted(act.chosen.letters.length, 'letter') };
  if ('claimed' in act) return { verb: 'takes', task: act.claimed.task, text: counted(act.claimed.claims.length, 'letter') };
  if ('done' in act) return { verb: 'did', task: act.done.task, text: counted(act.done.outcomes.length, 'letter') };
  if ('paused' in act) return { verb: 'paused', task: act.paused.task, text: '', why: act.paused.why };
  if ('resumed' in act) return { verb: 'resumed', task: act.resumed.task, text: '' };
  if ('cancelled' in act) return { verb: 'cancelled', task: act.cancelled.task, text: '' };
  if ('looked' in act) return { verb: 'read a body', letter: act.looked.letter, text: '', why: act.looked.why };
  // A later server may know more.
  return { verb: Object.keys(act).join(', '), text: '' };
}

/** It changed what is to be done, or somebody looked; the rest is the work itself. */
export function isDecision({ act }: Operation): boolean {
  return !('chosen' in act || 'claimed' in act || 'done' in act);
}
