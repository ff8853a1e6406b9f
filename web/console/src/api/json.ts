// JSON with 64-bit ids, where JavaScript's numbers hold 53 bits. Long integers are read as strings and
// written from bigints.

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

export function parseJson(text: string): unknown {
  return JSON.parse(text.replace(TOKEN, (token) => (/^-?\d{16,}$/.test(token) ? `"${token}"` : token)));
}

/** Works like `JSON.stringify`, but writes a bigint as a number. */
export function writeJson(value: unknown): string {
  if (typeof value === 'bigint') return value.toString();
  if (Array.isArray(value)) return `[${value.map((item) => writeJson(item ?? null)).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const set = Object.entries(value).filter(([, field]) => field !== undefined);
  return `{${set.map(([name, field]) => `${JSON.stringify(name)}:${writeJson(field)}`).join(',')}}`;
}
