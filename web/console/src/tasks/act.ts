// Lines of the operations log in words.

import { counted } from '../amount';
import type { Act } from '../api/operations';
import { meant } from './meant';

export interface Told {
  /** Action, such as `paused`. */
  verb: string;
  /** Task that the line is about. */
  task?: string;
  /** Letter that the line is about. */
  letter?: string;
  text: string;
  why?: string;
}

export function told(act: Act): Told {
  if ('begun' in act) {
    const { work, task, why } = act.begun;
    return { verb: work, task, text: meant(act.begun), why };
  }
  if ('chosen' in act) return { verb: 'selected', task: act.chosen.task, text: counted(act.chosen.letters.length, 'letter') };
  if ('claimed' in act) return { verb: 'claimed', task: act.claimed.task, text: counted(act.claimed.claims.length, 'letter') };
  if ('done' in act) return { verb: 'processed', task: act.done.task, text: counted(act.done.outcomes.length, 'letter') };
  if ('paused' in act) return { verb: 'paused', task: act.paused.task, text: '', why: act.paused.why };
  if ('resumed' in act) return { verb: 'resumed', task: act.resumed.task, text: '' };
  if ('cancelled' in act) return { verb: 'cancelled', task: act.cancelled.task, text: '' };
  if ('looked' in act) return { verb: 'read body', letter: act.looked.letter, text: '', why: act.looked.why };
  if ('exported' in act) {
    const { from, letters, why } = act.exported;
    return { verb: 'exported', letter: from, text: counted(letters, 'letter'), why };
  }
  if ('imported' in act) return { verb: 'imported', text: counted(act.imported.letters.length, 'letter'), why: act.imported.why };
  if ('drained' in act) {
    const { boat, cancel } = act.drained;
    return { verb: cancel ? 'drain cancelled' : 'drain', text: boat };
  }
  if ('signed_out' in act) {
    const { user, platform, revoked_before, why, outcome } = act.signed_out;
    const on = platform === undefined ? '' : ` on ${platform}`;
    if (outcome !== undefined) return { verb: 'signed out', text: `user ${user}${on}: ${outcome}`, why };
    const tokens = revoked_before === undefined ? '' : ', tokens revoked';
    return { verb: 'signed out', text: `user ${user}${on}${tokens}`, why };
  }
  if ('repaired' in act) {
    const { user, what, why } = act.repaired;
    return { verb: 'repaired', text: `user ${user}: ${what.join('; ')}`, why };
  }
  if ('edited' in act) {
    const { letter, fields, why } = act.edited;
    return { verb: 'edited', letter, text: fields.join(', '), why };
  }
  if ('died_again' in act) {
    const { task, letters } = act.died_again;
    return { verb: 'observed', task, text: `${counted(letters.length, 'letter')} died again` };
  }
  if ('forgotten' in act) return { verb: 'dropped', text: counted(act.forgotten.letters.length, 'letter') };
  // Unknown action of a later server.
  return { verb: Object.keys(act).join(', '), text: '' };
}
