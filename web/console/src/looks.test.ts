import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { keepLooking } from './looks';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

class Page {
  hidden = false;
  #calls = new Set<() => void>();

  addEventListener(_: string, call: () => void) {
    this.#calls.add(call);
  }

  removeEventListener(_: string, call: () => void) {
    this.#calls.delete(call);
  }

  turn(hidden: boolean) {
    this.hidden = hidden;
    this.#calls.forEach((call) => call());
  }
}

test('until the look says that it is enough', async () => {
  const pauses = [1000, 1000, undefined];
  const look = vi.fn(async () => pauses.shift());
  keepLooking(look, new Page());
  await vi.advanceTimersByTimeAsync(10_000);
  expect(look).toHaveBeenCalledTimes(3);
});

test('not while nobody can see it, and at once when somebody can', async () => {
  const page = new Page();
  const look = vi.fn(async () => 1000);
  const stop = keepLooking(look, page);
  await vi.advanceTimersByTimeAsync(2500);
  expect(look).toHaveBeenCalledTimes(3);
  page.turn(true);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(look).toHaveBeenCalledTimes(3);
  page.turn(false);
  await vi.advanceTimersByTimeAsync(100);
  expect(look).toHaveBeenCalledTimes(4);
  // Hiding the page for a moment causes no second poll.
  page.turn(true);
  page.turn(false);
  await vi.advanceTimersByTimeAsync(500);
  expect(look).toHaveBeenCalledTimes(4);
  stop();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(look).toHaveBeenCalledTimes(4);
});
