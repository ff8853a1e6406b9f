import { expect, test } from 'vitest';

import { isRedriven, told } from './outcome';

test('what is on its way, and how', () => {
  expect(told('to_retry')).toEqual({ went: true, text: 'redriven: delivery will be retried' });
  expect(told('to_message').text).toContain('placed and delivered');
  expect(told('to_notification').text).toContain('notified again');
  expect(isRedriven('to_notification')).toBe(true);
});

test('what was put away, and what came back', () => {
  for (const outcome of ['discarded', 'restored'] as const) {
    expect(told(outcome)).toEqual({ went: true, text: outcome });
    expect(isRedriven(outcome)).toBe(false);
  }
});

test('what stayed where it was', () => {
  const stayed = ['before', 'is_discarded', 'not_discarded', 'final', 'no_such_letter', 'bytes_gone', 'belongs_nowhere'];
  for (const outcome of stayed) expect(told(outcome as 'before').went).toBe(false);
});
