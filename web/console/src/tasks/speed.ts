// Speed of a task, from polls of its progress.

/** Window of the measurement in milliseconds; letters are processed in small batches. */
const SPAN = 10_000;

export interface Sight {
  /** Milliseconds since 1970. */
  at: number;
  done: number;
}

/** Adds a sight and drops those outside the window. */
export function seen(sights: readonly Sight[], now: Sight): Sight[] {
  return [...sights.filter((sight) => sight.at >= now.at - SPAN && sight.done <= now.done), now];
}

/** Letters per second; `null` without two sights to compare. */
export function speedOf(sights: readonly Sight[]): number | null {
  const [first, last] = [sights[0], sights.at(-1)];
  if (!first || !last || last.at - first.at < 500) return null;
  return ((last.done - first.done) * 1000) / (last.at - first.at);
}

/** Seconds to the end at the measured speed or, until there is one, at the requested rate. */
export function secondsLeft(left: number, speed: number | null, asked: number): number {
  const rate = speed !== null && speed > 0 ? speed : asked;
  return Math.ceil(left / Math.max(0.01, rate));
}
