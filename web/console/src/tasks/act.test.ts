import { expect, test } from 'vitest';

import type { Act } from '../api/operations';
import { isDecision, told } from './act';
import { sample } from './sample';

test('what was asked for, with its reason', () => {
  expect(told({ begun: sample().begun })).toEqual({
    verb: 'redrive',
    task: 't1790000000000-0000002a',
    text: '10 letters: topic message',
    why: 'the store is back',
  });
  expect(told({ looked: { letter: 'message-0-1', why: 'a complaint' } })).toEqual({
    verb: 'read a body',
    letter: 'message-0-1',
    text: '',
    why: 'a complaint',
  });
  expect(told({ later: {} } as never).verb).toBe('later');
});

test('decisions are told from the work itself', () => {
  const is = (act: Act) => isDecision({ at: 0, by: 'ann', act });
  expect(is({ paused: { task: 't1', why: '' } })).toBe(true);
  expect(is({ looked: { letter: 'message-0-1', why: '' } })).toBe(true);
  expect(is({ claimed: { task: 't1', claims: [] } })).toBe(false);
  expect(is({ done: { task: 't1', outcomes: [] } })).toBe(false);
});
