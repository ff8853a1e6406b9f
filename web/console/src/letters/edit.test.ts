import { expect, test } from 'vitest';

import type { Changed, Envelope } from '../api/envelope';
import { beginning, linesOf, next } from './edit';

const changed = (diff: string): Changed => ({ version: 'b', diff, fields: [], flaw: null, done: false });

test('a difference is told by line', () => {
  const diff = '--- before\n+++ after\n@@ -1,3 +1,3 @@\n {\n-  "user": "-7"\n+  "user": "7"\n }\n';
  expect(linesOf(diff).map(({ kind }) => kind)).toEqual(['place', 'same', 'old', 'new', 'same']);
  expect(linesOf('')).toEqual([]);
});

test('a line that begins as a head does is one all the same', () => {
  expect(linesOf('--- before\n+++ after\n@@ -1 +1 @@\n--- "a"\n+++ "b"').map(({ kind }) => kind)).toEqual(['place', 'old', 'new']);
});

test('a whole envelope is written where there is none', () => {
  expect(beginning({ text: null } as Envelope)).toBe('{}');
  expect(beginning({ text: '{"retryCount": 1}' } as Envelope)).toBe('{"retryCount": 1}');
});

test('what is kept was shown before', () => {
  expect(next(undefined, '', '{}')).toBe('show');
  expect(next(changed('@@'), '{}', '{}')).toBe('keep');
  expect(next(changed('@@'), '{}', '{ }')).toBe('show');
  expect(next(changed(''), '{}', '{}')).toBe('nothing');
});
