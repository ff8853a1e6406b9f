// Looks at something again and again, as long as somebody can see the page.

/** What is needed of a document. */
export interface Sight {
  readonly hidden: boolean;
  addEventListener(name: 'visibilitychange', call: () => void): void;
  removeEventListener(name: 'visibilitychange', call: () => void): void;
}

/** A look answers in how many milliseconds the next one is due; `undefined` ends it. Answers how to stop. */
export function keepLooking(look: () => Promise<number | undefined>, page: Sight = document): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let stopped = false;
  /** A look is due, and nobody could see it. */
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
