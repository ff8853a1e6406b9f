import { expect, test } from 'vitest';

import { told } from './act';
import { sample } from './sample';

test('what was asked for, with its reason', () => {
  expect(told({ begun: sample().begun })).toEqual({
    verb: 'redrive',
    task: 't1790000000000-0000002a',
    text: '10 letters: topic message',
    why: 'the store is back',
  });
  expect(told({ looked: { letter: 'message-0-1', why: 'a complaint' } })).toEqual({
    verb: 'read body',
    letter: 'message-0-1',
    text: '',
    why: 'a complaint',
  });
  expect(told({ later: {} } as never).verb).toBe('later');
});

test('an edit names the letter and its fields', () => {
  const edited = { letter: 'message-0-1', fields: ['message.message.fromId'], why: 'a slip' };
  expect(told({ edited })).toEqual({ verb: 'edited', letter: 'message-0-1', text: 'message.message.fromId', why: 'a slip' });
  expect(told({ died_again: { task: 't1', letters: ['message-0-9'] } }).text).toBe('1 letter died again');
});
