// What `/metrics` said at one moment, and what changed between two.

import { parseMetrics, type Sample } from './text';

export type Labels = Record<string, string | readonly string[]>;

export class Scrape {
  readonly #samples = new Map<string, Sample[]>();

  constructor(
    text: string,
    /** Milliseconds since 1970. */
    readonly at: number,
  ) {
    for (const sample of parseMetrics(text)) {
      const known = this.#samples.get(sample.name);
      if (known) known.push(sample);
      else this.#samples.set(sample.name, [sample]);
    }
  }

  /** Whether anything that begins so is counted here. */
  tellsOf(prefix: string): boolean {
    return [...this.#samples.keys()].some((name) => name.startsWith(prefix));
  }

  /** All samples of that name with one of these values of each label; `null` where there are none. */
  sum(name: string, labels: Labels = {}): number | null {
    const found = this.#samples.get(name)?.filter((sample) => fits(sample, labels)) ?? [];
    return found.length === 0 ? null : found.reduce((sum, sample) => sum + sample.value, 0);
  }

  /** By the value of one label. */
  by(name: string, label: string): [string, number][] {
    const sums = new Map<string, number>();
    for (const sample of this.#samples.get(name) ?? []) {
      const value = sample.labels[label] ?? '';
      sums.set(value, (sums.get(value) ?? 0) + sample.value);
    }
    return [...sums];
  }

  /** Of a histogram: how many were at most so long. */
  buckets(name: string): Map<number, number> {
    const buckets = this.by(`${name}_bucket`, 'le');
    return new Map(buckets.map(([le, count]) => [le === '+Inf' ? Infinity : Number(le), count]));
  }
}

function fits(sample: Sample, labels: Labels): boolean {
  return Object.entries(labels).every(([label, wanted]) => {
    const value = sample.labels[label] ?? '';
    return typeof wanted === 'string' ? value === wanted : wanted.includes(value);
  });
}

/** How fast a counter grows, per second. `null`: unknown, or the process began anew. */
export function rate(before: Scrape | undefined, now: Scrape, name: string, labels: Labels = {}): number | null {
  const to = now.sum(name, labels);
  if (!before || to === null || now.at <= before.at) return null;
  const grown = to - (before.sum(name, labels) ?? 0);
  return grown < 0 ? null : (grown * 1000) / (now.at - before.at);
}

/**
 * Of what a histogram took in between two scrapes, the value that this share stays below. `null` where it took in
 * nothing. Within a bucket it is a straight line, as in PromQL; the last bucket answers its beginning.
 */
export function quantile(share: number, before: Scrape | undefined, now: Scrape, name: string): number | null {
  const earlier = before?.buckets(name) ?? new Map<number, number>();
  const grown = [...now.buckets(name)]
    .map(([le, count]) => [le, count - (earlier.get(le) ?? 0)] as const)
    .sort(([one], [other]) => one - other);
  const all = grown.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  const wanted = share * all;
  let [from, below] = [0, 0];
  for (const [le, count] of grown) {
    if (count >= wanted) {
      if (le === Infinity) return from;
      return from + (le - from) * ((wanted - below) / (count - below || 1));
    }
    [from, below] = [le, count];
  }
  return from;
}
