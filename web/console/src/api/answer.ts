// Forms that all answers of the desk share.

/** A time, as RFC 3339 and in milliseconds since 1970. */
export interface Time {
  utc: string;
  ms: number;
}

/** First items of a list, and the number of the others. */
export interface List<Item> {
  items: Item[];
  truncated: number;
}

/** Some items of a list, and a cursor to the next ones; `null` at the end. */
export interface Page<Item> {
  items: Item[];
  next: string | null;
}

export function total(list: List<unknown>): number {
  return list.items.length + list.truncated;
}
