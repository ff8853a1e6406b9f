// Who is signed in at this desk, as far as it wants to know.

import { inWords, onUnknown, Refusal, type Trouble } from './desk';
import { lacking, me, type Operator, type Role } from './operator';
import { forgetToken, keepToken, token } from './token';

/** After the port did not answer, in milliseconds. */
const REST = 5000;

/** Begin of a refusal of what a proxy asserts. */
const ASSERTION = "the proxy's assertion";

/** What goes into a header. */
const SENDABLE = /^[\x20-\x7e]+$/;

class Who {
  operator = $state.raw<Operator>();
  /** The desk does not answer without a token. */
  wanted = $state(false);
  /** The desk was asked. */
  asked = $state(false);
  /** Known by a token of this tab, and not by what a proxy says. */
  byToken = $state(false);
  /** Why a token was not taken. */
  trouble = $state.raw<Trouble>();

  /** Asks the desk who it takes us for. Answers how to stop. */
  start(): () => void {
    onUnknown(this.#unknown);
    void this.#look();
    return () => onUnknown(() => {});
  }

  async signIn(text: string): Promise<void> {
    if (!SENDABLE.test(text)) {
      this.trouble = { title: 'This is no token', text: 'A token that a browser can send is one line of plain ASCII.' };
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

  /** Why something cannot be done that needs this role. */
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
      // A desk that cannot check what its proxy says is as good as away.
      if (!(error instanceof Refusal) || error.status === 503) {
        this.trouble = inWords(error);
        setTimeout(() => void this.#look(), REST);
      } else if (error.status === 403) {
        // One whose roles do not let them look may have another token.
        forgetToken();
        this.wanted = true;
        this.trouble = inWords(error);
      }
    }
    this.asked = true;
  }

  #unknown = (refusal: Refusal): void => {
    // Without one, nothing was wrong yet.
    if (token() !== undefined) {
      this.trouble = { title: 'This token is not known here', text: inWords(refusal).text };
    } else if (refusal.message.startsWith(ASSERTION)) {
      this.trouble = { title: 'The proxy did not sign you in', text: inWords(refusal).text };
    }
    forgetToken();
    this.operator = undefined;
    this.wanted = true;
  };
}

export const who = new Who();
