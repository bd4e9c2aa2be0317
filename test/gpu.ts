// The GPU half of the tests, in plain Node: node build/js/test/gpu.js [--device cuda] [--only
// REGEXP] [--gpus N] [--repeat TIMES] [--part K/N].
import { spawnSync } from 'node:child_process';
import { type Device, device as findDevice, probeGpus } from '../lib/runtime/device.js';
import { allCases } from './support/all-cases.js';
import { type Case, whySkipped } from './support/case.js';

interface Tally {
  passed: number;
  failed: number;
  skipped: number;
}

function option(name: string): string | undefined {
  const at = process.argv.indexOf(`--${name}`);
  return at < 0 ? undefined : process.argv[at + 1];
}

/**
 * Cases that the command line chooses: by name, by number of GPUs, repeated, every N-th.
 */
function chosenCases(): Case[] {
  const only = new RegExp(option('only') ?? '');
  const gpus = option('gpus');
  const isWanted = (test: Case): boolean => gpus === undefined || Number(gpus) === (test.gpus ?? 1);
  const chosen = allCases().filter((test) => only.test(test.name) && isWanted(test));
  const which = gpus === undefined ? '' : ` and needs ${gpus} GPUs`;
  if (chosen.length === 0) throw new Error(`No case has a name that matches ${only}${which}`);
  const repeat = Number(option('repeat') ?? 1);
  const cases = Array.from({ length: repeat }, () => chosen).flat();
  const [part, parts] = (option('part') ?? '1/1').split('/').map(Number) as [number, number];
  const selected = cases.filter((_, i) => i % parts === part - 1);
  return selected.slice(Number(option('from') ?? 0));
}

/**
 * Whether a failed case has taken the process's GPU context with it: then all others would fail.
 */
function isLost(device: Device): boolean {
  try {
    device.synchronize();
    return false;
  } catch {
    return true;
  }
}

const textOf = ({ passed, failed, skipped }: Tally) =>
  `${passed} passed, ${failed} failed, ${skipped} skipped`;

/** Runs the cases after the first `done` in another process and prints its output. */
function goOnElsewhere(done: number): void {
  const from = String(Number(option('from') ?? 0) + done);
  console.log(`The GPU context is lost: case ${from} and later run in a process of their own`);
  const at = process.argv.indexOf('--from');
  const words = process.argv.slice(1).filter((_, i) => at < 0 || i + 1 < at || i + 1 > at + 1);
  const { status } = spawnSync(process.execPath, [...words, '--from', from], { stdio: 'inherit' });
  process.exitCode = status || 1;
}

async function main(): Promise<void> {
  const cases = chosenCases();
  const repeat = Number(option('repeat') ?? 1);
  const tally: Tally = { passed: 0, failed: 0, skipped: 0 };
  const name = option('device') ?? 'cuda';
  if (name.startsWith('cuda') && probeGpus().deviceCount === 0) {
    console.log(`no GPU: ${probeGpus().message}`);
    tally.skipped = cases.length;
  } else {
    const device = findDevice(name);
    let printed = performance.now();
    for (const [i, test] of cases.entries()) {
      const reason = whySkipped(test, device);
      if (reason) {
        console.log(`skip ${test.name}: ${reason}`);
        tally.skipped++;
        continue;
      }
      const begin = performance.now();
      // A time limit may end this process before its last line.
      if (begin - printed > 20_000) {
        console.log(`after ${i} of ${cases.length} cases: ${textOf(tally)}`);
        printed = begin;
      }
      try {
        await test.run(device);
        device.synchronize();
        tally.passed++;
        const seconds = (performance.now() - begin) / 1000;
        if (seconds > 1 || repeat > 1) console.log(`passed ${test.name} (${seconds.toFixed(1)} s)`);
      } catch (error) {
        console.log(`FAIL ${test.name}\n${(error as Error).stack}`);
        tally.failed++;
        if (isLost(device)) {
          console.log(textOf(tally));
          goOnElsewhere(i + 1);
          return;
        }
      }
    }
  }
  console.log(textOf(tally));
  process.exitCode = tally.failed > 0 ? 1 : 0;
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
