// Tests that if the system refuses threads or memory, an error follows, or fewer threads work; no
// process dies.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { addonPath } from '../../lib/runtime/addon.js';
import { type FileEngineName, fileEngineName } from '../../lib/runtime/file.js';
import { reportsOf, runRanks } from '../comm/ranks.js';

let root: string;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'ds-scarcity-'));
  for (const shim of ['thread', 'memory']) {
    const source = join(__dirname, `${shim}-shim.c`);
    execFileSync('cc', ['-shared', '-fPIC', '-o', join(root, `${shim}.so`), source, '-ldl']);
  }
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** The process's report while `refused` injects faults. */
function reportWhere(engine: FileEngineName, shim: string, refused: Record<string, string>) {
  const armed = join(root, `armed-${Object.values(refused).join('-')}-${engine}`);
  const program = join(__dirname, 'scarcity-process.mjs');
  const { signal, stdout, stderr } = spawnSync(
    process.execPath,
    [program, addonPath(), engine, root, armed],
    {
      encoding: 'utf8',
      env: {
        ...process.env,
        LD_PRELOAD: join(root, `${shim}.so`),
        DS_FAULT_ARMED: armed,
        ...refused,
      },
    },
  );
  return { signal, stderr, report: JSON.parse(stdout || 'null') };
}

const calm = (report: readonly unknown[]) => ({ signal: null, stderr: '', report });
const none = (place: string, expected: string): unknown =>
  expect.stringMatching(new RegExp(`^DS_LIMIT ${place}: expected ${expected}, got none: `));
const noEngine = none('file engine', 'a thread that reads and writes files');
const noChecker = none('swap file', 'a thread that checks blocks');
const noTask = none('addon', 'a thread for work beside JavaScript');

const cases = [
  ['threads', 0, noEngine, noTask, 0],
  ['threads', 1, noChecker, noTask, 0],
  ['threads', 3, noChecker, noTask, 0],
  ['threads', 5, 'swapped', noTask, 2],
  ['threads', 7, 'swapped', 'asked', 2],
  ['io_uring', 0, noEngine, noTask, 0],
  ['io_uring', 1, noChecker, noTask, 0],
  ['io_uring', 2, 'swapped', noTask, 2],
] as const;

// Kernels and containers may lack io_uring.
const here = cases.filter(([engine]) => engine === 'threads' || engine === fileEngineName());

test.each(here)('%s where %i threads are granted', (engine, granted, swapped, asked, traced) => {
  const refused = { DS_FAULT_THREADS: String(granted) };
  expect(reportWhere(engine, 'thread', refused)).toEqual(calm([swapped, asked, traced]));
});

test('a rank without threads reports the error, and no rank dies', async () => {
  const outcomes: string[] = [];
  for (let granted = 0; granted < 8; ++granted) {
    const armed = join(root, `armed-rank-${granted}`);
    const refused = [`LD_PRELOAD=${join(root, 'thread.so')}`, `DS_FAULT_ARMED=${armed}`];
    const command = ['env', ...refused, `DS_FAULT_THREADS=${granted}`];
    const wrapper = (rank: number): string[] => (rank === 1 ? command : []);
    const results = await runRanks('../faults/scarce-rank-process', 2, { wrapper });
    const [other, own] = reportsOf<string>(results);
    expect([granted, other]).toEqual([granted, expect.stringMatching(/^(ended|DS_COMM )/)]);
    outcomes.push(own as string);
  }
  const unlike = outcomes.filter(
    (outcome) => !/^(ended$|DS_LIMIT .* expected a thread .* none: )/.test(outcome),
  );
  expect(unlike).toEqual([]);
  expect(outcomes.join('\n')).toContain('a thread that moves data between ranks');
  expect(outcomes.at(-1)).toBe('ended');
});

test('a thread without memory leaves the work to the other threads', () => {
  const refused = { DS_FAULT_THREADS: '1', DS_FAULT_MEMORY: '1' };
  expect(reportWhere('threads', 'thread', refused)).toEqual(calm(['swapped', 'asked', 2]));
});

test('a write succeeds if its trace line finds no memory', () => {
  const refused = { DS_FAULT_THREAD: 'ds-io', DS_FAULT_RANK: '0', RANK: '0' };
  // The read completes on a thread that checks blocks.
  expect(reportWhere('threads', 'memory', refused)).toEqual(calm(['swapped', 'asked', 1]));
});
