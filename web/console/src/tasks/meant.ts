// Selection of a task in words.

import { counted } from '../amount';
import type { Task } from '../api/tasks';

/** Conditions implied by the action: redrive and discard take open letters, restore discarded ones. */
const IMPLIED = /(?:^|, )(?:discarded|redriven) (?:true|false)(?=, |$)/g;

/** Kind of letter; the rest of the console calls it topic. */
const KIND = /(^|, )kind (message|notification)(?=, |$)/;

/** Writes `at most 50: cause …, discarded false, kind message` as `3 letters: cause …, topic message`. */
export function meant({ selection, letters }: Pick<Task, 'selection' | 'letters'>): string {
  const [, filter] = /^at most \d+: (.*)$/s.exec(selection) ?? [];
  if (filter === undefined) return selection;
  const rest = filter.replace(IMPLIED, '').replace(/^, /, '').replace(KIND, '$1topic $2');
  return `${counted(letters, 'letter')}: ${rest === '' ? 'no filter' : rest}`;
}
