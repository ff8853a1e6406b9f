// The difference that an edit makes, line by line, and what is said of it.

import type { Changed, Envelope } from '../api/envelope';

export interface Line {
  kind: 'old' | 'new' | 'place' | 'same';
  text: string;
}

/** A unified difference without its head. */
export function linesOf(diff: string): Line[] {
  const lines = diff.split('\n').filter((line, index) => line !== '' && !(index < 2 && /^(---|\+\+\+)/.test(line)));
  return lines.map((text) => ({ kind: kindOf(text), text }));
}

function kindOf(line: string): Line['kind'] {
  if (line.startsWith('@@')) return 'place';
  if (line.startsWith('-')) return 'old';
  return line.startsWith('+') ? 'new' : 'same';
}

/** What one begins with: where the bytes are no message, a whole one is to be written. */
export function beginning({ text }: Envelope): string {
  return text ?? '{}';
}

/** What is to be done next: a difference is shown before it is kept, and is of what stands there. */
export function next(shown: Changed | undefined, shownOf: string, text: string): 'show' | 'keep' | 'nothing' {
  if (!shown || shownOf !== text) return 'show';
  return shown.diff === '' ? 'nothing' : 'keep';
}
