import { expect, test } from 'vitest';

import { changesOf, doneOf, pauseOf, pauseOfAll, titleOf, told } from './progress';
import { sample } from './sample';

const PAUSED = sample({ state: { type: 'paused', by: 'packetboat-1', why: '5 of 20 that were redriven died again' } });
const OVER = sample({ state: { type: 'over' } });
const CANCELLED = sample({ state: { type: 'cancelled', by: 'ann' } });

test('what a task can be told', () => {
  expect(changesOf(sample())).toEqual(['pause', 'cancel']);
  expect(changesOf(PAUSED)).toEqual(['resume', 'cancel']);
  expect(changesOf(sample({ state: { type: 'choosing' } }))).toEqual(['cancel']);
  expect(changesOf(OVER)).toEqual([]);
  expect(told(OVER.state).word).toBe('over');
  expect(titleOf(OVER)).toBe('Redrive of 10 letters');
});

test('how many letters came to an end', () => {
  expect(doneOf(sample({ outcomes: { to_retry: 3, bytes_gone: 1 } }))).toBe(4);
});

test('a task is looked at while something can change', () => {
  expect(pauseOf(sample())).toBe(1000);
  expect(pauseOf(PAUSED)).toBe(5000);
  expect(pauseOf(OVER, 0)).toBeUndefined();
  expect([0, 1, 2, 3].map((seen) => pauseOf(CANCELLED, seen))).toEqual([1000, 1000, 1000, undefined]);
});

test('a list of tasks is looked at as often as its liveliest needs, but not too often', () => {
  expect(pauseOfAll([OVER, PAUSED, sample()])).toBe(2000);
  expect(pauseOfAll([OVER, PAUSED])).toBe(5000);
  expect(pauseOfAll([OVER, CANCELLED])).toBeUndefined();
  expect(pauseOfAll([])).toBeUndefined();
});
