// Outcomes of a task for one letter, in words.

import type { Outcome } from '../api/tasks';

export interface Told {
  /** True if the letter was redriven, discarded or restored as requested. */
  went: boolean;
  text: string;
}

export function told(outcome: Outcome): Told {
  switch (outcome) {
    case 'to_retry':
      return { went: true, text: 'redriven: delivery will be retried' };
    case 'to_message':
      return { went: true, text: 'redriven: will be placed and delivered' };
    case 'to_notification':
      return { went: true, text: 'redriven: user will be notified again' };
    case 'discarded':
      return { went: true, text: 'discarded' };
    case 'restored':
      return { went: true, text: 'restored' };
    case 'before':
      return { went: false, text: 'already redriven' };
    case 'is_discarded':
      return { went: false, text: 'already discarded' };
    case 'not_discarded':
      return { went: false, text: 'not discarded' };
    case 'final':
      return { went: false, text: 'discarded too long ago' };
    case 'no_such_letter':
      return { went: false, text: 'no such letter' };
    case 'bytes_gone':
      return { went: false, text: 'bytes no longer in the log' };
    case 'belongs_nowhere':
      return { went: false, text: 'names no user: no partition for it' };
    default:
      // Unknown outcome of a later server.
      return { went: false, text: String(outcome) };
  }
}

/** True if the letter was published again. */
export function isRedriven(outcome: Outcome): boolean {
  return outcome === 'to_retry' || outcome === 'to_message' || outcome === 'to_notification';
}
