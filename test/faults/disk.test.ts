// Tests a disk that fails under optimizer state or weights. One error names file, offset and fix.
// The last checkpoint is unchanged, and a run resumes from it bit for bit.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { type RankResult, runRanks } from '../comm/ranks.js';
import type { DiskJob, DiskOutcome, Report } from './disk-process.js';

const STEPS = 6;
const SAVED = 3;

let root: string;
let shim: string;
let reference: number[];

beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'ds-disk-faults-'));
  shim = join(root, 'shim.so');
  execFileSync('cc', ['-shared', '-fPIC', '-o', shim, join(__dirname, 'disk-shim.c'), '-ldl']);
  const resident = await run('reference', { nvme: null });
  reference = outcomeOf(resident).losses;
  expect(reference).toHaveLength(STEPS);
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

interface Place {
  nvme: string;
  folder: string;
}

function placeOf(name: string): Place {
  const folder = join(root, name);
  const nvme = join(folder, 'nvme');
  mkdirSync(nvme, { recursive: true });
  return { nvme, folder: join(folder, 'checkpoints') };
}

/** One rank; `fault` is a fault of disk-shim.c. */
async function run(name: string, more: Partial<DiskJob>, fault?: string): Promise<RankResult> {
  const { nvme, folder } = placeOf(name);
  const armed = join(root, name, 'armed');
  const preload = { LD_PRELOAD: shim, DS_FAULT: fault ?? '', DS_FAULT_FOLDER: nvme };
  const job: DiskJob = {
    nvme,
    folder,
    armed,
    resume: false,
    saveAfter: null,
    steps: STEPS,
    what: 'optimizer state',
    ...more,
  };
  if (fault?.startsWith('allocate')) writeFileSync(armed, '');
  const environment = fault ? { ...preload, DS_FAULT_ARMED: armed } : {};
  const [result] = await runRanks('../faults/disk-process', 1, { job, environment });
  return result as RankResult;
}

function outcomeOf({ report, stderr, code }: RankResult): DiskOutcome {
  if (code !== 0) throw new Error(`exit code ${code}: ${stderr}`);
  return report as DiskOutcome;
}

/** The run of this name has left only its checkpoint. */
function requireIntact(name: string): void {
  const { nvme, folder } = placeOf(name);
  expect(readdirSync(nvme)).toEqual([]);
  expect(readdirSync(folder).filter((entry) => entry.startsWith('global_step'))).toEqual([
    `global_step${SAVED}`,
  ]);
}

/** The run of this name resumes from its checkpoint. */
async function requireResumed(name: string, more: Partial<DiskJob> = {}): Promise<void> {
  const resumed = outcomeOf(await run(name, { resume: true, ...more }));
  expect(resumed).toEqual({ losses: reference.slice(SAVED), error: null, saving: null });
}

describe.each<[fault: string, reported: Partial<Record<keyof Report, RegExp>>]>([
  ['write-error', { op: /^write .*optimizer state of rank 0$/, got: /EIO|errno 5/, hint: /log/ }],
  ['write-full', { op: /^write /, got: /errno 28/, hint: /Free space/ }],
  ['read-error', { op: /^read .*optimizer state of rank 0$/, got: /errno 5/, hint: /log/ }],
  ['read-end', { op: /^read /, got: /end of the file/ }],
])('%s', (fault, message) => {
  test('gives one error, stops saving, and keeps the checkpoint intact', async () => {
    const { losses, error, saving } = outcomeOf(await run(fault, { saveAfter: SAVED }, fault));
    expect(losses.length).toBeGreaterThanOrEqual(SAVED);
    expect(losses).toEqual(reference.slice(0, losses.length));
    expect(error).toMatchObject({
      code: 'DS_IO',
      expected: expect.stringMatching(/bytes at offset \d+/),
    });
    for (const [field, pattern] of Object.entries(message)) {
      expect(error?.[field as keyof Report]).toMatch(pattern);
    }
    expect(saving).toMatchObject({ code: 'DS_IO', op: error?.op });
    requireIntact(fault);
    if (fault === 'write-error') await requireResumed(fault);
  });
});

test.each(['write-short', 'read-short'])('%s transfers are continued', async (fault) => {
  const outcome = outcomeOf(await run(fault, { saveAfter: SAVED }, fault));
  expect(outcome).toEqual({ losses: reference, error: null, saving: null });
});

test('a run that is killed in the middle of a step leaves nothing on the disk, and its checkpoint', async () => {
  const { signal } = await run('killed', { saveAfter: SAVED }, 'write-kill');
  expect(signal).toBe('SIGKILL');
  requireIntact('killed');
  await requireResumed('killed');
});

describe('weights on a disk', () => {
  const weights = { what: 'weights', saveAfter: SAVED } as const;

  test.each(['write-error', 'read-error'])(
    '%s is one error, and the checkpoint is as it was',
    async (fault) => {
      const name = `weights-${fault}`;
      const { losses, error, saving } = outcomeOf(await run(name, weights, fault));
      expect(losses).toEqual(reference.slice(0, losses.length));
      expect(error).toMatchObject({
        code: 'DS_IO',
        op: expect.stringMatching(/weights of rank 0$/),
        expected: expect.stringMatching(/bytes at offset \d+/),
      });
      expect(saving).toMatchObject({ code: 'DS_IO', op: error?.op });
      requireIntact(name);
      await requireResumed(name, { what: 'weights' });
    },
  );

  test('a run killed in the middle of a step resumes from its checkpoint', async () => {
    const { signal } = await run('weights-killed', weights, 'write-kill');
    expect(signal).toBe('SIGKILL');
    requireIntact('weights-killed');
    await requireResumed('weights-killed', { what: 'weights' });
  });
});

test.each(['optimizer state', 'weights'] as const)(
  'a disk without room for %s is an error before training',
  async (kind) => {
    const { losses, error } = outcomeOf(await run(`full-${kind}`, { what: kind }, 'allocate-full'));
    expect(losses).toEqual([]);
    expect(error).toMatchObject({
      code: 'DS_IO',
      op: expect.stringMatching(`preallocate .*${kind} of rank 0`),
      expected: expect.stringMatching(/GB: .*parameters/),
      got: expect.stringMatching(/free on/),
    });
  },
);
