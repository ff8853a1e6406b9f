import { expect, test } from 'vitest';

import { isFiltered, shownOf, wantedOf, workedOf } from './wanted';

const NOW = 1_790_000_000_000;

test('open letters, unless others are asked for', () => {
  expect(wantedOf({}, NOW)).toMatchObject({ redriven: false, discarded: false });
  expect(wantedOf({ show: 'redriven', topic: 'notification' }, NOW)).toMatchObject({
    redriven: true,
    kind: 'notification',
  });
  expect(wantedOf({ show: 'discarded' }, NOW)).toMatchObject({ discarded: true });
  const all = wantedOf({ show: 'all', user: '12' }, NOW);
  expect([all.redriven, all.discarded, all.user]).toEqual([undefined, undefined, '12']);
  expect(shownOf({ show: 'whatever' })).toBe('open');
});

test('only those with which it can be done', () => {
  const query = { show: 'all', cause: 'too-large: # bytes' };
  const cause = 'too-large: # bytes';
  expect(workedOf(query, 'redrive', NOW)).toMatchObject({ cause, redriven: false, discarded: false });
  expect(workedOf(query, 'discard', NOW)).toMatchObject({ cause, redriven: false, discarded: false });
  expect(workedOf(query, 'restore', NOW)).toMatchObject({ cause, redriven: false, discarded: true });
});

test('when they died', () => {
  expect(wantedOf({ died: 'hour' }, NOW)).toMatchObject({ since: NOW - 3_600_000 });
  expect(wantedOf({ died: 'before-day' }, NOW)).toMatchObject({ until: NOW - 86_400_000 });
  expect(wantedOf({ died: '1789999999999' }, NOW)).toMatchObject({ since: 1_789_999_999_999 });
});

test('what cannot be understood lets nothing through', () => {
  expect(wantedOf({ user: 'ann' }, NOW).user).toBe('0');
  expect(wantedOf({ died: 'never' }, NOW)).toMatchObject({ until: 0 });
});

test('a filter is more than what is shown', () => {
  expect(isFiltered({ show: 'all', after: 'message-0-1' })).toBe(false);
  expect(isFiltered({ text: 'timeout' })).toBe(true);
});
