import { expect, test } from 'vitest';

import { secondsLeft, seen, speedOf, type Sight } from './speed';

test('the speed of the last seconds', () => {
  let sights: Sight[] = [];
  expect(speedOf(sights)).toBeNull();
  for (const [at, done] of [[0, 0], [1000, 20], [2000, 40], [11_500, 100]] as const) sights = seen(sights, { at, done });
  // Sights one and two are outside the window.
  expect(sights).toHaveLength(2);
  expect(speedOf(sights)).toBeCloseTo(60 / 9.5);
});

test('one sight, or two at once, tell nothing', () => {
  expect(speedOf([{ at: 1000, done: 3 }])).toBeNull();
  expect(speedOf([{ at: 1000, done: 3 }, { at: 1200, done: 9 }])).toBeNull();
});

test('how long it takes still', () => {
  expect(secondsLeft(100, 12.5, 50)).toBe(8);
  expect(secondsLeft(100, null, 50)).toBe(2);
  expect(secondsLeft(100, 0, 50)).toBe(2);
});
