import { expect, test } from 'vitest';

import { atMost, byFilter, byName, isCutOff, PLANNED_MAX } from './selection';

test('a filter takes no more than was planned, letters by name are as many as they are', () => {
  const cause = 'too-large: # bytes';
  expect(atMost(byFilter({ cause }), 3)).toEqual({ type: 'filter', filter: { cause }, limit: 3 });
  const named = byName(['message-0-1', 'message-0-2']);
  expect(atMost(named, 1)).toEqual({ type: 'ids', ids: ['message-0-1', 'message-0-2'] });
});

test('a full plan may not be all', () => {
  expect(isCutOff(byFilter({}), PLANNED_MAX - 1)).toBe(false);
  expect(isCutOff(byFilter({}), PLANNED_MAX)).toBe(true);
  expect(isCutOff(byName(Array<string>(PLANNED_MAX).fill('x')), PLANNED_MAX)).toBe(false);
});
