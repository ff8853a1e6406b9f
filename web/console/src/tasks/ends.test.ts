import { expect, test } from 'vitest';

import { endsOf } from './ends';
import { sample } from './sample';

test('letters by their end, those that did not go first', () => {
  const task = sample({
    outcomes: { to_message: 1200, bytes_gone: 1, before: 2 },
    results: {
      items: [
        { id: 'message-0-1', outcome: 'to_message' },
        { id: 'message-0-2', outcome: 'bytes_gone' },
        { id: 'message-0-3', outcome: 'before' },
        { id: 'message-0-4', outcome: 'before' },
      ],
      truncated: 1199,
    },
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
