// Columns that stand on each other.

/**
 * Each column with all those after it, so that the first is the tallest: drawn in this order, every later one leaves
 * the part of the one before to be seen.
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
