// Desk with sign-in: no token, an operator who may only view, an operator with every role used here.

import assert from 'node:assert/strict';

import { step } from './walker.mjs';

const VERA = { name: 'vera', token: 'vera-may-only-look-at-it', roles: ['view'] };
const ANN = { name: 'ann', token: 'ann-may-do-what-there-is', roles: ['view', 'view-body', 'redrive', 'discard'] };

export async function operators(walk, packetboat, settings) {
  const { page, complaints, rows, see, heading, place, button, picture, overhang } = walk;
  const signIn = async ({ token }) => {
    await page.getByLabel('Operator token').fill(token);
    await button('Sign in').click();
  };

  step('refused without a token');
  await page.goto('about:blank');
  await packetboat.again([...settings, await packetboat.operators([VERA, ANN])]);
  complaints.length = 0;
  const answer = await fetch(`${packetboat.admin}/api/v1/dead-letters/tasks`);
  assert.equal(answer.status, 401);
  await page.goto('/#/dead-letters?show=all');
  await heading('Sign in');
  await picture('sign-in');
  await signIn({ token: 'nobody-has-this-one' });
  await see('Unknown token');
  await picture('sign-in-refused');
  await place('Overview');
  await heading('Carrier');
  await place('Sign in');
  assert.ok(complaints.every((complaint) => complaint.includes('401')), complaints.join('\n'));
  complaints.length = 0;

  step('one who may only look');
  await heading('Sign in');
  await page.goto('/#/dead-letters?show=discarded');
  await signIn(VERA);
  await heading('Dead letters');
  await see('vera lacks the roles “redrive” and “discard”');
  await rows.first().waitFor();
  assert.ok(await button('Restore all…').isDisabled());
  await rows.first().focus();
  await page.keyboard.press('Space');
  assert.ok(await button('Restore 1 selected…').isDisabled());
  await picture('viewer');
  await rows.first().focus();
  await page.keyboard.press('Enter');
  await heading('Failure');
  await see('vera lacks the role “discard”');
  await see('vera lacks the role “view-body”');
  assert.ok(await button('Show body').isDisabled());
  await picture('viewer-letter');
  const forced = await page.evaluate(async (token) => {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${token}` };
    const body = JSON.stringify({ work: 'redrive', selection: { type: 'ids', ids: ['message-0-0'] } });
    return (await fetch('/api/v1/dead-letters/tasks', { method: 'POST', headers, body })).status;
  }, VERA.token);
  assert.equal(forced, 403, 'the server has the last word');
  await page.reload();
  await heading('Failure');
  assert.ok(!page.url().includes(VERA.token));

  step('sign out, and one who may do everything');
  await button('Sign out').click();
  await heading('Sign in');
  assert.equal(await page.evaluate(() => sessionStorage.length), 0, 'nothing is kept');
  await signIn(ANN);
  await heading('Failure');
  const why = page.getByLabel('Reason for access');
  await button('Show body').click();
  assert.ok(await why.evaluate((input) => !input.checkValidity()), 'a reason is needed');
  assert.equal(await page.locator('pre').count(), 0);
  await why.fill('a complaint about this one');
  await button('Show body').click();
  await page.locator('pre').waitFor();
  await button('Restore…').click();
  await page.getByRole('dialog').getByRole('button', { name: 'Restore 1 letter' }).click();
  await heading('Restore of 1 letter');
  await see('1 letter in');

  step('a letter of a plan, in a tab that is signed in as well');
  await page.goto('/#/dead-letters');
  await button('Redrive all…').click();
  const dialog = page.getByRole('dialog');
  const [tab] = await Promise.all([page.waitForEvent('popup'), dialog.getByRole('link').first().click()]);
  await tab.getByRole('heading', { name: 'Failure', exact: true }).waitFor();
  await tab.close();
  await dialog.getByRole('button', { name: 'Close' }).click();

  step('what operators did');
  await page.goto('/#/tasks?show=operations');
  await see('a complaint about this one');
  await page.getByRole('row', { name: /ann.*read body/ }).waitFor();
  await picture('signed-in');
  await page.setViewportSize({ width: 420, height: 860 });
  assert.equal(await overhang(), 0, 'the operations scroll sideways');
  await picture('narrow-signed-in');
  assert.ok(complaints.every((complaint) => /40[13]/.test(complaint)), complaints.join('\n'));
}
