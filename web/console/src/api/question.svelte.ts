// One request to the desk at a time, with its last answer or error.

import { inWords, Refusal, type Trouble } from './desk';

type Call<Answer> = (signal: AbortSignal) => Promise<Answer>;

export class Question<Answer> {
  answer = $state.raw<Answer>();
  trouble = $state.raw<Trouble>();
  /** True if the last answer was 404. */
  isMissing = $state(false);
  asking = $state(false);

  #turn: AbortController | undefined;
  #last: Call<Answer> | undefined;

  /** Sends a request and aborts the pending one. */
  async ask(call: Call<Answer>): Promise<void> {
    this.#turn?.abort();
    const turn = new AbortController();
    this.#turn = turn;
    this.#last = call;
    this.asking = true;
    this.trouble = undefined;
    this.isMissing = false;
    try {
      const answer = await call(turn.signal);
      if (!turn.signal.aborted) this.answer = answer;
    } catch (error) {
      if (!turn.signal.aborted) {
        this.answer = undefined;
        this.trouble = inWords(error);
        this.isMissing = error instanceof Refusal && error.status === 404;
      }
    } finally {
      if (this.#turn === turn) this.asking = false;
    }
  }

  again = (): void => {
    if (this.#last) void this.ask(this.#last);
  };

  forget(): void {
    this.#turn?.abort();
    this.#turn = undefined;
    this.asking = false;
    this.answer = undefined;
    this.trouble = undefined;
  }
}
