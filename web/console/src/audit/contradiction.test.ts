import { expect, test } from 'vitest';

import type { Contradiction } from '../api/audit';
import { idsIn, sentenceOf } from './contradiction';

const TWICE: Contradiction = { type: 'placed_twice', message: '12' };
const REUSED: Contradiction = {
  type: 'seq_reused',
  conversation: 'p:1:2',
  seq: 3,
  messages: ['12', '192656276478504960'],
};

test('a contradiction is a sentence', () => {
  expect(sentenceOf(TWICE)).toBe('Message 12 has two positions.');
  expect(sentenceOf(REUSED)).toBe('Position 3 of p:1:2 has two messages, 12 and 192656276478504960.');
});

test('a contradiction leads to its messages', () => {
  expect(idsIn(TWICE)).toEqual(['12']);
  expect(idsIn(REUSED)).toEqual(['12', '192656276478504960']);
});

test('what a later server finds is shown as it is', () => {
  const later = { type: 'placed_nowhere' } as never;
  expect(sentenceOf(later)).toBe('{"type":"placed_nowhere"}');
  expect(idsIn(later)).toEqual([]);
});
