// A task that is asked for. Asked again, it has the same name: an answer may have been lost, and it is not done twice.

import { inWords, type Trouble } from '../api/desk';
import { begin, newName, type Request } from '../api/tasks';
import { here } from '../here.svelte';
import { address } from '../route';

export class Beginning {
  asking = $state(false);
  trouble = $state.raw<Trouble>();

  readonly #name = newName(Date.now());

  /** Then goes to where its progress is shown. */
  async begin(request: Omit<Request, 'task'>): Promise<void> {
    this.asking = true;
    this.trouble = undefined;
    try {
      const task = await begin({ task: this.#name, ...request });
      here.go(address('tasks', task.begun.task));
    } catch (error) {
      this.trouble = inWords(error);
    }
    this.asking = false;
  }
}
