// Sample task for tests.

import type { Task } from '../api/tasks';

export function sample(over: Partial<Task> = {}): Task {
  return {
    begun: {
      task: 't1790000000000-0000002a',
      work: 'redrive',
      letters: 10,
      pace: { per_second: 50, pause_above: 20 },
      about: 'at most 10: kind message',
      why: 'the store is back',
    },
    by: 'ann',
    at: 1_790_000_000_000,
    progress: { is: 'running' },
    outcomes: {},
    told: [],
    died_again: 0,
    died_again_as: [],
    ended_at: null,
    ...over,
  };
}
