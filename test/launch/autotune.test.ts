// Tests the jobs of `ds --autotuning`: their output is in its files before a search reads it.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { autotune, type Jobs } from '../../lib/autotuning/index.js';
import { autotuneCommand } from '../../lib/launch/autotune.js';
import * as launching from '../../lib/launch/launch.js';
import type { LaunchOptions } from '../../lib/launch/launch-options.js';

jest.mock('../../lib/autotuning/index.js', () => ({ autotune: jest.fn() }));
jest.mock('../../lib/launch/launch.js', () => ({
  launch: jest.fn(async () => 7),
  createNotice: () => () => {},
  ignoreOutputErrors: () => {},
  planJob: jest.fn(),
  runJob: jest.fn(),
  withPidFile: (_: unknown, body: () => unknown) => body(),
}));

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-autotune-'));
  const nodes = [
    { host: 'a', slots: ['0'] },
    { host: 'b', slots: ['0', '1', '2'] },
  ];
  const job = { job: { nodes }, remote: [nodes[1]], here: [0] };
  jest.mocked(launching.planJob).mockResolvedValue(job as never);
});
afterEach(() => {
  jest.restoreAllMocks();
  rmSync(dir, { recursive: true });
});

const options = (options: object): LaunchOptions =>
  ({
    bind_cores_to_rank: true,
    launcher: 'ssh',
    grace_period: 30,
    autotuning: 'tune',
    ...options,
  }) as LaunchOptions;

const program = { name: 'train.js', args: ['--deepspeed', 'a b.json'], node: [] };

/** The jobs object that the command gives a search, while `body` uses it. */
async function withJobs(
  body: (jobs: Jobs) => Promise<object>,
  input: object = {},
): Promise<number> {
  const none = { isInterrupted: false, file: 'x', args: ['--best'] };
  jest
    .mocked(autotune)
    .mockImplementation(async ({ jobs }) => ({ ...none, ...(await body(jobs)) }) as never);
  return autotuneCommand(options(input), program);
}

test('a job has ended when its last line is in its file', async () => {
  const files = { out: join(dir, 'stdout.log'), err: join(dir, 'stderr.log') };
  const line = 'x'.repeat(1000);
  jest.mocked(launching.runJob).mockImplementation(async (_, { write }) => {
    for (let i = 0; i < 500; ++i) write('out', line);
    write('err', 'Error: no data');
    return { failure: null } as never;
  });
  await withJobs(async (jobs) => {
    expect(await jobs.run(['--a'], files)).toEqual({ code: 0, isInterrupted: false });
    expect(readFileSync(files.out, 'utf8')).toBe(`${line}\n`.repeat(500));
    expect(readFileSync(files.err, 'utf8')).toBe('Error: no data\n');
    return {};
  });
});

test('a job that cannot be planned leaves no open file', async () => {
  const files = { out: join(dir, 'stdout.log'), err: join(dir, 'stderr.log') };
  await withJobs(async (jobs) => {
    jest.mocked(launching.planJob).mockImplementationOnce(async (_options, _program, notice) => {
      notice?.('a notice');
      throw new Error('no such host');
    });
    await expect(jobs.run([], files)).rejects.toThrow('no such host');
    expect(readFileSync(files.err, 'utf8')).toBe('ds: a notice\n');
    return {};
  });
});

test('files that cannot be written are reported once per search', async () => {
  const stderr: string[] = [];
  jest.spyOn(process.stderr, 'write').mockImplementation((text) => stderr.push(String(text)) > 0);
  jest.mocked(launching.runJob).mockImplementation(async (_, { write }) => {
    write('out', 'a');
    write('err', 'b');
    return { failure: null } as never;
  });
  const files = { out: join(dir, 'no', 'out'), err: join(dir, 'no', 'err') };
  await withJobs(async (jobs) => {
    await jobs.run([], files);
    await jobs.run([], files);
    return {};
  });
  expect(stderr).toEqual([
    expect.stringMatching(/^ds: DS_IO \| autotuning .*no\/(out|err): expected/),
  ]);
});

test('a search gets the most slots of a node, all nodes, and a command for a shell', async () => {
  await withJobs(
    async (jobs) => {
      expect(jobs).toMatchObject({ slots: 3, nodes: 2, isRemote: true });
      expect(jobs.command(['--x', 'a b'])).toBe(
        "ds --no-bind_cores_to_rank --grace_period 60 --num_procs 30 --quiet train.js --x 'a b'",
      );
      return {};
    },
    { num_procs: 30, bind_cores_to_rank: false, quiet: true, grace_period: 60, module: false },
  );
});

test('a signal during a search ends it: no other job starts, exit code 130', async () => {
  const files = { out: join(dir, 'out'), err: join(dir, 'err') };
  jest.mocked(launching.runJob).mockClear();
  const before = process.listenerCount('SIGINT');
  const code = await withJobs(async (jobs) => {
    process.emit('SIGINT', 'SIGINT');
    expect(await jobs.run([], files)).toEqual({ code: 130, isInterrupted: true });
    return {};
  });
  expect(code).toBe(130);
  expect(launching.runJob).not.toHaveBeenCalled();
  expect(process.listenerCount('SIGINT')).toBe(before);
});

test('the exit code is that of the training with "run", and 1 without a measurement', async () => {
  expect(await withJobs(async () => ({}))).toBe(0);
  expect(launching.launch).not.toHaveBeenCalled();
  expect(await withJobs(async () => ({}), { autotuning: 'run' })).toBe(7);
  expect(jest.mocked(launching.launch).mock.lastCall?.[1]).toMatchObject({ args: ['--best'] });
  expect(await withJobs(async () => ({ file: null }), { autotuning: 'run' })).toBe(1);
  expect(await withJobs(async () => ({ isInterrupted: true }))).toBe(130);
});

test('one launcher searches: neither --node_rank nor another first host', async () => {
  await expect(withJobs(async () => ({}), { node_rank: 0 })).rejects.toThrow(/--node_rank/);
  jest.mocked(launching.planJob).mockResolvedValueOnce({
    job: { nodes: [] },
    remote: [],
    here: [1],
  } as never);
  await expect(withJobs(async () => ({}))).rejects.toThrow(/the first host of the hostfile/);
});
