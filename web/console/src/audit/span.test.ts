import { expect, test } from 'vitest';

import { choiceOf, everyMinute, spanOf } from './span';

const NOW = 1_790_000_000_000;

test('the last hour, unless somebody says otherwise', () => {
  expect(spanOf({}, NOW)).toEqual({ since: NOW - 3_600_000 });
  expect(spanOf({ last: 'day' }, NOW)).toEqual({ since: NOW - 86_400_000 });
  expect(spanOf({ last: 'all' }, NOW)).toEqual({ all: true });
});

test('a chosen time, with one end or two', () => {
  expect(choiceOf({ since: '1000' })).toBe('chosen');
  expect(spanOf({ since: '1000', until: '2000' }, NOW)).toEqual({ since: 1000, until: 2000 });
  expect(spanOf({ until: '2000' }, NOW)).toEqual({ since: undefined, until: 2000 });
  expect(spanOf({ since: 'yesterday' }, NOW)).toEqual({ since: undefined, until: undefined });
});

test('minutes of nothing are filled in', () => {
  const time = (ms: number) => ({ utc: new Date(ms).toISOString(), ms });
  const minute = (ms: number, accepted: number) => ({ at: time(ms), accepted, settled: accepted, in_flight: 0, missing: 0 });
  const filled = everyMinute([minute(60_000, 3), minute(240_000, 1)]);
  expect(filled.map(({ at, accepted }) => [at.ms, accepted])).toEqual([
    [60_000, 3],
    [120_000, 0],
    [180_000, 0],
    [240_000, 1],
  ]);
  expect(everyMinute([])).toEqual([]);
  // Spans from 1970 to today are too long to fill in.
  expect(everyMinute([minute(0, 1), minute(NOW, 1)])).toHaveLength(2);
});
