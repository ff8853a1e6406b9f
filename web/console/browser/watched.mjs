// Page in a real browser that collects console errors and requests to other origins.

import { mkdir } from 'node:fs/promises';
import { resolve } from 'node:path';

import { chromium } from 'playwright-core';

const pictures = resolve(import.meta.dirname, '../../screenshots');

export async function open(admin) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    // CI runs as root, where Chromium's own sandbox does not start.
    args: process.getuid?.() === 0 ? ['--no-sandbox'] : [],
  });
  const context = await browser.newContext({
    baseURL: admin,
    viewport: { width: 1360, height: 900 },
    colorScheme: 'light',
    reducedMotion: 'reduce',
  });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  await mkdir(pictures, { recursive: true });

  const complaints = [];
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('console', (line) => {
    if (line.type() === 'error' || line.type() === 'warning') complaints.push(line.text());
  });
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== admin) complaints.push(`a request to ${request.url()}`);
  });

  /** Takes a screenshot in light and one in dark. */
  async function picture(name) {
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(150);
      await page.screenshot({ path: resolve(pictures, `${name}-${colorScheme}.png`), fullPage: true });
    }
    await page.emulateMedia({ colorScheme: 'light' });
  }

  return { browser, page, complaints, picture };
}
