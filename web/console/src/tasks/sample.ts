// Sample task for tests.

import type { Task } from '../api/tasks';

export function sample(over: Partial<Task> = {}): Task {
  return {
    id: 't1790000000000-0000002a',
    work: 'redrive',
    letters: 10,
    pace: { per_second: 50, pause_above: 20 },
    selection: 'at most 10: kind message',
    why: 'the store is back',
    by: 'ann',
    started_at: { utc: '2026-09-21T14:13:20.000Z', ms: 1_790_000_000_000 },
    ended_at: null,
    state: { type: 'running' },
    outcomes: {},
    results: { items: [], truncated: 0 },
    new_letters: { items: [], truncated: 0 },
    ...over,
  };
}
