// Start of a task. Retries reuse the name: after a lost answer the task does not run twice.

import { inWords, type Trouble } from '../api/desk';
import { begin, newName, type Request } from '../api/tasks';
import { here } from '../here.svelte';
import { address } from '../route';

export class Beginning {
  asking = $state(false);
  trouble = $state.raw<Trouble>();

  readonly #name = newName(Date.now());

  /** Starts the task and opens its page. */
  async begin(request: Omit<Request, 'task'>): Promise<void> {
    this.asking = true;
    this.trouble = undefined;
    try {
      const task = await begin({ task: this.#name, ...request });
      here.go(address('tasks', task.id));
    } catch (error) {
      this.trouble = inWords(error);
    }
    this.asking = false;
  }
}
