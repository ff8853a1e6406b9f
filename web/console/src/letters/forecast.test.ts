import { expect, test } from 'vitest';

import type { Plan } from '../api/plan';
import { dying, going, told } from './forecast';

test('a forecast in the words of the documentation', () => {
  expect(told({ type: 'deliver' }).name).toBe('would be pushed');
  expect(told({ type: 'already_there' })).toMatchObject({ tone: 'quiet', name: 'would change nothing' });
  expect(told({ type: 'fail_again', cause: 'too-large: 2210 bytes, at most 512 are taken' })).toEqual({
    tone: 'bad',
    name: 'would die again',
    text: 'too-large: 2210 bytes, at most 512 are taken',
  });
  expect(told({ type: 'left_alone', outcome: 'is_discarded' }).text).toBe('already discarded');
});

test('what a later server forecasts is shown as it is', () => {
  expect(told({ type: 'postponed' } as never).name).toBe('postponed');
});

test('how many would go, and how many of them would die again', () => {
  const plan: Plan = {
    letters: 9,
    forecasts: [
      { forecast: { type: 'place' }, letters: 4, sample: [] },
      { forecast: { type: 'fail_again', cause: 'undecodable: a' }, letters: 2, sample: [] },
      { forecast: { type: 'fail_again', cause: 'misplaced: b' }, letters: 1, sample: [] },
      { forecast: { type: 'left_alone', outcome: 'bytes_gone' }, letters: 2, sample: [] },
    ],
  };
  expect(going(plan)).toBe(7);
  expect(dying(plan)).toBe(3);
});
