import { expect, test } from 'vitest';

import type { Letter } from '../api/letters';
import { again } from './again';
import { sample } from './sample';

function letter(id: string, message: string | null): Letter {
  return { id, message } as Letter;
}

test('a new letter of a message that was redriven died again', () => {
  const task = sample({
    told: [
      ['message-0-1', 'to_message'],
      ['message-0-2', 'to_message'],
      ['message-0-3', 'before'],
      ['message-0-4', 'to_message'],
    ],
  });
  const before = [
    letter('message-0-1', '17'),
    letter('message-0-2', '18'),
    letter('message-0-3', '19'),
    letter('message-0-4', null),
    letter('message-0-5', '20'),
  ];
  const since = [letter('message-0-9', '17'), letter('message-0-10', '19'), letter('message-0-11', '20'), letter('x', null)];
  expect(again(task, before, since).map(({ id }) => id)).toEqual(['message-0-9']);
});
