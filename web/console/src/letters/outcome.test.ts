import { expect, test } from 'vitest';

import { told } from './outcome';

test('what is on its way, and how', () => {
  expect(told('to_retry')).toEqual({ went: true, text: 'on its way: its delivery is tried again' });
  expect(told('to_message').text).toContain('placed and delivered');
  expect(told('to_notification').text).toContain('told again');
});

test('what stayed where it was', () => {
  for (const outcome of ['before', 'is_discarded', 'no_such_letter', 'bytes_gone', 'belongs_nowhere'] as const) {
    expect(told(outcome).went).toBe(false);
  }
});
