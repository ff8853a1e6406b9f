// Diff of an edit, line by line, and steps of the dialog.

import type { Changed, Envelope } from '../api/envelope';

export interface Line {
  kind: 'old' | 'new' | 'place' | 'same';
  text: string;
}

/** Lines of a unified diff without its head. */
export function linesOf(diff: string): Line[] {
  const lines = diff.split('\n').filter((line, index) => line !== '' && !(index < 2 && /^(---|\+\+\+)/.test(line)));
  return lines.map((text) => ({ kind: kindOf(text), text }));
}

function kindOf(line: string): Line['kind'] {
  if (line.startsWith('@@')) return 'place';
  if (line.startsWith('-')) return 'old';
  return line.startsWith('+') ? 'new' : 'same';
}

/** Initial text of the editor; `{}` if the bytes do not decode. */
export function beginning({ text }: Envelope): string {
  return text ?? '{}';
}

/** Next step. An edit is saved only after the diff of the current text was shown. */
export function next(shown: Changed | undefined, shownOf: string, text: string): 'show' | 'keep' | 'nothing' {
  if (!shown || shownOf !== text) return 'show';
  return shown.diff === '' ? 'nothing' : 'keep';
}
