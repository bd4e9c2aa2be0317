// The GPU half of the tests, in plain Node:
// node build/js/test/gpu.js [--device cuda] [--only REGEXP] [--repeat TIMES].
import { device as findDevice, probeGpus } from '../lib/runtime/device.js';
import { allCases } from './support/all-cases.js';

interface Tally {
  passed: number;
  failed: number;
  skipped: number;
}

function option(name: string): string | undefined {
  const at = process.argv.indexOf(`--${name}`);
  return at < 0 ? undefined : process.argv[at + 1];
}

async function main(): Promise<void> {
  const only = new RegExp(option('only') ?? '');
  const repeat = Number(option('repeat') ?? 1);
  const chosen = allCases().filter(({ name }) => only.test(name));
  if (chosen.length === 0) throw new Error(`No case has a name that matches ${only}`);
  const cases = Array.from({ length: repeat }, () => chosen).flat();
  const tally: Tally = { passed: 0, failed: 0, skipped: 0 };
  const name = option('device') ?? 'cuda';
  if (name.startsWith('cuda') && probeGpus().deviceCount === 0) {
    console.log(`no GPU: ${probeGpus().message}`);
    tally.skipped = cases.length;
  } else {
    const device = findDevice(name);
    for (const test of cases) {
      const reason = test.skip?.(device) ?? null;
      if (reason) {
        console.log(`skip ${test.name}: ${reason}`);
        tally.skipped++;
        continue;
      }
      const begin = performance.now();
      try {
        await test.run(device);
        device.synchronize();
        tally.passed++;
        const seconds = (performance.now() - begin) / 1000;
        if (seconds > 1 || repeat > 1) console.log(`passed ${test.name} (${seconds.toFixed(1)} s)`);
      } catch (error) {
        console.log(`FAIL ${test.name}\n${(error as Error).stack}`);
        tally.failed++;
      }
    }
  }
  console.log(`${tally.passed} passed, ${tally.failed} failed, ${tally.skipped} skipped`);
  process.exitCode = tally.failed > 0 ? 1 : 0;
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
