// Operator who is signed in at this desk.

import { inWords, onUnknown, Refusal, type Trouble } from './desk';
import { lacking, me, type Operator, type Role } from './operator';
import { forgetToken, keepToken, token } from './token';

/** Delay before the retry of a failed request, in milliseconds. */
const REST = 5000;

/** Start of a refusal of a proxy's assertion. */
const ASSERTION = "the proxy's assertion";

/** Text that fits into a header. */
const SENDABLE = /^[\x20-\x7e]+$/;

class Who {
  operator = $state.raw<Operator>();
  /** True if the desk requires a token. */
  wanted = $state(false);
  /** True after the first request to the desk. */
  asked = $state(false);
  /** True if signed in by a token of this tab, not by a proxy. */
  byToken = $state(false);
  /** Error of the last sign-in, or of the desk. */
  trouble = $state.raw<Trouble>();

  /** Asks the desk for the operator. Returns a function that stops it. */
  start(): () => void {
    onUnknown(this.#unknown);
    void this.#look();
    return () => onUnknown(() => {});
  }

  async signIn(text: string): Promise<void> {
    if (!SENDABLE.test(text)) {
      this.trouble = { title: 'Invalid token', text: 'Enter one line of printable ASCII characters.' };
      return;
    }
    keepToken(text);
    this.trouble = undefined;
    await this.#look();
  }

  signOut(): void {
    forgetToken();
    this.operator = undefined;
    this.trouble = undefined;
    this.wanted = true;
  }

  /** Text for a missing role. */
  lacks(role: Role): string | undefined {
    return lacking(this.operator, role);
  }

  async #look(): Promise<void> {
    try {
      this.operator = await me();
      this.byToken = token() !== undefined;
      this.wanted = false;
      this.trouble = undefined;
    } catch (error) {
      this.operator = undefined;
      // A desk that cannot check its proxy's assertion is as good as unreachable.
      if (!(error instanceof Refusal) || error.status === 503) {
        this.trouble = inWords(error);
        setTimeout(() => void this.#look(), REST);
      } else if (error.status === 403) {
        // Operators without a role to view may have another token.
        forgetToken();
        this.wanted = true;
        this.trouble = inWords(error);
      }
    }
    this.asked = true;
  }

  #unknown = (refusal: Refusal): void => {
    // No token yet is no error.
    if (token() !== undefined) {
      this.trouble = { title: 'Unknown token', text: inWords(refusal).text };
    } else if (refusal.message.startsWith(ASSERTION)) {
      this.trouble = { title: 'Sign-in by the proxy failed', text: inWords(refusal).text };
    }
    forgetToken();
    this.operator = undefined;
    this.wanted = true;
  };
}

export const who = new Who();
