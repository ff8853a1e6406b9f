import { expect, test } from 'vitest';

import { stacked } from './stack';

test('the first is the sum of all, the last stands alone', () => {
  expect(stacked([[1, 2], [10, null], [100, 0]])).toEqual([
    [111, 2],
    [110, 0],
    [100, 0],
  ]);
  expect(stacked([])).toEqual([]);
});
