// Letters of a task by outcome.

import type { Outcome, Task } from '../api/tasks';
import { told } from '../letters/outcome';

/** Letters of one outcome. */
export interface End {
  outcome: Outcome;
  count: number;
  /** Ids, as far as known: a task lists its first thousand letters by id. */
  letters: string[];
}

/** Outcomes of a task. Skipped letters come first, as they need attention. */
export function endsOf(task: Task): End[] {
  const ends = Object.entries(task.outcomes).map(([name, count]): End => {
    const outcome = name as Outcome;
    return { outcome, count, letters: task.results.items.filter((result) => result.outcome === outcome).map(({ id }) => id) };
  });
  const rank = (end: End) => Number(told(end.outcome).went);
  return ends.sort((one, other) => rank(one) - rank(other) || other.count - one.count);
}
