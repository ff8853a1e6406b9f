import { expect, test } from 'vitest';

import { isTheme, nextTheme } from './theme';

test('the toggle goes round', () => {
  expect(nextTheme('auto')).toBe('light');
  expect(nextTheme('light')).toBe('dark');
  expect(nextTheme('dark')).toBe('auto');
});

test('what somebody else stored is no theme', () => {
  expect(isTheme('dark')).toBe(true);
  expect(isTheme('solarized')).toBe(false);
  expect(isTheme(null)).toBe(false);
});
