// Which nodes and slots a job takes: the limits of --num_gpus, --num_procs and --num_nodes.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';

import {
  type LaunchOptions,
  requireConsistent,
  takeLaunchOptions,
} from '../../lib/launch/launch-options.js';
import { readLines } from '../../lib/launch/lines.js';
import { selectNodes } from '../../lib/launch/nodes.js';
import { requireNoCommand } from '../../lib/launch/script.js';
import type { GpuProbe } from '../../types/addon.js';

let dir: string;
let hostfile: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-nodes-'));
  hostfile = join(dir, 'hostfile');
  writeFileSync(hostfile, 'a slots=4\nb slots=3\nc slots=3\n');
});
afterAll(() => rmSync(dir, { recursive: true }));

const probe = async (): Promise<GpuProbe> =>
  ({ library: '', deviceCount: 0, message: 'no driver' }) as GpuProbe;

const options = (options: Partial<LaunchOptions>): LaunchOptions =>
  ({ hostfile, launcher: 'ssh', ...options }) as LaunchOptions;

const select = (input: Partial<LaunchOptions>) =>
  selectNodes(options(input), { env: {}, probe, notice: () => {} });

const formatOptions = async (options: Partial<LaunchOptions>): Promise<string> =>
  (await select(options)).nodes.map(({ host, slots }) => `${host}:${slots}`).join(' ');

test.each<[Partial<LaunchOptions>, string]>([
  [{}, 'a:0,1,2,3 b:0,1,2 c:0,1,2'],
  [{ num_gpus: 1 }, 'a:0 b:0 c:0'],
  [{ num_procs: 2 }, 'a:0,1 b:0,1 c:0,1'],
  [{ num_gpus: 3 }, 'a:0,1,2 b:0,1,2 c:0,1,2'],
  [{ num_nodes: 1 }, 'a:0,1,2,3'],
  [{ num_nodes: 3 }, 'a:0,1,2,3 b:0,1,2 c:0,1,2'],
  [{ num_nodes: 2, num_gpus: 2 }, 'a:0,1 b:0,1'],
  [{ include: 'b@a:1,3' }, 'a:1,3 b:0,1,2'],
  [{ exclude: 'b@a:1,3' }, 'a:0,2 c:0,1,2'],
])('%j uses %s', async (options, expected) => {
  expect(await formatOptions(options)).toBe(expected);
});

test.each<[Partial<LaunchOptions>, string]>([
  [{ num_gpus: 4 }, '--num_gpus: expected at most the 3 slots of b, got 4'],
  [{ num_procs: 4 }, '--num_procs: expected at most the 3 slots of b, got 4'],
  [{ num_nodes: 4 }, '--num_nodes: expected at most the 3 hosts of the hostfile, got 4'],
])('%j is refused', async (options, message) => {
  await expect(select(options)).rejects.toThrow(message);
});

test('the hostfile names the device: GPUs, or the CPU with --num_procs', async () => {
  expect(await select({})).toMatchObject({ device: 'gpu', isFromHostfile: true });
  expect(await select({ num_procs: 1 })).toMatchObject({ device: 'cpu', isFromHostfile: true });
});

describe('without a hostfile', () => {
  const none = { hostfile: undefined as never };

  test('--num_procs starts processes on the CPU of this machine', async () => {
    expect(await select({ ...none, num_procs: 2 })).toEqual({
      nodes: [{ host: 'localhost', slots: ['0', '1'] }],
      device: 'cpu',
      isFromHostfile: false,
    });
  });

  test('a machine without GPUs runs one process, with a notice', async () => {
    const notices: string[] = [];
    const around = { env: {}, probe, notice: (text: string) => void notices.push(text) };
    const { nodes, device } = await selectNodes(options(none), around);
    expect([nodes, device]).toEqual([[{ host: 'localhost', slots: ['0'] }], 'cpu']);
    expect(notices).toEqual([expect.stringContaining('No GPU was found')]);
  });

  test('all GPUs are used, and --num_gpus requires GPUs', async () => {
    const probeTwo = async () => ({ deviceCount: 2, message: '' }) as GpuProbe;
    const around = { env: {}, probe: probeTwo, notice: () => {} };
    expect(await selectNodes(options(none), around)).toEqual({
      nodes: [{ host: 'localhost', slots: ['0', '1'] }],
      device: 'gpu',
      isFromHostfile: false,
    });
    const selection = await selectNodes(options({ ...none, num_gpus: 1 }), around);
    expect(selection.nodes).toEqual([{ host: 'localhost', slots: ['0'] }]);
    await expect(select({ ...none, num_gpus: 1 })).rejects.toThrow(
      /--num_gpus: expected GPUs that can be used, got none.*no driver For the CPU use --num_procs/,
    );
  });

  test('several nodes need a rank of this one', async () => {
    const options = { ...none, num_procs: 1, num_nodes: 2 };
    await expect(select(options)).rejects.toThrow('--num_nodes: expected a --hostfile');
    expect((await select({ ...options, node_rank: 0 })).nodes).toHaveLength(2);
    expect((await select({ ...none, num_procs: 1, num_nodes: 1 })).nodes).toHaveLength(1);
  });
});

