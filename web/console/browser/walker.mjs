// Driver of the console: what to look for and what to press.

import { open } from './watched.mjs';

export function step(name) {
  console.log(`  ${name}`);
}

export async function walker(admin) {
  const opened = await open(admin);
  const { page } = opened;
  return {
    ...opened,
    rows: page.locator('tbody tr'),
    see: (text) => page.getByText(text).first().waitFor(),
    heading: (name) => page.getByRole('heading', { name, exact: true }).waitFor(),
    place: (name) => page.getByRole('link', { name, exact: true }).first().click(),
    button: (name) => page.getByRole('button', { name }),
    inDialog: (name) => page.getByRole('dialog').getByRole('button', { name }),
    focused: () => page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.tagName),
    countRows: (count) => page.waitForFunction((rows) => document.querySelectorAll('tbody tr').length === rows, count),
    /** Pixels by which the page is wider than the window. */
    overhang: () => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth),
  };
}
