import { expect, test } from 'vitest';

import { told } from './event';

test('an event that needs no more words', () => {
  expect(told('StoredOffline')).toEqual({ name: 'stored offline', tone: 'accent', details: [] });
  expect(told('Settled').tone).toBe('good');
});

test('where a message was placed', () => {
  const event = {
    Placed: {
      conversation: { Private: { low: 1, high: 2 } },
      seq: 3,
      from: 1,
      send_id: '67e55044-10b1-426f-9247-bb680e5fe0c8',
      partition: 0,
      offset: 17,
    },
  };
  expect(told(event).details.slice(0, 2)).toEqual([
    ['conversation', 'p:1:2'],
    ['seq', '3'],
  ]);
  expect(told({ Placed: { conversation: { Group: 7 } } }).details).toEqual([['conversation', 'g:7']]);
});

test('a push names its boat', () => {
  const event = { Pushed: { session: '192656276478504960', life: { boat: 'boat-1', incarnation: 4 }, attempt: 1 } };
  expect(told(event).details).toEqual([
    ['session', '192656276478504960'],
    ['life', 'boat-1/4'],
    ['attempt', '1'],
  ]);
});

test('a dead letter and a repeat lead further', () => {
  expect(told({ Dead: { reason: 'TooLarge', letter: 'message-0-1' } })).toMatchObject({
    tone: 'bad',
    letter: 'message-0-1',
    details: [['reason', 'too large']],
  });
  expect(told({ Repeat: { of: '192656276478504960' } }).message).toBe('192656276478504960');
});

test('a provider that said no', () => {
  expect(told({ NotificationSent: { provider: 'webhook', ok: false } })).toMatchObject({
    name: 'notification refused',
    tone: 'warn',
  });
});

test('what a later server tells is shown as it is', () => {
  expect(told({ Recalled: { by: 7 } })).toEqual({ name: 'recalled', tone: 'quiet', details: [['by', '7']] });
});
