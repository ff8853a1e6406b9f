import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { who } from './who.svelte';
import { token } from './token';

/** Body of a refusal. */
function refusal(code: string, message: string): string {
  return JSON.stringify({ error: { code, message, retry: false } });
}

const ANN = { name: 'ann', roles: ['view', 'redrive'], signed_in: true };
const UNKNOWN = refusal('unauthenticated', 'operators sign in here: send a token of admin.operators');

/** Desk that knows one token. */
function desk(known: string | null, operator: object = ANN, status = 200) {
  const fetched = async (_path: string, { headers }: { headers: Record<string, string> }) => {
    const may = known === null || headers['authorization'] === `Bearer ${known}`;
    if (!may) return new Response(UNKNOWN, { status: 401 });
    return new Response(status === 200 ? JSON.stringify(operator) : refusal('forbidden', 'vera may not do this'), { status });
  };
  vi.stubGlobal('fetch', vi.fn(fetched));
}

async function asked() {
  await vi.waitFor(() => expect(who.asked).toBe(true));
}

let stop: () => void;
beforeEach(() => {
  who.asked = false;
  who.signOut();
  who.wanted = false;
});
afterEach(() => {
  stop();
  vi.unstubAllGlobals();
});

test('where nobody signs in, nobody is asked to', async () => {
  desk(null, { name: 'operator', roles: ['view', 'view_body', 'redrive', 'discard'], signed_in: false });
  stop = who.start();
  await asked();
  expect(who.wanted).toBe(false);
  expect(who.lacks('discard')).toBeUndefined();
});

test('whom a proxy signs in is asked for no token, and signs out there', async () => {
  desk(null);
  stop = who.start();
  await asked();
  expect([who.wanted, who.operator?.name, who.byToken]).toEqual([false, 'ann', false]);
  desk('a-token-of-some-length');
  await who.signIn('a-token-of-some-length');
  expect([who.wanted, who.byToken]).toEqual([false, true]);
});

test('what the proxy says may be over, and a token does as well', async () => {
  const text = refusal('unauthenticated', "the proxy's assertion is refused: the token has expired: sign in at the proxy again");
  vi.stubGlobal('fetch', vi.fn(async () => new Response(text, { status: 401 })));
  stop = who.start();
  await asked();
  expect([who.wanted, who.trouble?.title]).toEqual([true, 'Sign-in by the proxy failed']);
});

test('without a token one is wanted, and nothing went wrong yet', async () => {
  desk('a-token-of-some-length');
  stop = who.start();
  await asked();
  expect([who.wanted, who.trouble]).toEqual([true, undefined]);
});

test('a wrong token is forgotten, a right one is kept until one signs out', async () => {
  desk('a-token-of-some-length');
  stop = who.start();
  await who.signIn('another-one-of-some-length');
  expect(who.trouble?.title).toBe('Unknown token');
  expect([who.wanted, token()]).toEqual([true, undefined]);
  await who.signIn('a-token-of-some-length');
  expect([who.wanted, who.trouble, who.operator?.name]).toEqual([false, undefined, 'ann']);
  expect(who.lacks('discard')).toBe('ann lacks the role “discard”');
  who.signOut();
  expect([who.wanted, token(), who.operator]).toEqual([true, undefined, undefined]);
});

test('one who may not even look is told so, and may have another token', async () => {
  desk('a-token-of-some-length', ANN, 403);
  stop = who.start();
  await who.signIn('a-token-of-some-length');
  expect([who.wanted, token()]).toEqual([true, undefined]);
  expect(who.trouble?.text).toBe('Vera may not do this.');
});

test('what no header can hold is not sent', async () => {
  desk('a-token-of-some-length');
  stop = who.start();
  await asked();
  vi.mocked(fetch).mockClear();
  await who.signIn('a-töken-of-some-length€');
  expect(who.trouble?.title).toBe('Invalid token');
  expect(fetch).not.toHaveBeenCalled();
});

test('a port that is gone for a while is asked again', async () => {
  vi.useFakeTimers();
  vi.stubGlobal('fetch', vi.fn(async () => Promise.reject(new TypeError('Failed to fetch'))));
  stop = who.start();
  await vi.advanceTimersByTimeAsync(1000);
  expect(who.trouble?.title).toBe('Admin port unreachable');
  desk(null);
  await vi.advanceTimersByTimeAsync(5000);
  expect([who.trouble, who.operator?.name]).toEqual([undefined, 'ann']);
  vi.useRealTimers();
});

test('a service without a desk wants nobody to sign in', async () => {
  vi.stubGlobal('fetch', vi.fn(async () => new Response(refusal('not_found', 'this service has no desk'), { status: 404 })));
  stop = who.start();
  await asked();
  expect(who.wanted).toBe(false);
});
