import { expect, test } from 'vitest';

import { told } from './event';

test('an event that needs no more words', () => {
  expect(told({ type: 'stored_offline' })).toEqual({ name: 'stored offline', tone: 'accent', details: [] });
  expect(told({ type: 'settled' }).tone).toBe('good');
});

test('where a message was placed', () => {
  const event = {
    type: 'placed',
    conversation: 'p:1:2',
    seq: 3,
    from: '1',
    send_id: '67e55044-10b1-426f-9247-bb680e5fe0c8',
    partition: 0,
    offset: 17,
  };
  expect(told(event).details.slice(0, 4)).toEqual([
    ['conversation', 'p:1:2'],
    ['seq', '3'],
    ['from', '1'],
    ['send id', '67e55044-10b1-426f-9247-bb680e5fe0c8'],
  ]);
});

test('a push names its boat', () => {
  const event = { type: 'pushed', session: '192656276478504960', boat: 'boat-1', incarnation: 4, attempt: 1 };
  expect(told(event).details).toEqual([
    ['session', '192656276478504960'],
    ['boat', 'boat-1'],
    ['incarnation', '4'],
    ['attempt', '1'],
  ]);
});

test('a dead letter and a repeat lead further', () => {
  expect(told({ type: 'dead', reason: 'too_large', letter: 'message-0-1' })).toMatchObject({
    tone: 'bad',
    letter: 'message-0-1',
    details: [['reason', 'too large']],
  });
  expect(told({ type: 'repeat', original: '192656276478504960' }).message).toBe('192656276478504960');
});

test('a provider that said no', () => {
  expect(told({ type: 'notification_sent', provider: 'webhook', ok: false })).toMatchObject({
    name: 'notification refused',
    tone: 'warn',
  });
});

test('a field without a value is left out', () => {
  expect(told({ type: 'unchanged', conversation: 'p:1:2', why: null }).details).toEqual([['conversation', 'p:1:2']]);
});

test('what a later server tells is shown as it is', () => {
  expect(told({ type: 'recalled', by: 7 })).toEqual({ name: 'recalled', tone: 'quiet', details: [['by', '7']] });
});
