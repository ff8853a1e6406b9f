// Polling that stops while the page is hidden.

/** Part of `Document` that polling needs. */
export interface Sight {
  readonly hidden: boolean;
  addEventListener(name: 'visibilitychange', call: () => void): void;
  removeEventListener(name: 'visibilitychange', call: () => void): void;
}

/**
 * Polls with `look`, which returns the delay to the next poll in milliseconds, or `undefined` to end.
 * Returns a function that stops it.
 */
export function keepLooking(look: () => Promise<number | undefined>, page: Sight = document): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let stopped = false;
  /** True if a poll fell due while the page was hidden. */
  let waits = false;

  async function turn(): Promise<void> {
    if (page.hidden) {
      waits = true;
      return;
    }
    const pause = await look();
    if (!stopped && pause !== undefined) timer = setTimeout(() => void turn(), pause);
  }

  function seen(): void {
    if (!waits || page.hidden) return;
    waits = false;
    void turn();
  }

  page.addEventListener('visibilitychange', seen);
  void turn();
  return () => {
    stopped = true;
    clearTimeout(timer);
    page.removeEventListener('visibilitychange', seen);
  };
}
