import { expect, test } from 'vitest';

import { address, parseRoute } from './route';

test('an address leads back to where it was made', () => {
  const hash = address('dead-letters', undefined, { topic: 'message', reason: 'too-large', after: undefined });
  expect(hash).toBe('#/dead-letters?topic=message&reason=too-large');
  expect(parseRoute(hash)).toEqual({ place: 'dead-letters', query: { topic: 'message', reason: 'too-large' } });
});

test('an id goes through unharmed', () => {
  for (const id of ['192656276478504960', 'retry-2-0-17-ab/c d', '67e55044-10b1-426f-9247-bb680e5fe0c8']) {
    expect(parseRoute(address('trace', id)).id).toBe(id);
  }
});

test('what nobody knows is the overview', () => {
  expect(parseRoute('').place).toBe('overview');
  expect(parseRoute('#/settings').place).toBe('overview');
  expect(parseRoute('#/trace/%E0%A4%A').id).toBe('%E0%A4%A');
});
