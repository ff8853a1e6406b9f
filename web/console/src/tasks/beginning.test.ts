import { afterEach, expect, test, vi } from 'vitest';

import { byName } from '../api/selection';
import { here } from '../here.svelte';
import { Beginning } from './beginning.svelte';
import { sample } from './sample';

vi.mock('../here.svelte', () => ({ here: { go: vi.fn() } }));
afterEach(() => vi.unstubAllGlobals());

test('what was asked twice has one name, and leads to its task', async () => {
  const fetched = vi.fn(async (_path: string, _request: RequestInit) => Response.json(sample()));
  fetched.mockRejectedValueOnce(new TypeError('Failed to fetch'));
  vi.stubGlobal('fetch', fetched);
  const beginning = new Beginning();
  const request = { work: 'redrive', selection: byName(['message-0-1']), why: 'the store is back' } as const;
  await beginning.begin(request);
  expect(beginning.trouble?.title).toBe('Admin port unreachable');
  expect(here.go).not.toHaveBeenCalled();
  await beginning.begin(request);
  expect(beginning.trouble).toBeUndefined();
  const names = fetched.mock.calls.map(([, { body }]) => (JSON.parse(String(body)) as { task: string }).task);
  expect(names[0]).toMatch(/^t\d+-[0-9a-f]{8}$/);
  expect(names[1]).toBe(names[0]);
  expect(here.go).toHaveBeenCalledWith('#/tasks/t1790000000000-0000002a');
});
