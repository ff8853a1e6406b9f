// Questions to the operators' desk, and its refusals.

import { parseJson, writeJson } from './json';
import { token } from './token';

const UNKNOWN = 401;
const BUSY = 429;

/** The desk answered, and said no. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    words: string,
  ) {
    super(words);
  }

  /** The desk does not know who asks. */
  get isUnknown(): boolean {
    return this.status === UNKNOWN;
  }
}

/** What went wrong, for people. */
export interface Trouble {
  title: string;
  text: string;
}

type Query = Record<string, string | number | boolean | undefined>;

let whenUnknown: (refusal: Refusal) => void = () => {};

/** Who is told whenever the desk does not know who asks. */
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
  const request = { method: 'POST', headers, body: writeJson(body), signal: signal ?? null };
  return answer(await fetch(`/api/v1${path}`, request));
}

function credentials(): Record<string, string> {
  const known = token();
  return known === undefined ? {} : { authorization: `Bearer ${known}` };
}

async function answer<Answer>(response: Response): Promise<Answer> {
  const text = await response.text();
  if (response.ok) return parseJson(text) as Answer;
  const refusal = new Refusal(response.status, text.trim() || response.statusText);
  if (refusal.isUnknown) whenUnknown(refusal);
  throw refusal;
}

export function inWords(error: unknown): Trouble {
  if (error instanceof Refusal) return { title: title(error.status), text: sentence(error.message) };
  if (error instanceof TypeError) {
    return {
      title: 'The admin port does not answer',
      text: 'Is the process still running, and can this browser reach it?',
    };
  }
  return { title: 'Something went wrong', text: error instanceof Error ? error.message : String(error) };
}

function title(status: number): string {
  switch (status) {
    case 400:
    case 415:
    case 422:
      return 'The desk does not take this';
    case UNKNOWN:
      return 'The desk does not know who asks';
    case 403:
      return 'The desk does not allow this';
    case 404:
      return 'There is no such thing here';
    case BUSY:
      return 'The desk is busy';
    case 503:
      return 'The desk could not answer';
    default:
      return `The desk answered ${status}`;
  }
}

/** As a sentence of its own. */
function sentence(words: string): string {
  const begun = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
