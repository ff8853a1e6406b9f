// Routes of the console: the part of the address after `#`.

export type Place = 'overview' | 'dead-letters' | 'tasks' | 'trace' | 'audit';

export interface Route {
  place: Place;
  /** Id of a letter or message, or name of a task. */
  id?: string | undefined;
  query: Record<string, string>;
}

const PLACES: readonly Place[] = ['overview', 'dead-letters', 'tasks', 'trace', 'audit'];

/** Parses `#/trace/123`. Anything unknown is the overview. */
export function parseRoute(hash: string): Route {
  const [path = '', search = ''] = hash.replace(/^#?\/?/, '').split('?', 2);
  const [name = '', ...rest] = path.split('/');
  const place = PLACES.find((known) => known === name) ?? 'overview';
  const id = plain(rest.join('/'));
  return {
    place,
    ...(id === '' ? {} : { id }),
    query: Object.fromEntries(new URLSearchParams(search)),
  };
}

/** Address of a place, without empty parts. */
export function address(place: Place, id?: string, query: Record<string, string | undefined> = {}): string {
  const set = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const search = new URLSearchParams(set).toString();
  return `#/${place}${id ? `/${encodeURIComponent(id)}` : ''}${search ? `?${search}` : ''}`;
}

function plain(text: string): string {
  try {
    return decodeURIComponent(text).trim();
  } catch {
    return text;
  }
}
