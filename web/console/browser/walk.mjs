// Walk of an operator through the console, over a real Packetboat with real dead letters: a small night with
// many letters, then trace and audit, then the same desk with sign-in.

import { around } from './around.mjs';
import { night } from './night.mjs';
import { operators } from './operators.mjs';
import { overview } from './overview.mjs';
import { Packetboat, refusingWebhook } from './packetboat.mjs';
import { step, walker } from './walker.mjs';

const LARGE = 'x'.repeat(2000);

const webhook = await refusingWebhook();
const settings = ['horn.provider = "webhook"', `horn.url = "${webhook.url}"`, 'audit.continuous = true'];
const packetboat = await Packetboat.start(['station.record_bytes_max = 512', ...settings]);
let walk;
try {
  step('messages that die');
  await packetboat.visits('2');
  await packetboat.visits('4');
  await packetboat.sends('1', '2', ['Are you there?', 'The boat leaves at noon.']);
  const [first] = await packetboat.sends('1', '2', [LARGE]);
  await packetboat.sends('3', '4', Array(5).fill(LARGE));
  await packetboat.letters('message', 6);
  await packetboat.letters('notification', 2);

  walk = await walker(packetboat.admin);
  await overview(walk, packetboat);
  /** Removes the cause of the dead letters. */
  async function mend() {
    webhook.refuses = false;
    // An open page would report errors while the port is down.
    await walk.page.goto('about:blank');
    await packetboat.again(settings);
  }
  await night(walk, mend);
  await around(walk, first);
  await operators(walk, packetboat, settings);
} finally {
  await walk?.browser.close();
  await packetboat.remove();
  webhook.close();
}
console.log('the console holds');
