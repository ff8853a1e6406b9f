// Trace, audit, theme, and texts of refusals.

import assert from 'node:assert/strict';

import { step } from './walker.mjs';

export async function around({ page, complaints, see, heading, place, button, picture }, first) {
  step('trace of a letter that was redriven');
  await page.goto('/#/dead-letters?show=redriven');
  await page.locator('tbody tr', { hasText: 'p:1:2' }).first().click();
  await heading('Failure');
  await page.locator('dd a code').first().click();
  await heading(`Message ${first}`);
  for (let looks = 0; (await page.getByText('not settled yet').count()) > 0 && looks < 20; looks += 1) {
    await page.waitForTimeout(500);
    await button('Trace again').click();
    await heading(`Message ${first}`);
  }
  await see('settled');
  await see('too large');
  await picture('trace');

  step('a trace by its address, and one of nothing');
  await page.goto(`/#/trace/${first}`);
  await page.reload();
  await heading(`Message ${first}`);
  await page.goto('/#/trace/192656276478504960');
  await see('No such message');

  step('audit');
  await place('Audit');
  await heading('The books balance');
  await see('in flight');
  await see('The continuous audit has closed');
  await picture('audit');
  await page.getByRole('radio', { name: 'Custom' }).check();
  await page.getByLabel('Accepted from').waitFor();
  await button('Audit').last().click();
  await page.waitForURL(/since=\d+/);
  await heading('The books balance');

  step('theme');
  await button(/^Theme: auto/).click();
  await button(/^Theme: light/).click();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
  await page.reload();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
  await button(/^Theme: dark/).click();
  assert.deepEqual(complaints, []);

  step('refusals, in words');
  // Chromium itself reports answers other than 200.
  await page.goto('/#/trace/abc');
  await see('neither a message id');
  await button('Try again').waitFor();
  await picture('refusal');
  await page.goto('/#/tasks/nothing-of-the-kind');
  await see('No task nothing-of-the-kind');
  assert.ok(complaints.every((complaint) => /40[04]/.test(complaint)), complaints.join('\n'));
}
