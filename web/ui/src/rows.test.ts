import { expect, test } from 'vitest';

import { rowAfter } from './rows';

test('the arrows stop at both ends', () => {
  expect(rowAfter('ArrowDown', 0, 3)).toBe(1);
  expect(rowAfter('ArrowDown', 2, 3)).toBe(2);
  expect(rowAfter('ArrowUp', 0, 3)).toBe(0);
  expect(rowAfter('PageDown', 1, 30)).toBe(11);
  expect(rowAfter('End', 0, 3)).toBe(2);
  expect(rowAfter('Home', 2, 3)).toBe(0);
});

test('other keys are left to others', () => {
  expect(rowAfter('a', 0, 3)).toBeUndefined();
});
