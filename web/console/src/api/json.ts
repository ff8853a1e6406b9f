// JSON whose ids have 64 bits: JavaScript's numbers hold 53. Long whole numbers are read as strings, and written from
// bigints.

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

export function parseJson(text: string): unknown {
  return JSON.parse(text.replace(TOKEN, (token) => (/^-?\d{16,}$/.test(token) ? `"${token}"` : token)));
}

/** As `JSON.stringify`, but a bigint is a number. */
export function writeJson(value: unknown): string {
  if (typeof value === 'bigint') return value.toString();
  if (Array.isArray(value)) return `[${value.map((item) => writeJson(item ?? null)).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const set = Object.entries(value).filter(([, field]) => field !== undefined);
  return `{${set.map(([name, field]) => `${JSON.stringify(name)}:${writeJson(field)}`).join(',')}}`;
}
