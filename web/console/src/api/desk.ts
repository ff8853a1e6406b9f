// Requests to the operators' desk, and its refusals.

import { token } from './token';

const UNKNOWN = 401;
const BUSY = 429;

/** Refusal by the desk. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    words: string,
  ) {
    super(words);
  }

  /** True if the desk does not know the caller. */
  get isUnknown(): boolean {
    return this.status === UNKNOWN;
  }
}

/** Error for people. */
export interface Trouble {
  title: string;
  text: string;
}

type Query = Record<string, string | number | boolean | undefined>;

let whenUnknown: (refusal: Refusal) => void = () => {};

/** Sets the handler for refusals of unknown callers. */
export function onUnknown(told: (refusal: Refusal) => void): void {
  whenUnknown = told;
}

export async function ask<Answer>(path: string, query: Query = {}, signal?: AbortSignal): Promise<Answer> {
  const set = Object.entries(query).filter((pair) => pair[1] !== undefined && pair[1] !== '');
  const search = new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString();
  const whole = `/api/v1${path}${search ? `?${search}` : ''}`;
  return answer(await fetch(whole, { headers: credentials(), signal: signal ?? null }));
}

export async function tell<Answer>(path: string, body: unknown, signal?: AbortSignal): Promise<Answer> {
  const headers = { 'content-type': 'application/json', ...credentials() };
  const request = { method: 'POST', headers, body: JSON.stringify(body), signal: signal ?? null };
  return answer(await fetch(`/api/v1${path}`, request));
}

function credentials(): Record<string, string> {
  const known = token();
  return known === undefined ? {} : { authorization: `Bearer ${known}` };
}

async function answer<Answer>(response: Response): Promise<Answer> {
  const text = await response.text();
  if (response.ok) return JSON.parse(text) as Answer;
  const refusal = new Refusal(response.status, message(text) || response.statusText);
  if (refusal.isUnknown) whenUnknown(refusal);
  throw refusal;
}

/** Message of a refusal: `{ "error": { "message": … } }` of a desk, or the text of a proxy. */
function message(body: string): string {
  const text = body.trim();
  try {
    const { error } = JSON.parse(text) as { error?: { message?: unknown } };
    return typeof error?.message === 'string' ? error.message : text;
  } catch {
    return text;
  }
}

export function inWords(error: unknown): Trouble {
  if (error instanceof Refusal) return { title: title(error.status), text: sentence(error.message) };
  if (error instanceof TypeError) {
    return {
      title: 'Admin port unreachable',
      text: 'Check that the process is running and that this browser can reach it.',
    };
  }
  return { title: 'Unexpected error', text: error instanceof Error ? error.message : String(error) };
}

function title(status: number): string {
  switch (status) {
    case 400:
    case 415:
    case 422:
      return 'Request rejected';
    case UNKNOWN:
      return 'Sign-in required';
    case 403:
      return 'Not allowed';
    case 404:
      return 'Not found';
    case BUSY:
      return 'Desk busy';
    case 503:
      return 'Desk unavailable';
    default:
      return `Request failed: HTTP ${status}`;
  }
}

/** Turns an error text into a sentence. */
function sentence(words: string): string {
  const begun = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
