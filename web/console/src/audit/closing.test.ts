import { expect, test } from 'vitest';

import { told } from './closing';

test('how far minutes are closed', () => {
  expect(told(131)).toEqual({ text: 'The continuous audit has closed all minutes up to 2 min ago.', late: false });
  expect(told(7200)).toEqual({ text: 'The continuous audit has closed all minutes up to 2 h ago.', late: true });
  expect(told(0).text).toContain('not closed a minute yet');
  expect(told(null).text).toContain('audit.continuous');
});
