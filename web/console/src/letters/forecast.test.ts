import { expect, test } from 'vitest';

import type { Plan } from '../api/plan';
import { dying, going, told } from './forecast';

test('a forecast in the words of the documentation', () => {
  expect(told('deliver').name).toBe('would be pushed');
  expect(told('already_there')).toMatchObject({ tone: 'quiet', name: 'would reach nobody new' });
  expect(told({ fail_again: 'too-large: 2210 bytes, at most 512 are taken' })).toEqual({
    tone: 'bad',
    name: 'would die again',
    text: 'too-large: 2210 bytes, at most 512 are taken',
  });
  expect(told({ left_alone: 'is_discarded' }).text).toBe('already discarded');
});

test('what a later server forecasts is shown as it is', () => {
  expect(told({ postponed: 'x' } as never).name).toBe('postponed');
});

test('how many would go, and how many of them would die again', () => {
  const plan: Plan = {
    letters: 9,
    forecasts: [
      { forecast: 'place', letters: 4, sample: [] },
      { forecast: { fail_again: 'undecodable: a' }, letters: 2, sample: [] },
      { forecast: { fail_again: 'misplaced: b' }, letters: 1, sample: [] },
      { forecast: { left_alone: 'bytes_gone' }, letters: 2, sample: [] },
    ],
  };
  expect(going(plan)).toBe(7);
  expect(dying(plan)).toBe(3);
});
