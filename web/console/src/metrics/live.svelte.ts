// Metrics of the last ten minutes, kept while the page is open.

import { inWords, Refusal, type Trouble } from '../api/desk';
import { MEASURES, MEASURE_NAMES, type MeasureName } from './measures';
import { Scrape } from './scrape';

const PAUSE = 2000;
/** Samples kept: ten minutes. */
const KEPT = 300;
/** Scrapes in the window of rare events: half a minute. */
const LATELY = 15;

type Values = Record<MeasureName, (number | null)[]>;

export interface Readiness {
  ready: boolean;
  /** Text such as `ready`, or the services that take no new work. */
  word: string;
}

class Live {
  /** Seconds since 1970. */
  times = $state.raw<number[]>([]);
  values = $state.raw<Values>(nothing());
  latest = $state.raw<Scrape>();
  readiness = $state.raw<Readiness>();
  trouble = $state.raw<Trouble>();

  #scrapes: Scrape[] = [];
  #looking = false;

  /** Polls every two seconds while the page is visible. Returns a function that stops it. */
  start(): () => void {
    const look = () => {
      if (!document.hidden) void this.look();
    };
    look();
    const timer = setInterval(look, PAUSE);
    return () => clearInterval(timer);
  }

  look = async (): Promise<void> => {
    if (this.#looking) return;
    this.#looking = true;
    try {
      const [metrics, readiness] = await Promise.all([fetch('/metrics'), fetch('/readyz')]);
      const [text, word] = await Promise.all([metrics.text(), readiness.text()]);
      if (!metrics.ok) throw new Refusal(metrics.status, text);
      this.readiness = { ready: readiness.ok, word: inOneLine(word) };
      this.#add(new Scrape(text, Date.now()));
      this.trouble = undefined;
    } catch (error) {
      this.readiness = undefined;
      this.trouble = inWords(error);
    } finally {
      this.#looking = false;
    }
  };

  now(name: MeasureName): number | null {
    return this.values[name].at(-1) ?? null;
  }

  #add(now: Scrape): void {
    const before = this.#scrapes.at(-1);
    const lately = this.#scrapes.at(-LATELY) ?? this.#scrapes[0];
    const values = nothing();
    for (const name of MEASURE_NAMES) {
      values[name] = [...this.values[name], MEASURES[name]({ now, before, lately })].slice(-KEPT);
    }
    this.#scrapes = [...this.#scrapes, now].slice(-LATELY - 1);
    this.times = [...this.times, now.at / 1000].slice(-KEPT);
    this.values = values;
    this.latest = now;
  }
}

/** Summary of `/readyz`, which has a word for the process, then a line for each service. */
function inOneLine(text: string): string {
  const [word = '', ...services] = text.trim().split('\n');
  const waiting = services.filter((line) => !line.endsWith(': ready'));
  return word === 'not ready' ? waiting.join('; ') : word;
}

function nothing(): Values {
  return Object.fromEntries(MEASURE_NAMES.map((name) => [name, []])) as unknown as Values;
}

export const live = new Live();
