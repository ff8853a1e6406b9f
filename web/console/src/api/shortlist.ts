// The first of some, and how many more there are.

export interface Shortlist<Item> {
  first: Item[];
  left_off: number;
}

export function total(list: Shortlist<unknown>): number {
  return list.first.length + list.left_off;
}