test('launcher options after others override earlier ones', () => {
  const words = ['--num-gpus', '2', '--seed', '5', '-x', '--quiet'];
  const { options: found, rest } = takeLaunchOptions(words, options({ num_gpus: 1, ssh_port: 9 }));
  expect(found).toMatchObject({ num_gpus: 2, ssh_port: 9, quiet: true, hostfile });
  expect(rest).toEqual(['--seed', '5', '-x']);
  expect(takeLaunchOptions(['a'], null)).toMatchObject({
    options: { launcher: 'ssh', grace_period: 30 },
    rest: ['a'],
  });
});

test('a misspelled command is refused unless a file has that name', () => {
  const commands = ['validate', 'plan'];
  expect(() => requireNoCommand(join(dir, 'validat'), commands)).not.toThrow();
  expect(() => requireNoCommand('validat', commands)).toThrow(/Did you mean "ds validate"/);
  expect(() => requireNoCommand('train.js', commands)).not.toThrow();
  const cwd = process.cwd();
  writeFileSync(join(dir, 'pla.js'), '');
  try {
    process.chdir(dir);
    expect(() => requireNoCommand('pla', commands)).not.toThrow();
  } finally {
    process.chdir(cwd);
  }
});

test('lines of a stream; the last one may lack its line end', async () => {
  const read = async (...chunks: string[]) => {
    const stream = Readable.from(chunks.map((chunk) => Buffer.from(chunk)));
    const lines: string[] = [];
    readLines(stream, (line) => lines.push(line));
    await new Promise((resolve) => stream.once('close', resolve));
    return lines;
  };
  expect(await read('a\nb', 'c\n\nd')).toEqual(['a', 'bc', '', 'd']);
  expect(await read('a\n')).toEqual(['a']);
  expect(await read()).toEqual([]);
  const long = 'x'.repeat(70_000);
  expect(await read(long, 'y\nz')).toEqual([long, 'y', 'z']);
  expect(await read('x'.repeat(2 ** 16), 'y\n')).toEqual([`${'x'.repeat(2 ** 16)}y`]);
});

describe('options that exclude each other', () => {
  test.each(['ssh', 'pdsh'])('--launcher %s is accepted', (launcher) => {
    expect(() => requireConsistent(options({ launcher }))).not.toThrow();
  });

  test.each(['slurm', 'openmpi', 'pdshx', ''])('--launcher %j is refused', (launcher) => {
    expect(() => requireConsistent(options({ launcher }))).toThrow(
      `--launcher: expected ssh (pdsh means the same), got ${JSON.stringify(launcher)}`,
    );
  });

  test.each<[Partial<LaunchOptions>, string]>([
    [{ include: 'a', exclude: 'b' }, '--include: expected either --include or --exclude'],
    [{ include: 'a', num_nodes: 1 }, '--include: expected either --include or --num_nodes'],
    [{ exclude: 'a', num_gpus: 1 }, '--exclude: expected either --exclude or --num_gpus'],
    [{ exclude: 'a', num_procs: 1 }, '--exclude: expected either --exclude or --num_procs'],
    [{ num_gpus: 1, num_procs: 1 }, '--num_gpus: expected either --num_gpus or --num_procs'],
    [{ node_rank: 0, ssh_port: 22 }, '--node_rank: expected either --node_rank or --ssh_port'],
    [
      { node_rank: 0, launcher_args: '-v' },
      '--node_rank: expected either --node_rank or --launcher_args',
    ],
  ])('%j', (input, message) => {
    expect(() => requireConsistent(options(input))).toThrow(message);
  });

  test('one of them suffices, and an empty string counts as absent', () => {
    const alone = [{ include: 'a' }, { exclude: 'a' }, { num_gpus: 2 }, { node_rank: 1 }];
    for (const input of alone) expect(() => requireConsistent(options(input))).not.toThrow();
    const empty = { include: '', exclude: '', num_gpus: 2, num_nodes: 2 };
    expect(() => requireConsistent(options(empty))).not.toThrow();
  });
});
