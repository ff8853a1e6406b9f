import { expect, test } from 'vitest';

import { amount, bytes, counted, seconds } from './amount';

test('amounts', () => {
  expect(amount(0)).toBe('0');
  expect(amount(0.52)).toBe('0.5');
  expect(amount(1234)).toBe('1,234');
  expect(amount(123.4)).toBe('123');
  expect(amount(45_678)).toBe('45.7 k');
  expect(amount(2_000_000)).toBe('2 M');
});

test('lengths of time', () => {
  expect(seconds(0)).toBe('0');
  expect(seconds(0.00042)).toBe('0.4 ms');
  expect(seconds(0.012)).toBe('12 ms');
  expect(seconds(1.25)).toBe('1.3 s');
});

test('bytes', () => {
  expect(bytes(17)).toBe('17 B');
  expect(bytes(2048)).toBe('2 KiB');
  expect(bytes(3_500_000)).toBe('3.3 MiB');
});

test('one and many', () => {
  expect(counted(1, 'letter')).toBe('1 letter');
  expect(counted(2000, 'letter')).toBe('2,000 letters');
});
