// Keyboard navigation of a table.

/** Row to focus after a key at row `at` of `count`; `undefined` for other keys. */
export function rowAfter(key: string, at: number, count: number): number | undefined {
  const last = count - 1;
  switch (key) {
    case 'ArrowDown':
      return Math.min(at + 1, last);
    case 'ArrowUp':
      return Math.max(at - 1, 0);
    case 'PageDown':
      return Math.min(at + 10, last);
    case 'PageUp':
      return Math.max(at - 10, 0);
    case 'Home':
      return 0;
    case 'End':
      return last;
    default:
      return undefined;
  }
}
