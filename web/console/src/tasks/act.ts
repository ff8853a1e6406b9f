// Lines of the operations log in words.

import { counted } from '../amount';
import type { Action } from '../api/operations';
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

export function told(action: Action): Told {
  switch (action.type) {
    case 'begun':
      return { verb: action.work, task: action.task, text: meant(action), why: action.why };
    case 'chosen':
      return { verb: 'selected', task: action.task, text: counted(action.letters.length, 'letter') };
    case 'claimed':
      return { verb: 'claimed', task: action.task, text: counted(action.claims.length, 'letter') };
    case 'done':
      return { verb: 'processed', task: action.task, text: counted(action.outcomes.length, 'letter') };
    case 'paused':
      return { verb: 'paused', task: action.task, text: '', why: action.why };
    case 'resumed':
    case 'cancelled':
      return { verb: action.type, task: action.task, text: '' };
    case 'looked':
      return { verb: 'read body', letter: action.letter, text: '', why: action.why };
    case 'exported':
      return { verb: 'exported', letter: action.from, text: counted(action.letters, 'letter'), why: action.why };
    case 'imported':
      return { verb: 'imported', text: counted(action.letters.length, 'letter'), why: action.why };
    case 'drained':
      return { verb: action.cancel ? 'drain cancelled' : 'drain', text: action.boat };
    case 'signed_out': {
      const { user, platform, revoked_before, why, outcome } = action;
      const on = platform === null ? '' : ` on ${platform}`;
      const tokens = revoked_before === null ? '' : ', tokens revoked';
      return { verb: 'signed out', text: `user ${user}${on}${outcome === null ? tokens : `: ${outcome}`}`, why };
    }
    case 'repaired':
      return { verb: 'repaired', text: `user ${action.user}: ${action.steps.join('; ')}`, why: action.why };
    case 'edited':
      return { verb: 'edited', letter: action.letter, text: action.fields.join(', '), why: action.why };
    case 'died_again':
      return { verb: 'observed', task: action.task, text: `${counted(action.letters.length, 'letter')} died again` };
    case 'forgotten':
      return { verb: 'dropped', text: counted(action.letters.length, 'letter') };
    default: {
      // Unknown action of a later server.
      const { type }: { type: string } = action;
      return { verb: type, text: '' };
    }
  }
}
