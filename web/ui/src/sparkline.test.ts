import { expect, test } from 'vitest';

import { sparkline } from './sparkline';

test('the largest stands at the top and zero at the bottom', () => {
  expect(sparkline([0, 5, 10], 100, 22)).toBe('M0 21L50 11L100 1');
});

test('a missing number breaks the line', () => {
  expect(sparkline([1, null, 1], 100, 22)).toBe('M0 1M100 1');
});

test('nothing is drawn of nothing', () => {
  expect(sparkline([], 100, 22)).toBe('');
  expect(sparkline([0], 100, 22)).toBe('M0 21');
});
