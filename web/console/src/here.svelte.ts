// Route in the address bar.

import { parseRoute, type Route } from './route';

class Here {
  route = $state.raw<Route>(parseRoute(location.hash));

  constructor() {
    addEventListener('hashchange', () => {
      this.route = parseRoute(location.hash);
    });
  }

  go(hash: string): void {
    location.hash = hash;
  }
}

export const here = new Here();
