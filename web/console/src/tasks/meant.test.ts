import { expect, test } from 'vitest';

import { meant } from './meant';
import { sample } from './sample';

const about = (selection: string) => meant(sample({ letters: 3, selection }));

test('a filter, without what goes without saying', () => {
  expect(about('at most 50: cause too-large: # bytes, at most # are taken, discarded false, kind message, redriven false')).toBe(
    '3 letters: cause too-large: # bytes, at most # are taken, topic message',
  );
  expect(about('at most 50: discarded false, reason expired, redriven false')).toBe('3 letters: reason expired');
  expect(about('at most 50: discarded true, redriven false')).toBe('3 letters: no filter');
});

test('letters by name', () => {
  expect(about('message-0-17')).toBe('message-0-17');
  expect(about('3 letters by name')).toBe('3 letters by name');
});
