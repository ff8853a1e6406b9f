import { expect, test } from 'vitest';

import { wantedOf } from './wanted';

test('open letters, unless others are asked for', () => {
  expect(wantedOf({})).toMatchObject({ redriven: false, discarded: false });
  expect(wantedOf({ show: 'redriven', topic: 'notification' })).toMatchObject({
    redriven: true,
    topic: 'notification',
  });
  expect(wantedOf({ show: 'all', after: 'message-0-17' })).toMatchObject({
    redriven: undefined,
    after: 'message-0-17',
  });
});
