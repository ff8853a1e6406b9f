// Which letters of a redrive died again. A letter that dies again is a new letter, of the same message.

import { list, place, type Filter, type Letter } from '../api/letters';
import type { Task } from '../api/tasks';
import { isRedriven } from '../letters/outcome';
import { doneOf } from './progress';

const PAGE = 1000;
const PAGES = 5;

export interface DiedAgain {
  letters: Letter[];
  /** Not all letters were looked at, as there are too many. */
  cutOff: boolean;
}

/** Asks the desk for the letters of before and since. */
export async function diedAgain(task: Task, signal: AbortSignal): Promise<DiedAgain> {
  const before = await gather({ redriven: true, until: task.at }, signal);
  const since = await gather({ since: task.at }, signal);
  const letters = again(task, before.letters, since.letters);
  return { letters, cutOff: before.cutOff || since.cutOff || task.told.length < doneOf(task) };
}

/** Of the letters since, those whose message a letter of the task had. */
export function again(task: Task, before: readonly Letter[], since: readonly Letter[]): Letter[] {
  const redriven = new Set(task.told.filter(([, outcome]) => isRedriven(outcome)).map(([id]) => id));
  const messages = new Set(
    before.filter((letter) => redriven.has(letter.id) && letter.message !== null).map((letter) => String(letter.message)),
  );
  return since.filter(({ id, message }) => !redriven.has(id) && message !== null && messages.has(String(message)));
}

async function gather(filter: Filter, signal: AbortSignal): Promise<DiedAgain> {
  const letters: Letter[] = [];
  let after: string | undefined;
  for (let pages = 0; pages < PAGES; pages += 1) {
    const page = await list(filter, PAGE, after, signal);
    letters.push(...page.letters);
    if (!page.next) return { letters, cutOff: false };
    after = place(page.next);
  }
  return { letters, cutOff: true };
}
