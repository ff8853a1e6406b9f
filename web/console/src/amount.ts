// Numbers in short form.

/** Formats as `1,234` or `12.3 k`; small values keep one decimal. */
export function amount(value: number): string {
  const size = Math.abs(value);
  if (size >= 1_000_000) return `${trimmed(value / 1_000_000)} M`;
  if (size >= 10_000) return `${trimmed(value / 1000)} k`;
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString('en');
  return trimmed(value);
}

/** Formats seconds as `0.4 ms`, `12 ms`, `1.3 s`. */
export function seconds(value: number): string {
  if (value === 0) return '0';
  if (value < 1) {
    const millis = value * 1000;
    return `${millis < 10 ? trimmed(millis) : Math.round(millis)} ms`;
  }
  return `${trimmed(value)} s`;
}

export function bytes(value: number): string {
  if (value < 1024) return `${Math.round(value)} B`;
  if (value < 1024 * 1024) return `${trimmed(value / 1024)} KiB`;
  return `${trimmed(value / 1024 / 1024)} MiB`;
}

/** Count with its noun: `1 letter`, `3 letters`. */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString('en')} ${count === 1 ? one : many}`;
}

function trimmed(value: number): string {
  return value.toFixed(1).replace(/\.0$/, '');
}
