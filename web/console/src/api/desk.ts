// Questions to the operators' desk, and its refusals.

import { parseJson } from './json';

const BUSY = 429;

/** The desk answered, and said no. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    words: string,
  ) {
    super(words);
  }
}

/** What went wrong, for people. */
export interface Trouble {
  title: string;
  text: string;
}

type Query = Record<string, string | number | boolean | undefined>;

export async function ask<Answer>(path: string, query: Query = {}, signal?: AbortSignal): Promise<Answer> {
  const set = Object.entries(query).filter((pair) => pair[1] !== undefined && pair[1] !== '');
  const search = new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString();
  return answer(await fetch(`/api/v1${path}${search ? `?${search}` : ''}`, { signal: signal ?? null }));
}

export async function tell<Answer>(path: string, body: unknown): Promise<Answer> {
  const headers = { 'content-type': 'application/json' };
  return answer(await fetch(`/api/v1${path}`, { method: 'POST', headers, body: JSON.stringify(body) }));
}

async function answer<Answer>(response: Response): Promise<Answer> {
  const text = await response.text();
  if (!response.ok) throw new Refusal(response.status, text.trim() || response.statusText);
  return parseJson(text) as Answer;
}

export function inWords(error: unknown): Trouble {
  if (error instanceof Refusal) {
    const text = sentence(error.message);
    switch (error.status) {
      case BUSY:
        return { title: 'The desk is busy', text };
      case 400:
      case 422:
        return { title: 'The desk does not understand the question', text };
      case 404:
        return { title: 'There is no such thing here', text };
      case 503:
        return { title: 'The desk could not answer', text };
      default:
        return { title: `The desk answered ${error.status}`, text };
    }
  }
  if (error instanceof TypeError) {
    return {
      title: 'The admin port does not answer',
      text: 'Is the process still running, and can this browser reach it?',
    };
  }
  return { title: 'Something went wrong', text: error instanceof Error ? error.message : String(error) };
}

/** As a sentence of its own. */
function sentence(words: string): string {
  const begun = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
