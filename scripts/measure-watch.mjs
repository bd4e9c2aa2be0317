// Measures the CPU time of recording a run at 50 steps a second. Needs dist/ (npm run build:ts).
//
//   node scripts/measure-watch.mjs [SECONDS]
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const require = createRequire(import.meta.url);
const { EventLog } = require('../dist/watch/event-log.js');

const RATE = 50;
const [seconds = 20] = process.argv.slice(2).map(Number);

/** The events of a step of eight ranks. */
function write(log, step) {
  const row = (track, values) => log.write({ e: 'row', track, step, values });
  const random = Math.random();
  row('train', {
    loss: 2 + random,
    lr: 1e-3 * random,
    grad_norm: random,
    step_ms: 20 * random,
    samples_per_second: 300 * random,
  });
  if (step % 5 === 0) row('phases', { forward: random, backward: random, reduce: 0.1, step: 0.2 });
  if (step % RATE !== 0) return;
  const memory = ['peak', 'weights', 'gradients', 'optimizer', 'other'];
  row('memory', Object.fromEntries(memory.map((owner) => [`device_${owner}`, 1e9 * random])));
  log.write({ e: 'ranks', step, busy: Array.from({ length: 8 }, () => random) });
}

/** CPU milliseconds of the process during the steps, with `log` or without one. */
async function measured(log) {
  const before = process.cpuUsage();
  for (let step = 1; step <= RATE * seconds; step++) {
    if (log) write(log, step);
    await sleep(1000 / RATE);
  }
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}

const dir = mkdtempSync(path.join(tmpdir(), 'ds-measure-'));
try {
  const idle = await measured(null);
  const log = new EventLog(dir);
  const written = await measured(log);
  log.close();
  const share = (written - idle) / (seconds * 1000);
  const bytes = statSync(log.path).size / (RATE * seconds);
  console.log(
    `recording ${RATE} steps/s: ${(100 * share).toFixed(2)} % of one core, ${bytes.toFixed(0)} bytes a step`,
  );
} finally {
  rmSync(dir, { recursive: true });
}
