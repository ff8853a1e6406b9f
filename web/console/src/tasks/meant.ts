// Which letters a task takes, in words.

import { counted } from '../amount';
import type { Begun } from '../api/tasks';

/** What goes without saying: only open letters are redriven or discarded, and only discarded ones restored. */
const IMPLIED = /(?:^|, )(?:discarded|redriven) (?:true|false)(?=, |$)/g;

/** Everywhere else it is the topic. */
const KIND = /(^|, )kind (message|notification)(?=, |$)/;

/** `at most 50: cause …, discarded false, kind message` as `3 letters: cause …, topic message`. */
export function meant({ about, letters }: Begun): string {
  const [, filter] = /^at most \d+: (.*)$/s.exec(about) ?? [];
  if (filter === undefined) return about;
  const rest = filter.replace(IMPLIED, '').replace(/^, /, '').replace(KIND, '$1topic $2');
  return `${counted(letters, 'letter')}: ${rest === '' ? 'all there were' : rest}`;
}
