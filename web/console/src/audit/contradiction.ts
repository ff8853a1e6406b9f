// Contradictions of the ledger in words.

import type { Contradiction } from '../api/audit';

export function sentenceOf(contradiction: Contradiction): string {
  switch (contradiction.type) {
    case 'placed_twice':
      return `Message ${contradiction.message} has two positions.`;
    case 'seq_reused': {
      const { conversation, seq, messages } = contradiction;
      return `Position ${seq} of ${conversation} has two messages, ${messages.join(' and ')}.`;
    }
    default:
      // Unknown contradiction of a later server.
      return JSON.stringify(contradiction);
  }
}

/** Ids of the messages that it is about. */
export function idsIn(contradiction: Contradiction): string[] {
  switch (contradiction.type) {
    case 'placed_twice':
      return [contradiction.message];
    case 'seq_reused':
      return contradiction.messages;
    default:
      return [];
  }
}
