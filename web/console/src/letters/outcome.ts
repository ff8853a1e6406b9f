// What became of a letter that something was to be done with.

import type { Outcome } from '../api/tasks';

export interface Told {
  /** What was asked for was done. */
  went: boolean;
  text: string;
}

export function told(outcome: Outcome): Told {
  switch (outcome) {
    case 'to_retry':
      return { went: true, text: 'on its way: its delivery is tried again' };
    case 'to_message':
      return { went: true, text: 'on its way: it will be placed and delivered' };
    case 'to_notification':
      return { went: true, text: 'on its way: its user is told again' };
    case 'discarded':
      return { went: true, text: 'discarded' };
    case 'restored':
      return { went: true, text: 'restored' };
    case 'before':
      return { went: false, text: 'left alone: it was redriven before' };
    case 'is_discarded':
      return { went: false, text: 'left alone: it is discarded' };
    case 'not_discarded':
      return { went: false, text: 'left alone: it is not discarded' };
    case 'final':
      return { went: false, text: 'it was discarded too long ago' };
    case 'no_such_letter':
      return { went: false, text: 'no such letter' };
    case 'bytes_gone':
      return { went: false, text: 'its bytes are gone: the log has dropped them' };
    case 'belongs_nowhere':
      return { went: false, text: 'it names nobody: there is no place for it' };
    default:
      // A later server may know more.
      return { went: false, text: String(outcome) };
  }
}

/** It was published again. */
export function isRedriven(outcome: Outcome): boolean {
  return outcome === 'to_retry' || outcome === 'to_message' || outcome === 'to_notification';
}
