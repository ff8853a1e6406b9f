import { expect, test } from 'vitest';

import { after, ago, fromLocal, moment, toLocal } from './when';

test('how long ago something was', () => {
  const now = 1_790_000_000_000;
  expect(ago(now - 2_000, now)).toBe('just now');
  expect(ago(now - 42_000, now)).toBe('42 s ago');
  expect(ago(now - 5 * 60_000, now)).toBe('5 min ago');
  expect(ago(now - 7 * 3_600_000, now)).toBe('7 h ago');
  expect(ago(now - 5 * 86_400_000, now)).toBe('5 days ago');
  // Clocks of server and browser may disagree.
  expect(ago(now + 10_000, now)).toBe('just now');
});

test('how long after the beginning', () => {
  expect(after(0)).toBe('+0 ms');
  expect(after(12)).toBe('+12 ms');
  expect(after(3_420)).toBe('+3.4 s');
  expect(after(180_000)).toBe('+3 min');
  expect(after(-3)).toBe('−3 ms');
});

test('a moment survives the form in which it is edited', () => {
  const at = new Date(2026, 2, 1, 9, 5).getTime();
  expect(moment(at)).toBe('2026-03-01 09:05:00');
  expect(moment(at + 7, true)).toBe('2026-03-01 09:05:00.007');
  expect(fromLocal(toLocal(at))).toBe(at);
  expect(fromLocal('')).toBeUndefined();
});
