import { expect, test } from 'vitest';

import type { Action } from '../api/operations';
import { told } from './act';
import { sample } from './sample';

test('what was asked for, with its reason', () => {
  const { id, work, letters, selection, why } = sample();
  expect(told({ type: 'begun', task: id, work, letters, selection, why })).toEqual({
    verb: 'redrive',
    task: 't1790000000000-0000002a',
    text: '10 letters: topic message',
    why: 'the store is back',
  });
  expect(told({ type: 'looked', letter: 'message-0-1', why: 'a complaint' })).toEqual({
    verb: 'read body',
    letter: 'message-0-1',
    text: '',
    why: 'a complaint',
  });
  expect(told({ type: 'later' } as never).verb).toBe('later');
});

test('an edit names the letter and its fields', () => {
  const edited: Action = { type: 'edited', letter: 'message-0-1', fields: ['message.message.fromId'], why: 'a slip' };
  expect(told(edited)).toEqual({ verb: 'edited', letter: 'message-0-1', text: 'message.message.fromId', why: 'a slip' });
  expect(told({ type: 'died_again', task: 't1', letters: ['message-0-9'] }).text).toBe('1 letter died again');
});

test('a sign-out says what it ended, once it is over', () => {
  const asked: Action = { type: 'signed_out', user: '7', platform: null, revoked_before: null, why: 'theft', outcome: null };
  expect(told(asked)).toEqual({ verb: 'signed out', text: 'user 7', why: 'theft' });
  const revoked = { ...asked, revoked_before: { utc: '1970-01-01T00:00:00.007Z', ms: 7 } };
  expect(told(revoked).text).toBe('user 7, tokens revoked');
  expect(told({ ...asked, platform: 'ios', outcome: '1 sessions end' }).text).toBe('user 7 on ios: 1 sessions end');
});
