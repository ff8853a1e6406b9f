// An operator's way through the console, over a real Packetboat with real dead letters:
// list, detail, redrive, trace, audit.

import assert from 'node:assert/strict';

import { Packetboat, refusingWebhook } from './packetboat.mjs';
import { open } from './watched.mjs';

const LARGE = 'x'.repeat(2000);

function step(name) {
  console.log(`  ${name}`);
}

const webhook = await refusingWebhook();
const horn = ['horn.provider = "webhook"', `horn.url = "${webhook.url}"`];
const packetboat = await Packetboat.start(['carrier.record_bytes_max = 512', ...horn]);
let browser;
try {
  step('messages that die');
  await packetboat.visits('2');
  await packetboat.visits('4');
  await packetboat.sends('1', '2', ['Are you there?', 'The boat leaves at noon.']);
  const [first] = await packetboat.sends('1', '2', [LARGE]);
  await packetboat.sends('3', '4', [LARGE, LARGE, LARGE]);
  await packetboat.letters('message', 4);
  await packetboat.letters('notification', 1);
  // The causes go away.
  webhook.refuses = false;
  await packetboat.again(horn);

  const opened = await open(packetboat.admin);
  browser = opened.browser;
  const { page, complaints, picture } = opened;
  const see = (text) => page.getByText(text).first().waitFor();
  const heading = (name) => page.getByRole('heading', { name, exact: true }).waitFor();
  const place = (name) => page.getByRole('link', { name, exact: true }).first().click();
  const button = (name) => page.getByRole('button', { name });
  const focused = () => page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.tagName);

  step('overview');
  const silent = packetboat.chatter('1', '2');
  await page.goto('/');
  await heading('Overview');
  for (const service of ['Boat', 'Station', 'Carrier', 'Horn']) await heading(service);
  await see('ready');
  // Numbers of two looks at least.
  await page.waitForFunction(() => /[1-9]/.test(document.querySelector('.tiles .value')?.textContent ?? ''));
  // Some more of them, so that the pictures show lines.
  await page.waitForTimeout(8000);
  await picture('overview');
  await silent();

  step('the list of dead letters, by keyboard');
  await place('Dead letters');
  await heading('Dead letters');
  const rows = page.locator('tbody tr');
  await rows.nth(3).waitFor();
  await see('By reason');
  const all = await rows.count();
  assert.ok(all >= 5, `${all} letters`);
  await picture('letters');
  await rows.first().focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Space');
  assert.equal(await rows.nth(1).getAttribute('aria-selected'), 'true');
  await page.keyboard.press('Space');
  assert.equal(await rows.nth(1).getAttribute('aria-selected'), 'false');
  await page.keyboard.press('Home');
  assert.ok(await rows.first().evaluate((row) => row === document.activeElement));

  step('one letter');
  await page.keyboard.press('Enter');
  await heading('Why it died');
  assert.match(page.url(), /#\/dead-letters\/message-/);
  await see('dlq-id');
  assert.equal(await page.locator('pre').count(), 0, 'nobody asked for the body');
  await picture('letter');
  await button('Show it').click();
  await page.locator('pre').waitFor();
  await button('Hide it').click();
  assert.equal(await page.locator('pre').count(), 0);

  step('filters');
  await page.goBack();
  await rows.first().waitFor();
  await page.getByLabel('Topic').selectOption('notification');
  await page.waitForURL(/topic=notification/);
  await page.waitForFunction(
    () => [...document.querySelectorAll('tbody tr code')].every((id) => !id.textContent?.startsWith('message-')),
  );
  await page.getByLabel('Topic').selectOption('message');
  await page.waitForURL(/topic=message/);
  await page.getByLabel('Conversation').fill('p:3:4');
  await page.keyboard.press('Enter');
  await page.waitForURL(/conversation=/);
  await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 3);

  step('redrive two of three');
  await rows.first().focus();
  await page.keyboard.press('Space');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Space');
  await see('2 letters chosen');
  await picture('letters-chosen');
  await button('Redrive …').click();
  await heading('Redrive 2 letters?');
  await page.keyboard.press('Escape');
  await page.locator('dialog').waitFor({ state: 'detached' });
  assert.equal(await focused(), 'BUTTON', 'the focus goes back');
  await button('Redrive …').click();
  await heading('Redrive 2 letters?');
  await picture('redrive');
  await button('Redrive 2 letters').click();
  await see('2 of 2 letters on the way again');
  await picture('redriven');
  await button('Close').click();
  await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 1);

  step('redrive the rest');
  await button('Clear').click();
  await page.waitForURL((url) => !url.hash.includes('conversation'));
  await page.waitForFunction((count) => document.querySelectorAll('tbody tr').length === count, all - 2);
  await page.getByLabel('Choose all on this page').check();
  await button('Redrive …').click();
  await button(`Redrive ${all - 2} letters`).click();
  await see(`${all - 2} of ${all - 2} letters on the way again`);
  await button('Close').click();
  await see('Nothing is dead.');
  await picture('nothing');

  step('trace of a letter that was redriven');
  await page.getByRole('radio', { name: 'Redriven' }).check();
  await page.waitForURL(/show=redriven/);
  await page.locator('tbody tr', { hasText: 'p:1:2' }).first().click();
  await heading('Why it died');
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
  await see('Nothing is known of it.');

  step('audit');
  await place('Audit');
  await heading('The books balance');
  await see('in flight');
  await picture('audit');
  await page.getByRole('radio', { name: 'Chosen' }).check();
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

  step('a narrow window');
  await page.setViewportSize({ width: 420, height: 860 });
  await page.goto('/#/dead-letters?show=all');
  await rows.first().waitFor();
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(wide, 0, 'the page scrolls sideways');
  await picture('narrow');
  assert.deepEqual(complaints, []);

  step('a refusal, in words');
  // Chromium itself complains of an answer that is no 200.
  await page.goto('/#/trace/abc');
  await see('neither a message id');
  await button('Try again').waitFor();
  await picture('refusal');
  assert.ok(complaints.every((complaint) => complaint.includes('400')), complaints.join('\n'));
} finally {
  await browser?.close();
  await packetboat.remove();
  webhook.close();
}
console.log('the console holds');
