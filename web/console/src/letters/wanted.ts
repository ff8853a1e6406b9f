// Which letters the address bar asks for.

import type { Wanted } from '../api/letters';

/** Letters on a page. */
export const LIMIT = 50;

export type Shown = 'open' | 'redriven' | 'all';

/** What nobody chose is open: it is what one comes for. */
export function shownOf(query: Record<string, string>): Shown {
  const shown = query['show'];
  return shown === 'redriven' || shown === 'all' ? shown : 'open';
}

export function wantedOf(query: Record<string, string>): Wanted {
  const shown = shownOf(query);
  return {
    topic: query['topic'],
    reason: query['reason'],
    conversation: query['conversation'],
    after: query['after'],
    redriven: shown === 'all' ? undefined : shown === 'redriven',
    discarded: shown === 'open' ? false : undefined,
    limit: LIMIT,
  };
}
