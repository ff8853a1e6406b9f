import { afterEach, expect, test, vi } from 'vitest';

import { ask, inWords, onUnknown, Refusal, tell } from './desk';
import { byName } from './selection';
import { forgetToken, keepToken } from './token';

afterEach(() => {
  vi.unstubAllGlobals();
  forgetToken();
  onUnknown(() => {});
});

function answering(status: number, body: string) {
  const fetched = vi.fn(async (_path: string, _request: RequestInit) => new Response(body, { status }));
  vi.stubGlobal('fetch', fetched);
  return fetched;
}

/** Body of a refusal. */
function refusal(code: string, message: string): string {
  return JSON.stringify({ error: { code, message, retry: false } });
}

test('what is not set is not asked', async () => {
  const fetched = answering(200, '{"items":[],"next":null}');
  await ask('/dead-letters', { kind: 'message', reason: '', redriven: false, after: undefined });
  expect(fetched.mock.calls[0]?.[0]).toBe('/api/v1/dead-letters?kind=message&redriven=false');
});

test('a plan is asked for letters by their ids', async () => {
  const fetched = answering(200, '{"letters":0,"forecasts":[]}');
  await tell('/dead-letters/plan', byName(['message-0-1']));
  expect(fetched.mock.calls[0]?.[1]).toMatchObject({ method: 'POST', body: '{"type":"ids","ids":["message-0-1"]}' });
});

test('a token goes with every question, and into no address', async () => {
  const fetched = answering(200, '{"items":[],"truncated":0}');
  await ask('/dead-letters/tasks');
  expect(fetched.mock.calls[0]?.[1].headers).toEqual({});
  keepToken('a-token-of-some-length');
  await ask('/dead-letters/tasks');
  await tell('/dead-letters/tasks/t1/cancel', {});
  for (const [path, request] of fetched.mock.calls.slice(1)) {
    expect(request.headers).toMatchObject({ authorization: 'Bearer a-token-of-some-length' });
    expect(path).not.toContain('a-token');
  }
});

test('that nobody is known is told, also to whoever asked', async () => {
  answering(401, refusal('unauthenticated', 'operators sign in here: send a token'));
  const told = vi.fn();
  onUnknown(told);
  const refused = await ask('/me').catch((error: unknown) => error);
  expect(refused).toMatchObject({ status: 401, isUnknown: true });
  expect(told).toHaveBeenCalledWith(refused);
});

test('a busy desk says that one may ask again', async () => {
  answering(429, refusal('rate_limited', 'another question is reading the log: ask again in a moment'));
  const refused = await ask('/audit').catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(Refusal);
  expect(inWords(refused)).toEqual({
    title: 'Desk busy',
    text: 'Another question is reading the log: ask again in a moment.',
  });
});

test('what a proxy refuses is told in its words', async () => {
  for (const body of ['no way through here\n', '{"error":"no way through here"}']) {
    answering(502, body);
    const refused = await ask('/audit').catch((error: unknown) => error);
    expect(inWords(refused).text.toLowerCase()).toContain('no way through here');
  }
});

test('a missing role is told in the words of the server', () => {
  const refused = new Refusal(403, 'ann may not do this: it needs the role "redrive" in admin.operators');
  expect(inWords(refused)).toEqual({
    title: 'Not allowed',
    text: 'Ann may not do this: it needs the role "redrive" in admin.operators.',
  });
});

test('a port that is gone is told as such', () => {
  expect(inWords(new TypeError('Failed to fetch')).title).toBe('Admin port unreachable');
});
