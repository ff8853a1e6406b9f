import { afterEach, expect, test, vi } from 'vitest';

import { ask, inWords, Refusal, tell } from './desk';

afterEach(() => vi.unstubAllGlobals());

function answering(status: number, body: string) {
  const fetched = vi.fn(async (_path: string, _request: RequestInit) => new Response(body, { status }));
  vi.stubGlobal('fetch', fetched);
  return fetched;
}

test('what is not set is not asked', async () => {
  const fetched = answering(200, '{"letters":[],"next":null}');
  await ask('/dead-letters', { topic: 'message', reason: '', redriven: false, after: undefined });
  expect(fetched.mock.calls[0]?.[0]).toBe('/api/v1/dead-letters?topic=message&redriven=false');
});

test('a letter is redriven by its id', async () => {
  const fetched = answering(200, '[]');
  await tell('/dead-letters/redrive', { ids: ['message-0-1'] });
  expect(fetched.mock.calls[0]?.[1]).toMatchObject({ method: 'POST', body: '{"ids":["message-0-1"]}' });
});

test('a busy desk says that one may ask again', async () => {
  answering(429, 'another question is reading the log: ask again in a moment');
  const refused = await ask('/audit').catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(Refusal);
  expect(inWords(refused)).toEqual({
    title: 'The desk is busy',
    text: 'Another question is reading the log: ask again in a moment.',
  });
});

test('a port that is gone is told as such', () => {
  expect(inWords(new TypeError('Failed to fetch')).title).toBe('The admin port does not answer');
});
