import { expect, test } from 'vitest';

import { parseJson, writeJson } from './json';

test('an id keeps all its digits', () => {
  expect(parseJson('{"message":192656276478504961,"of":-9223372036854775808}')).toEqual({
    message: '192656276478504961',
    of: '-9223372036854775808',
  });
});

test('times, counts and fractions stay numbers', () => {
  expect(parseJson('[1790000000000, 0, -1, 0.12345678901234567890, 1e21]')).toEqual([
    1790000000000, 0, -1, 0.12345678901234568, 1e21,
  ]);
});

test('what people wrote is left alone', () => {
  const text = 'say \\"192656276478504961\\": 192656276478504961';
  expect(parseJson(`{"error":"${text}"}`)).toEqual({
    error: 'say "192656276478504961": 192656276478504961',
  });
});

test('an id is written with all its digits, and what is not set is not written', () => {
  const value = { user: 9007199254740993n, text: 'a "b"', none: undefined, ids: ['x', null], deep: { yes: true } };
  expect(writeJson(value)).toBe('{"user":9007199254740993,"text":"a \\"b\\"","ids":["x",null],"deep":{"yes":true}}');
});
