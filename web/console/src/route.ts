// Where one is in the console, as the part of the address behind `#`.

export type Place = 'overview' | 'dead-letters' | 'tasks' | 'trace' | 'audit';

export interface Route {
  place: Place;
  /** A letter's or a message's id, or a task's name. */
  id?: string | undefined;
  query: Record<string, string>;
}

const PLACES: readonly Place[] = ['overview', 'dead-letters', 'tasks', 'trace', 'audit'];

/** `#/trace/123`; anything unknown is the overview. */
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

/** The address of a place; what is empty is left out. */
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
