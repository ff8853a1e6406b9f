// A line through numbers, as an SVG path.

/** From zero to the largest of them; a missing number breaks the line. */
export function sparkline(values: readonly (number | null)[], width: number, height: number): string {
  const most = Math.max(...values.map((value) => value ?? 0), 0) || 1;
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  // A line at the edge would lose half its width.
  const inside = height - 2;
  let path = '';
  let open = false;
  values.forEach((value, index) => {
    if (value === null) {
      open = false;
      return;
    }
    const x = round(index * step);
    const y = round(1 + inside - (value / most) * inside);
    path += `${open ? 'L' : 'M'}${x} ${y}`;
    open = true;
  });
  return path;
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}
