// How fast a task goes, from what it was seen to have done.

/** So long a speed is measured, as letters go in small batches. */
const SPAN = 10_000;

export interface Sight {
  /** Milliseconds since 1970. */
  at: number;
  done: number;
}

/** With another sight; those that are too old to matter are left out. */
export function seen(sights: readonly Sight[], now: Sight): Sight[] {
  return [...sights.filter((sight) => sight.at >= now.at - SPAN && sight.done <= now.done), now];
}

/** Letters a second; `null` before there is something to compare. */
export function speedOf(sights: readonly Sight[]): number | null {
  const [first, last] = [sights[0], sights.at(-1)];
  if (!first || !last || last.at - first.at < 500) return null;
  return ((last.done - first.done) * 1000) / (last.at - first.at);
}

/** Seconds to the end, at the speed that was seen or, before that, the one that was asked for. */
export function secondsLeft(left: number, speed: number | null, asked: number): number {
  const rate = speed !== null && speed > 0 ? speed : asked;
  return Math.ceil(left / Math.max(0.01, rate));
}
