// Sparkline as an SVG path.

/** Path scaled from zero to the largest value; a missing value breaks the line. */
export function sparkline(values: readonly (number | null)[], width: number, height: number): string {
  const most = Math.max(...values.map((value) => value ?? 0), 0) || 1;
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  // Margin for the stroke, which the edge would cut in half.
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
