// Real Packetboat in a directory of its own, with actions of users and operators by command line.

import { execFile, spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);
const SOON = 30_000;

/** Program under test, relative to the root of the repository. */
const root = resolve(import.meta.dirname, '../../..');
const program = resolve(
  root,
  process.env.PACKETBOAT_PROGRAM ?? `${process.env.CARGO_TARGET_DIR ?? 'target'}/debug/packetboat`,
);

/** Environment without the caller's own settings. */
const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('PACKETBOAT_')));

/** Webhook that refuses requests until `refuses` is false. */
export async function refusingWebhook() {
  const webhook = { refuses: true, url: '', close };
  function close() {
    server.close();
    server.closeAllConnections();
  }
  const server = createServer((request, response) => {
    request.resume().on('end', () => response.writeHead(webhook.refuses ? 400 : 200).end());
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  webhook.url = `http://127.0.0.1:${server.address().port}/`;
  return webhook;
}

export class Packetboat {
  #folder;
  #process;
  #ports = { websocket: '127.0.0.1:0', tcp: '127.0.0.1:0', admin: '127.0.0.1:0' };

  static async start(settings) {
    const packetboat = new Packetboat();
    packetboat.#folder = await mkdtemp(join(tmpdir(), 'packetboat-console-'));
    await packetboat.#start(settings);
    return packetboat;
  }

  get admin() {
    return `http://${this.#ports.admin}`;
  }

  /** Restarts on the same data and ports. */
  async again(settings) {
    await this.#end();
    await this.#start(settings);
  }

  /** Setting that admits only these operators, each with name, token and roles. */
  async operators(operators) {
    const tables = operators.map(async ({ name, token, roles }) => {
      const file = join(this.#folder, `${name}.token`);
      await writeFile(file, `${token}\n`);
      return `{ name = "${name}", token_file = "${file}", roles = ${JSON.stringify(roles)} }`;
    });
    return `admin.operators = [${(await Promise.all(tables)).join(', ')}]`;
  }

  async remove() {
    await this.#end();
    await rm(this.#folder, { recursive: true });
  }

  async #start(settings) {
    const { websocket, tcp, admin } = this.#ports;
    const file = join(this.#folder, 'packetboat.toml');
    const lines = [
      'log.level = "error"',
      `admin.listen = "${admin}"`,
      'health.listen = "127.0.0.1:0"',
      `boat.websocket = "${websocket}"`,
      `boat.tcp = "${tcp}"`,
      // Commands sign in faster than people do.
      'station.user_sign_ins_per_minute = 1000000',
      'station.user_sends_per_second = 1000000',
      ...settings,
    ];
    await writeFile(file, lines.join('\n'));
    const all = ['--config', file, 'all', '--output', 'json', '--data', join(this.#folder, 'data')];
    this.#process = spawn(program, all, { env: environment, stdio: ['ignore', 'pipe', 'inherit'] });
    const said = await Promise.race([
      new Promise((line) => createInterface(this.#process.stdout).once('line', line)),
      new Promise((_, fail) => this.#process.once('error', fail).once('exit', () => fail(new Error('it ended')))),
    ]);
    const bound = JSON.parse(said);
    for (const name of Object.keys(this.#ports)) this.#ports[name] = bound[name].split('//')[1];
  }

  async #end() {
    const ended = new Promise((gone) => this.#process.once('exit', gone));
    this.#process.kill('SIGTERM');
    await ended;
  }

  #surroundings() {
    return {
      ...environment,
      PACKETBOAT_URL: `ws://${this.#ports.websocket}`,
      PACKETBOAT_ADMIN: this.admin,
      PACKETBOAT_STATE: join(this.#folder, 'devices'),
    };
  }

  /** Output of a command, which may fail if nothing arrives. */
  async #says(...words) {
    const { stdout } = await run(program, words, { env: this.#surroundings(), timeout: SOON }).catch((failed) => failed);
    return stdout;
  }

  /** Signs in once, so that the user's desktop is known, and disconnects. */
  async visits(user) {
    await this.#says('listen', '--user', user, '--timeout', '0.7');
  }

  /** Sends messages in this order and returns their ids. */
  async sends(from, to, texts) {
    const ids = [];
    for (const text of texts) {
      const sent = JSON.parse(await this.#says('send', '--user', from, '--to', to, text));
      ids.push(sent.msg_id);
    }
    return ids;
  }

  /** Starts a chat with some messages per second. Returns a function that ends it. */
  chatter(from, to) {
    const options = { env: this.#surroundings(), stdio: ['pipe', 'ignore', 'inherit'] };
    const listener = spawn(program, ['listen', '--user', to], options);
    const sender = spawn(program, ['send', '--user', from, '--to', to, '--stdin'], options);
    sender.stdin.on('error', () => {});
    let count = 0;
    const timer = setInterval(() => sender.stdin.write(`line ${(count += 1)}\n`), 60);
    return async () => {
      clearInterval(timer);
      const both = [sender, listener].map((one) => new Promise((gone) => one.once('exit', gone)));
      sender.stdin.end();
      await pause(500);
      listener.kill('SIGTERM');
      sender.kill('SIGTERM');
      await Promise.all(both);
    };
  }

  /** Waits for `count` letters of a topic. */
  async letters(topic, count) {
    for (let waited = 0; waited < SOON; waited += 200) {
      const page = JSON.parse(await this.#says('dlq', 'list', '--topic', topic, '--output', 'json'));
      if (page.items.length >= count) return page.items;
      await pause(200);
    }
    throw new Error(`there are not ${count} dead letters of topic ${topic}`);
  }
}
