// Stacked columns.

/**
 * Adds to each column all columns after it, so that the first is the tallest. Drawn in this order, each
 * column leaves its part of the one before visible.
 */
export function stacked(columns: readonly (readonly (number | null)[])[]): number[][] {
  const sums: number[][] = [];
  let below: number[] = [];
  for (const column of [...columns].reverse()) {
    below = column.map((value, index) => (value ?? 0) + (below[index] ?? 0));
    sums.unshift(below);
  }
  return sums;
}
