// Metrics of the services.

import { step } from './walker.mjs';

export async function overview({ page, heading, see, picture }, packetboat) {
  step('overview');
  const silent = packetboat.chatter('1', '2');
  await page.goto('/');
  await heading('Overview');
  for (const service of ['Boat', 'Station', 'Carrier', 'Horn', 'Audit']) await heading(service);
  await see('ready');
  // Rates need two polls at least.
  await page.waitForFunction(() => /[1-9]/.test(document.querySelector('.tiles .value')?.textContent ?? ''));
  // More polls, so that the pictures show lines.
  await page.waitForTimeout(8000);
  await picture('overview');
  await silent();
}
