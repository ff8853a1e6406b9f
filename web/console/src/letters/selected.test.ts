import { expect, test } from 'vitest';

import { byFilter, byName } from '../api/selection';
import { partsOf, question, secondsAt, wrongLimit, wrongRate, wrongShare } from './selected';

test('letters by name are counted, others are told by what they have in common', () => {
  expect(question({ work: 'discard', selection: byName(['a']) })).toBe('Discard 1 letter?');
  expect(question({ work: 'redrive', selection: byName(['a', 'b']) })).toBe('Redrive 2 letters?');
  expect(question({ work: 'restore', selection: byFilter({}) })).toBe('Restore all matching letters?');
  expect(question({ work: 'redrive', selection: byFilter({}), what: 'all letters of this cause' })).toBe(
    'Redrive all letters of this cause?',
  );
});

test('what letters have in common', () => {
  const until = new Date(2026, 2, 1, 9, 5).getTime();
  const filter = { kind: 'message', reason: 'too_large', cause: 'expired', user: '12', until, redriven: false, discarded: false } as const;
  expect(partsOf(filter)).toEqual([
    ['topic', 'message'],
    ['reason', 'too-large'],
    ['cause', 'expired'],
    ['user', '12'],
    ['failed before', '2026-03-01 09:05:00'],
  ]);
});

test('numbers that the desk would not take', () => {
  expect([1, 1000].map(wrongRate)).toEqual([undefined, undefined]);
  expect([0, 1001, 2.5, null, undefined].map((rate) => wrongRate(rate))).toEqual(Array(5).fill('Enter a whole number from 1 to 1,000.'));
  expect(wrongShare(0)).toBeUndefined();
  expect(wrongShare(101)).toBe('Enter a whole number from 0 to 100.');
  expect(wrongLimit(10_001)).toBe('Enter a whole number from 1 to 10,000.');
});

test('how long it takes', () => {
  expect(secondsAt(1000, 50)).toBe(20);
  expect(secondsAt(1, 50)).toBe(1);
});
