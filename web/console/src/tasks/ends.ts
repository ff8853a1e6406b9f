// To which ends the letters of a task came.

import type { Outcome, Task } from '../api/tasks';
import { told } from '../letters/outcome';

/** Letters of one outcome. */
export interface End {
  outcome: Outcome;
  count: number;
  /** Some of them: a task tells the first thousand letters by name. */
  letters: string[];
}

/** What did not go stands first: it is what one has to look at. */
export function endsOf(task: Task): End[] {
  const ends = Object.entries(task.outcomes).map(([name, count]): End => {
    const outcome = name as Outcome;
    return { outcome, count, letters: task.told.filter(([, end]) => end === outcome).map(([id]) => id) };
  });
  const rank = (end: End) => Number(told(end.outcome).went);
  return ends.sort((one, other) => rank(one) - rank(other) || other.count - one.count);
}
