// Night with many letters: causes, plan, redrive, discard, restore, and the operations log.

import assert from 'node:assert/strict';

import { step } from './walker.mjs';

export async function night(walk, mend) {
  const { page, rows, see, heading, place, button, inDialog, focused, countRows, overhang, picture } = walk;
  /** Row of a cause in the summary. */
  const cause = (name) => page.getByRole('region', { name: 'Causes' }).getByRole('listitem').filter({ hasText: name });

  step('no task yet');
  await place('Tasks');
  await see('No tasks');
  await picture('tasks-none');

  step('the list of dead letters, by keyboard');
  await place('Dead letters');
  await heading('Dead letters');
  await heading('Causes');
  const all = await rows.count();
  assert.ok(all >= 8, `${all} letters`);
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
  await heading('Failure');
  assert.match(page.url(), /#\/dead-letters\/message-/);
  await see('dlq-id');
  assert.equal(await page.locator('pre').count(), 0, 'nobody asked for the body');
  await picture('letter');
  await button('Show body').click();
  await page.locator('pre').waitFor();
  await button('Hide body').click();
  assert.equal(await page.locator('pre').count(), 0);

  step('an edit that is looked at, and not kept');
  await button('Edit…').click();
  await inDialog('Show body').click();
  const envelope = page.getByRole('dialog').getByRole('textbox');
  const held = await envelope.inputValue();
  assert.ok(held.includes('"retryCount"'), held);
  await envelope.fill(held.replace('"retryCount"', '"retryCuont"'));
  await inDialog('Show diff').click();
  await see(/retryCuont/);
  assert.ok(walk.complaints.every((complaint) => complaint.includes('400')), walk.complaints.join('\n'));
  walk.complaints.length = 0;
  await envelope.fill(held.replace(/"data": "[^"]*"/, '"data": "aGVsbG8="'));
  await inDialog('Show diff').click();
  await inDialog('Save edit').waitFor();
  await see('+      "data": "aGVsbG8=",');
  await see('A carrier would read it.');
  await picture('letter-edit');
  await page.keyboard.press('Escape');
  await page.locator('dialog').waitFor({ state: 'detached' });

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
  await countRows(5);
  await page.getByRole('combobox', { name: /^Last failure/ }).selectOption('before-day');
  await see('No matching letters');
  await button('Clear filter').click();
  await countRows(all);

  step('a plan while the cause is there');
  const large = cause('too-large');
  await large.getByRole('link').first().click();
  await page.waitForURL(/cause=too-large/);
  await countRows(6);
  await picture('letters-cause');
  await large.getByRole('button', { name: 'Redrive…' }).click();
  await heading('Redrive all letters of this cause?');
  await see('would die again');
  await see('All letters would die again');
  await picture('plan-dying');
  await page.keyboard.press('Escape');
  await page.locator('dialog').waitFor({ state: 'detached' });
  assert.equal(await focused(), 'BUTTON', 'the focus goes back');

  step('a plan that is cut off');
  // Simulates very many letters.
  const shares = [
    { forecast: { type: 'place' }, letters: 712, sample: ['message-4-2'] },
    { forecast: { type: 'store' }, letters: 240, sample: ['message-7-0', 'message-7-1'] },
    { forecast: { type: 'already_there' }, letters: 31, sample: ['message-7-2'] },
    { forecast: { type: 'fail_again', cause: 'misplaced: its key belongs to partition 3' }, letters: 15, sample: ['message-7-3'] },
    { forecast: { type: 'left_alone', outcome: 'bytes_gone' }, letters: 2, sample: ['message-7-4'] },
  ];
  await page.route('**/plan', (route) => route.fulfill({ json: { letters: 1000, forecasts: shares } }));
  await button('Redrive all matching…').click();
  await see('15 letters would die again');
  await inDialog('Redrive up to 1,000 letters').waitFor();
  await see('6 letters match now.');
  await page.getByLabel('Limit (oldest first)').fill('20000');
  assert.ok(await inDialog(/^Redrive up to/).isDisabled());
  await page.getByLabel('Limit (oldest first)').fill('4000');
  await inDialog('Redrive up to 4,000 letters').waitFor();
  await see('Takes at least 80 s.');
  await picture('plan-cut-off');
  await page.setViewportSize({ width: 420, height: 860 });
  await picture('narrow-plan');
  await page.setViewportSize({ width: 1360, height: 900 });
  await inDialog('Close').click();
  await page.unroute('**/plan');

  step('a redrive that dies again');
  await rows.first().focus();
  await page.keyboard.press('Space');
  await button('Redrive 1 selected…').click();
  await heading('Redrive 1 letter?');
  await see('All letters would die again');
  await inDialog('Redrive 1 letter').click();
  await heading('Redrive of 1 letter');
  await see('1 letter in');
  const again = page.getByRole('region', { name: 'Died again' });
  for (let looks = 0; (await again.getByRole('listitem').count()) === 0 && looks < 60; looks += 1) {
    await page.waitForTimeout(250);
    await again.getByRole('button', { name: 'Refresh' }).click();
    await again.getByText(/none|1 letter/).first().waitFor();
  }
  assert.match(await again.getByRole('listitem').innerText(), /^message-/);
  await picture('task-died-again');
  assert.deepEqual(walk.complaints, []);

  step('a plan after it is gone');
  await mend();
  await page.goto('/#/dead-letters');
  await heading('Causes');
  await large.getByRole('button', { name: 'Redrive…' }).click();
  await see('would be placed');
  await page.getByLabel('Letters per second').fill('0');
  await see('Enter a whole number from 1 to 1,000.');
  assert.ok(await inDialog('Redrive 6 letters').isDisabled());
  await page.getByLabel('Letters per second').fill('1');
  await page.getByLabel('Reason (recorded').fill('the limit was raised');
  await picture('plan');

  step('redrive of one cause, slowly, to its end');
  await inDialog('Redrive 6 letters').click();
  await page.waitForURL(/#\/tasks\/t/);
  const taskName = decodeURIComponent(new URL(page.url()).hash.split('/').at(-1));
  await heading('Redrive of 6 letters');
  await see('running');
  await button('Pause…').click();
  await page.getByLabel('Reason (recorded').fill('a look first');
  await inDialog('Pause').click();
  await see(/Paused by .*: a look first/);
  await picture('task-paused');
  await button('Resume').click();
  await page.waitForFunction(() => /[2-5]/.test(document.querySelector('.far strong')?.textContent ?? ''));
  await picture('task-running');
  await see('6 letters in');
  await heading('Died again');
  await see('None so far.');
  await page.getByText('redriven: will be placed and delivered').click();
  await picture('task-over');
  await place('Tasks');
  await page.getByRole('row').getByText('6 of 6').waitFor();

  step('discard of the rest, with a reason and the count');
  await place('Dead letters');
  const refused = cause('refused');
  await refused.getByRole('button', { name: 'Discard…' }).waitFor();
  const rest = all - 6;
  await countRows(rest);
  await button('Discard all…').click();
  await heading('Discard all letters?');
  await page.getByLabel('Reason (recorded').fill('nobody needs these taps');
  assert.ok(await inDialog(/^Discard/).isDisabled(), 'nobody said how many');
  await page.getByLabel('Number of letters').fill(String(rest + 1));
  assert.ok(await inDialog(/^Discard/).isDisabled(), 'it is another number');
  await page.getByLabel('Number of letters').fill(String(rest));
  await picture('discard');
  await inDialog(/^Discard/).click();
  await heading(`Discard of ${rest} letters`);
  await see(`${rest} letters in`);
  await place('Dead letters');
  await see('No dead letters');
  await picture('nothing');

  step('restore of one');
  await page.getByRole('radio', { name: 'Discarded' }).check();
  await countRows(rest);
  await picture('letters-discarded');
  await rows.first().focus();
  await page.keyboard.press('Space');
  await see('1 letter selected');
  await button('Restore 1 selected…').click();
  await heading('Restore 1 letter?');
  await page.getByLabel('Reason (recorded').fill('this one after all');
  await inDialog('Restore 1 letter').click();
  await heading('Restore of 1 letter');
  await see('1 letter in');

  step('redrive of it, by its name');
  await page.getByText('restored').click();
  await page.getByRole('link', { name: /^notification-/ }).click();
  await heading('Failure');
  await button('Redrive…').click();
  await heading('Redrive 1 letter?');
  await see('would be notified again');
  await inDialog('Redrive 1 letter').click();
  await heading('Redrive of 1 letter');
  await see('1 letter in');
  await page.goto('/#/dead-letters?show=all');
  // One letter died again, so there is one more.
  await countRows(all + 1);
  await rows.first().focus();
  assert.ok(await rows.first().getByRole('checkbox').isDisabled(), 'it was redriven');

  step('the tasks, and what operators did');
  await place('Tasks');
  await countRows(5);
  await picture('tasks');
  await page.getByRole('radio', { name: 'Operations' }).check();
  await see('a look first');
  await see('nobody needs these taps');
  await see('this one after all');
  await see('read body');
  await picture('operations');
  const decided = await rows.count();
  await button('All lines').click();
  await page.waitForFunction((count) => document.querySelectorAll('tbody tr').length > count, decided);
  await see('selected');

  step('a task by its address, and one of nothing');
  await page.goto(`/#/tasks/${taskName}`);
  await page.reload();
  await heading('Redrive of 6 letters');

  step('a narrow window');
  await page.setViewportSize({ width: 420, height: 860 });
  await heading('Redrive of 6 letters');
  assert.equal(await overhang(), 0, 'the task scrolls sideways');
  await picture('narrow-task');
  await page.goto('/#/tasks');
  await rows.first().waitFor();
  assert.equal(await overhang(), 0, 'the tasks scroll sideways');
  await picture('narrow-tasks');
  await page.goto('/#/dead-letters?show=all');
  await rows.first().waitFor();
  await heading('Causes');
  assert.equal(await overhang(), 0, 'the letters scroll sideways');
  await picture('narrow');
  await page.setViewportSize({ width: 1360, height: 900 });
}
