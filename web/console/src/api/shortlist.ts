// First items of a list, and the number of the others.

export interface Shortlist<Item> {
  first: Item[];
  left_off: number;
}

export function total(list: Shortlist<unknown>): number {
  return list.first.length + list.left_off;
}
