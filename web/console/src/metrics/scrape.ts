// Scrapes of `/metrics`, and rates and quantiles between two.

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

  /** True if any metric has this prefix. */
  tellsOf(prefix: string): boolean {
    return [...this.#samples.keys()].some((name) => name.startsWith(prefix));
  }

  /** Sum of the samples of `name` with these labels; `null` if there are none. */
  sum(name: string, labels: Labels = {}): number | null {
    const found = this.#samples.get(name)?.filter((sample) => fits(sample, labels)) ?? [];
    return found.length === 0 ? null : found.reduce((sum, sample) => sum + sample.value, 0);
  }

  /** Sums by the value of one label. */
  by(name: string, label: string): [string, number][] {
    const sums = new Map<string, number>();
    for (const sample of this.#samples.get(name) ?? []) {
      const value = sample.labels[label] ?? '';
      sums.set(value, (sums.get(value) ?? 0) + sample.value);
    }
    return [...sums];
  }

  /** Cumulative buckets of a histogram: upper bound to count. */
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

/** Growth of a counter per second; `null` if unknown or after a restart of the process. */
export function rate(before: Scrape | undefined, now: Scrape, name: string, labels: Labels = {}): number | null {
  const to = now.sum(name, labels);
  if (!before || to === null || now.at <= before.at) return null;
  const grown = to - (before.sum(name, labels) ?? 0);
  return grown < 0 ? null : (grown * 1000) / (now.at - before.at);
}

/**
 * Quantile of the observations of a histogram between two scrapes; `null` if there were none.
 * Interpolates linearly within a bucket, as PromQL does; the last bucket yields its lower bound.
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
