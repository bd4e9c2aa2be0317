#!/usr/bin/env node
// Sends random requests to a `ds serve` of a tiny model on the CPU.
// Usage: try-requests.mjs [--minutes 60] [--seed 1] [--clients 8]
//        try-requests.mjs --load [--minutes 10] [--clients 1000]
// Needs `npm run build:ts`. It prints counts and faults as JSON, and exits 1 if an answer is not
// documented, the good client gets no answer, the server ends, its memory grows, or blocks of its
// cache stay in use. --load runs the clients of test/serve/load.ts, and stops the server amid them.
import { spawn } from 'node:child_process';
import {
  copyFileSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const require = createRequire(import.meta.url);
require('../test/support/run-typescript.cjs');
const { tryRequests } = require('../test/serve/try-requests.ts');
const { runLoad } = require('../test/serve/load.ts');
const { HERMES } = require('../test/serve/scripted-engine.ts');
const { fromConfig } = require('../dist/models/index.js');

const { values } = parseArgs({
  options: {
    minutes: { type: 'string' },
    seed: { type: 'string', default: '1' },
    clients: { type: 'string' },
    load: { type: 'boolean', default: false },
  },
});
const minutes = Number(values.minutes ?? (values.load ? 10 : 60));
const clients = Number(values.clients ?? (values.load ? 1000 : 8));

const KEY = 'try-requests';
/** Milliseconds between two looks at the server's memory, and of one report. */
const [LOOK_MS, REPORT_MS] = [5000, 60_000];
/** Milliseconds after which --load stops the server amid requests. */
const DRAIN_MS = 5000;
/** The memory of the last quarter may be larger than that of the second by this factor. */
const GROWTH = 1.25;

const folder = mkdtempSync(join(tmpdir(), 'ds-try-requests-'));
const model = join(folder, 'tiny');
await fromConfig({
  model_type: 'llama',
  vocab_size: 1007,
  hidden_size: 32,
  intermediate_size: 48,
  num_hidden_layers: 1,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 512,
  rms_norm_eps: 1e-6,
  rope_theta: 500,
  hidden_act: 'silu',
}).save(model);
const tokenizer = join(root, 'examples', 'tokenizer');
for (const name of readdirSync(tokenizer)) copyFileSync(join(tokenizer, name), join(model, name));

const template = join(folder, 'template.jinja');
writeFileSync(template, HERMES);
const limits = values.load
  ? [
      '--context',
      '512',
      '--chat-template',
      template,
      '--max-requests',
      String(2 * clients),
      // Clients that vanish keep their connections for a moment.
      '--max-connections',
      String(4 * clients),
    ]
  : ['--context', '256', '--max-body', '256KiB', '--head-timeout', '4', '--body-timeout', '8'];
const words = ['serve', model, '--device', 'cpu', '--port', '0', ...limits];
const server = spawn(process.execPath, [join(root, 'dist/launch/cli.js'), ...words], {
  env: { ...process.env, DS_API_KEY: KEY },
  stdio: ['ignore', 'pipe', 'pipe'],
});
let printed = '';
let errors = '';
let ended = null;
server.stdout.setEncoding('utf8').on('data', (text) => {
  printed += text;
});
server.stderr.setEncoding('utf8').on('data', (text) => {
  errors = (errors + text).slice(-20_000);
});
const exited = new Promise((resolve) => {
  server.once('close', (code, signal) => {
    ended = { code, signal };
    resolve(ended);
  });
});
while (!printed.includes('ready: ')) {
  if (ended) throw new Error(`the server ended: ${errors}`);
  await new Promise((resolve) => setTimeout(resolve, 50));
}
const [, url] = /at (http:\S+)\/v1/.exec(printed);

const memory = [];
const megabytes = () =>
  Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${server.pid}/status`, 'utf8'))?.[1]) / 1024;
const look = setInterval(() => !ended && memory.push(Math.round(megabytes())), LOOK_MS);
const end = Date.now() + minutes * 60_000;
const goesOn = () => Date.now() < end && !ended;
const report = setInterval(() => console.error(`MiB: ${memory.at(-1)}`), REPORT_MS);
const options = { url, key: KEY, seed: Number(values.seed), clients, goesOn };
const counts = await (values.load ? runLoad : tryRequests)(options);
clearInterval(look);
clearInterval(report);

const quarter = Math.floor(memory.length / 4);
const leastOf = (from) => Math.min(...memory.slice(from, from + quarter));
const [before, after] = [leastOf(quarter), leastOf(3 * quarter)];
const died = ended;
const metrics = died ? '' : await (await fetch(`${url}/metrics`)).text();
const left = Number(/^ds_requests_running (\d+)/m.exec(metrics)?.[1] ?? -1);
const blocks = Number(/^ds_cache_usage_ratio (\S+)/m.exec(metrics)?.[1] ?? -1);

/** Stops the server amid requests. Answers under way must end. */
async function drain() {
  let isStopping = false;
  const stopped = runLoad({ ...options, goesOn: () => !isStopping, isStopping: () => isStopping });
  await new Promise((resolve) => setTimeout(resolve, DRAIN_MS));
  isStopping = true;
  server.kill('SIGTERM');
  const { faults, requests, refused } = await stopped;
  return { faults, requests, refused };
}
const drained = values.load && !died ? await drain() : { faults: [] };
// A second signal would end the server at once.
if (!values.load) server.kill('SIGTERM');
const last = await exited;
rmSync(folder, { recursive: true });
const isFlat = !(after > GROWTH * before);
const found = { memory: { before, after, isFlat }, died, drained, last, left, blocks };
console.log(JSON.stringify({ ...counts, ...found }, null, 1));
if (errors !== '') console.log(errors);
const isFaulty = counts.faults.length + drained.faults.length > 0 || died || !isFlat;
process.exitCode = isFaulty || left !== 0 || blocks !== 0 || last.code !== 0 ? 1 : 0;
