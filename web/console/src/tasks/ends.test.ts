import { expect, test } from 'vitest';

import { endsOf } from './ends';
import { sample } from './sample';

test('letters by their end, those that did not go first', () => {
  const task = sample({
    outcomes: { to_message: 1200, bytes_gone: 1, before: 2 },
    told: [
      ['message-0-1', 'to_message'],
      ['message-0-2', 'bytes_gone'],
      ['message-0-3', 'before'],
      ['message-0-4', 'before'],
    ],
  });
  expect(endsOf(task)).toEqual([
    { outcome: 'before', count: 2, letters: ['message-0-3', 'message-0-4'] },
    { outcome: 'bytes_gone', count: 1, letters: ['message-0-2'] },
    { outcome: 'to_message', count: 1200, letters: ['message-0-1'] },
  ]);
});

test('nothing has an end yet', () => {
  expect(endsOf(sample())).toEqual([]);
});
