import { expect, test } from 'vitest';

import type { CauseSummary } from '../api/letters';
import { byUrgency, openOf, partsOfCause, told } from './cause';

function cause(letters: number, redriven: number, discarded: number): CauseSummary {
  const time = (ms: number) => ({ utc: new Date(ms).toISOString(), ms });
  const summary = { letters, redriven, discarded, oldest: time(1), newest: time(2) };
  return { kind: 'message', cause: `refused: ${letters}`, summary, example: 'message-0-1' };
}

test('what nobody has dealt with comes first', () => {
  const [done, some] = [cause(100, 90, 10), cause(5, 1, 1)];
  expect(openOf(some)).toBe(3);
  expect(byUrgency([done, some])).toEqual([some, done]);
});

test('a cause is a reason and an error', () => {
  expect(partsOfCause('too-large: # bytes: at most #')).toEqual({ reason: 'too-large', error: '# bytes: at most #' });
  expect(partsOfCause('expired')).toEqual({ reason: 'expired', error: '' });
});

test('what was dealt with, and how', () => {
  expect(told(cause(9, 2, 1), 300_002)).toBe('open of 9 messages, 2 redriven, 1 discarded, newest 5 min ago');
  expect(told(cause(1, 0, 0), 2)).toBe('open of 1 message, newest just now');
});
