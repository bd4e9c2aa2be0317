// `ds script.js` over real processes: environments, output, exit codes, failures and signals.

import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { DS, type Finished, pause, Run } from './jobs.js';

let dir: string;
let runs: Run[];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-launcher-'));
  runs = [];
});
afterEach(async () => {
  for (const run of runs) await run.whenGone();
  rmSync(dir, { recursive: true });
});

function file(name: string, text: string): void {
  mkdirSync(join(dir, name, '..'), { recursive: true });
  writeFileSync(join(dir, name), text, { mode: 0o755 });
}

function start(args: string[], env: Record<string, string> = {}): Run {
  const run = new Run([...DS, ...args], dir, env);
  runs.push(run);
  return run;
}

const ds = (args: string[], env: Record<string, string> = {}): Promise<Finished> =>
  start(args, env).finished;

/** Prints the environment of each rank as JSON. */
const TELL = `
const names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_SIZE', 'CROSS_RANK', 'CROSS_SIZE',
  'MASTER_ADDR', 'MASTER_PORT', 'CUDA_VISIBLE_DEVICES', 'DS_JOB_SECRET', 'OMP_NUM_THREADS', 'FROM_FILE', 'NCCL_X', 'ODD'];
const env = Object.fromEntries(names.map((name) => [name, process.env[name]]));
const cpus = /^Cpus_allowed_list:\\s*(\\S+)/m.exec(require('fs').readFileSync('/proc/self/status', 'utf8'))[1];
console.log(JSON.stringify({ env, args: process.argv.slice(2), cpus, cwd: process.cwd() }));
`;

interface Report {
  env: Record<string, string>;
  args: string[];
  cpus: string;
  cwd: string;
}

/** The output of each rank, by rank. */
function reportsIn({ stdout }: Finished): Report[] {
  const lines = stdout.split('\n').filter((line) => line.includes('{'));
  const all = lines.map((line) => JSON.parse(line.slice(line.indexOf('{'))) as Report);
  return all.sort((a, b) => Number(a.env.RANK) - Number(b.env.RANK));
}

const HOLD = 'setInterval(() => {}, 1000);';

describe('ranks', () => {
  test('receive their rank, the secret and their arguments', async () => {
    file('tell.js', TELL);
    file('.deepspeed_env', 'FROM_FILE="a b" $(touch executed)\n');
    const odd = `it's "x"\n$(touch executed)`;
    const args = ['--num_procs', '2', '--bind_core_list', '0', 'tell.js', '-i', '--', odd, ''];
    const outcome = await ds(args, { ODD: odd, DS_JOB_SECRET: 'stale' });
    expect(outcome.code).toBe(0);
    const [zero, one] = reportsIn(outcome) as [Report, Report];
    expect(zero.args).toEqual(['--local_rank=0', '-i', '--', odd, '']);
    expect(one.args).toEqual(['--local_rank=1', '-i', '--', odd, '']);
    expect(one.env).toMatchObject({
      RANK: '1',
      LOCAL_RANK: '1',
      WORLD_SIZE: '2',
      LOCAL_SIZE: '2',
      CROSS_RANK: '0',
      CROSS_SIZE: '1',
      MASTER_ADDR: '127.0.0.1',
      CUDA_VISIBLE_DEVICES: '',
      FROM_FILE: '"a b" $(touch executed)',
      OMP_NUM_THREADS: '1',
      ODD: odd,
    });
    expect(one.env.DS_JOB_SECRET).toMatch(/^[0-9a-f]{64}$/);
    expect(zero.env.DS_JOB_SECRET).toBe(one.env.DS_JOB_SECRET);
    expect(Number(one.env.MASTER_PORT)).toBeGreaterThanOrEqual(20_000);
    expect(existsSync(join(dir, 'executed'))).toBe(false);
    expect(outcome.stderr).toContain('2 ranks on 1 cores: ranks are not bound to cores.');
    expect(outcome.stderr).toMatch(
      /^ds: ranks get the variables of .*\.deepspeed_env: FROM_FILE\.$/m,
    );
  });

  test('are bound to cores of their own', async () => {
    file('tell.js', TELL);
    const [free] = reportsIn(await ds(['--no-bind_cores_to_rank', '--num_procs', '1', 'tell.js']));
    const mask = free?.cpus as string;
    const outcome = await ds(['--num_procs', '2', '--no_local_rank', 'tell.js', 'x']);
    const [zero, one] = reportsIn(outcome) as [Report, Report];
    expect(zero.args).toEqual(['x']);
    if (outcome.stderr.includes('not bound')) return;
    expect(zero.cpus).not.toBe(one.cpus);
    expect([zero.cpus, one.cpus]).not.toContain(mask);
    expect(zero.env.OMP_NUM_THREADS).toBe(one.env.OMP_NUM_THREADS);
    const first = mask.split(/[-,]/)[0] as string;
    const listed = reportsIn(await ds(['--num_procs', '1', '--bind_core_list', first, 'tell.js']));
    expect(listed[0]?.cpus).toBe(first);
    const foreign = await ds(['--num_procs', '1', '--bind_core_list', '65000', 'tell.js']);
    expect(foreign).toMatchObject({ code: 2, stderr: expect.stringContaining('--bind_core_list') });
  });

  test('of one node among several need a shared secret and an address', async () => {
    file('tell.js', TELL);
    const node = ['--num_procs', '2', '--num_nodes', '3', '--node_rank', '1'];
    const lonely = await ds([...node, '--master_addr', '10.0.0.1', 'tell.js'], {
      DS_JOB_SECRET: '',
    });
    expect(lonely.code).toBe(2);
    expect(lonely.stderr).toContain('DS_JOB_SECRET: expected the same random text');
    const lost = await ds([...node, 'tell.js'], { DS_JOB_SECRET: 's' });
    expect(lost.stderr).toContain('--master_addr: expected the address of node 0');
    const args = [...node, '--master_addr', '10.0.0.1', 'tell.js'];
    const ranks = reportsIn(await ds(args, { DS_JOB_SECRET: 's' }));
    expect(ranks.map(({ env }) => env)).toMatchObject([
      { RANK: '2', WORLD_SIZE: '6', CROSS_RANK: '1', CROSS_SIZE: '3', DS_JOB_SECRET: 's' },
      { RANK: '3', LOCAL_RANK: '1', MASTER_ADDR: '10.0.0.1', MASTER_PORT: '29500' },
    ]);
  });

  test('run modules and TypeScript', async () => {
    file('node_modules/pkg/main.js', `console.log('module ' + process.argv.length);`);
    file('node_modules/pkg/package.json', '{ "main": "main.js" }');
    expect(await ds(['--num_procs', '1', '--module', 'pkg'])).toMatchObject({
      code: 0,
      stdout: 'module 3\n',
    });
    const absent = await ds(['--num_procs', '1', '--module', 'absent']);
    expect(absent).toMatchObject({ code: 2, stderr: expect.stringContaining('--module: ') });

    file('typed.ts', `const n: number = 2; console.log('typed ' + n);`);
    const bare = await ds(['--num_procs', '1', 'typed.ts']);
    if (bare.code === 0) return expect(bare.stdout).toBe('typed 2\n');
    expect(bare.code).toBe(2);
    expect(bare.stderr).toMatch(/Node 22.18 or newer, .*tsx.*, .*@swc-node\/register/);
    const hooks = `
      import { readFileSync } from 'node:fs';
      import { stripTypes } from './strip.cjs';
      export const load = async (url, context, next) => url.endsWith('.ts')
        ? { format: 'module', source: stripTypes(readFileSync(new URL(url), 'utf8')), shortCircuit: true }
        : next(url, context);`;
    const swc = JSON.stringify(require.resolve('@swc/core'));
    const strip = `exports.stripTypes = (source) => require(${swc}).transformSync(source, {
      swcrc: false, jsc: { parser: { syntax: 'typescript' }, target: 'es2022' } }).code;`;
    file('node_modules/tsx/package.json', '{ "exports": "./index.mjs" }');
    file(
      'node_modules/tsx/index.mjs',
      `import { register } from 'node:module'; register('./hooks.mjs', import.meta.url);`,
    );
    file('node_modules/tsx/hooks.mjs', hooks);
    file('node_modules/tsx/strip.cjs', strip);
    expect(await ds(['--num_procs', '1', 'typed.ts'])).toMatchObject({ stdout: 'typed 2\n' });
  });
});

describe('output', () => {
  test('lines carry the ranks that printed them, unless all did, and keep their order', async () => {
    const script = `
      console.log('same');
      console.log('mine ' + process.env.RANK);
      if (process.env.RANK !== '1') console.log('some');
      console.error('warning');
      process.stdout.write('no newline');`;
    file('print.js', script);
    const { stdout, stderr } = await ds(['-q', '--num_procs', '3', 'print.js']);
    const lines = stdout.trim().split('\n');
    for (const line of ['[0] mine 0', '[1] mine 1', '[2] mine 2']) expect(lines).toContain(line);
    expect(lines.some((line) => line.endsWith('no newline'))).toBe(true);
    expect(stderr).toContain('warning');
    const ofOne = lines.filter((line) => /same|mine 1|newline/.test(line));
    expect(ofOne.findIndex((l) => l.includes('same'))).toBeLessThan(ofOne.indexOf('[1] mine 1'));
  });

  test.each(['print.js', 'print.js/below', '/proc/logs'])(
    'no folder for logs, no ranks: %s',
    async (folder) => {
      file('print.js', `console.log('out');`);
      const words = ['--num_procs', '2', '--enable_each_rank_log', folder, 'print.js'];
      const { code, stdout, stderr } = await ds(words);
      expect([code, stdout]).toEqual([2, '']);
      expect(stderr).toMatch(
        /^ds: --enable_each_rank_log .*: expected a folder that can be made, got E/m,
      );
      expect(stderr).not.toMatch(/\n {4}at /);
    },
  );

  test('every rank has its own log file', async () => {
    file('print.js', `console.log('out ' + process.env.RANK); console.error('err');`);
    await ds(['--num_procs', '2', '--enable_each_rank_log', 'logs/run', 'print.js']);
    const names = readdirSync(join(dir, 'logs/run')).sort();
    expect(names).toHaveLength(2);
    names.forEach((name, rank) => {
      expect(name).toMatch(new RegExp(`^\\d{8}-\\d{6}_rank${rank}\\.log$`));
      const lines = readFileSync(join(dir, 'logs/run', name), 'utf8')
        .trim()
        .split('\n')
        .sort();
      expect(lines).toEqual(['err', `out ${rank}`]);
    });
  });
});

describe('failures', () => {
  test('the first one ends the tree, and its exit code is returned', async () => {
    const script = `
      if (process.env.RANK === '1') setTimeout(() => { console.error('out of luck'); process.exit(7); }, 100);
      require('child_process').spawn('sleep', ['1000'], { stdio: 'inherit' });
      ${HOLD}`;
    file('fail.js', script);
    const { code, stderr } = await ds(['--num_procs', '3', 'fail.js']);
    expect(code).toBe(7);
    expect(stderr).toMatch(/ds: rank 1 failed first: exit code 7\..*\n {2}out of luck\n/);
  });

  test('the error names the failed rank, not a rank that exited earlier because of it', async () => {
    const script = `
      const { existsSync, writeFileSync } = require('fs');
      if (process.env.RANK === '1') {
        console.error('DsError: out of memory');
        process.on('SIGTERM', () => process.exit(9));
        writeFileSync('failed', '');
      } else setInterval(() => {
        if (!existsSync('failed')) return;
        console.error("DsError: process group: expected every rank to stay until the end, got rank 1: its connection broke.");
        console.error("  code: 'DS_COMM',");
        process.exit(1);
      }, 10);
      ${HOLD}`;
    file('memory.js', script);
    const { code, stderr } = await ds(['--num_procs', '2', 'memory.js']);
    expect(stderr).toMatch(
      /ds: rank 1 failed first: exit code 9\..*\n {2}DsError: out of memory\n/,
    );
    expect(code).toBe(9);
    rmSync(join(dir, 'failed'));
    file('asked.js', script.replace("process.on('SIGTERM', () => process.exit(9));", ''));
    const asked = await ds(['--num_procs', '2', 'asked.js']);
    expect(asked.stderr).toMatch(
      /ds: rank 1 failed first: exit code 1\..*\n {2}DsError: out of memory/,
    );
    expect(asked.code).toBe(1);
  });

  test('a killed rank, and ranks that ignore SIGTERM', async () => {
    const script = `
      const { existsSync, writeFileSync } = require('fs');
      process.on('SIGTERM', () => console.log('asked'));
      if (process.env.RANK === '1') writeFileSync('deaf', '');
      else setInterval(() => existsSync('deaf') && process.kill(process.pid, 'SIGKILL'), 10);
      ${HOLD}`;
    file('stubborn.js', script);
    const outcome = await ds(['--num_procs', '2', '--grace_period', '5', 'stubborn.js']);
    expect(outcome.code).toBe(128 + 9);
    expect(outcome.stderr).toContain('ds: rank 0 failed first: signal SIGKILL');
    expect(outcome.stdout).toBe('[1] asked\n');
  });

  test('a rank that ends normally leaves no processes', async () => {
    file(
      'leave.js',
      `require('child_process').spawn('sleep', ['1000'], { stdio: 'inherit' }).unref();`,
    );
    expect(await ds(['--num_procs', '2', 'leave.js'])).toMatchObject({ code: 0 });
  });
});

describe('signals', () => {
  const READY = "console.log('ready ' + process.env.RANK);";

  async function bothReady(run: Run): Promise<void> {
    for (const rank of [0, 1]) await run.whenPrinted(`ready ${rank}\n`);
  }

  test.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ] as const)('%s to the group of the launcher ends every rank', async (signal, code) => {
    file('hold.js', `${READY} ${HOLD}`);
    const run = start(['--num_procs', '2', 'hold.js']);
    await bothReady(run);
    run.signalGroup(signal);
    expect(await run.finished).toMatchObject({ code });
  });

  test('ranks may finish their work; a second signal ends them at once', async () => {
    const script = `
      process.on('SIGINT', () => console.log('saving'));
      ${READY} ${HOLD}`;
    file('save.js', script);
    const run = start(['--num_procs', '2', 'save.js']);
    await bothReady(run);
    run.signalGroup('SIGINT');
    await run.whenPrinted('saving');
    await pause(700);
    run.signalGroup('SIGINT');
    expect(await run.finished).toMatchObject({ code: 130 });
  });

  test('a signal delivered twice, as through npm, counts once', async () => {
    const script = `
      process.on('SIGINT', () => setTimeout(() => { console.log('saved'); process.exit(0); }, 300));
      ${READY} ${HOLD}`;
    file('save.js', script);
    const run = start(['--num_procs', '2', 'save.js']);
    await bothReady(run);
    run.signalGroup('SIGINT');
    run.signalGroup('SIGINT');
    expect(await run.finished).toMatchObject({
      code: 130,
      stdout: expect.stringContaining('saved'),
    });
  });

  test('a closed output pipe ends every rank', async () => {
    file('talk.js', `setInterval(() => console.log('line'), 20);`);
    const run = start(['--num_procs', '2', 'talk.js']);
    await run.whenPrinted('line');
    run.child.stdout?.destroy();
    const [code] = await once(run.child, 'exit');
    expect(code).toBe(143);
  });

  test('output that finds no room ends every rank, with a word on the other stream', () => {
    file('talk.js', `setInterval(() => console.log('line'), 20);`);
    const full = openSync('/dev/full', 'w');
    const { status, stderr } = spawnSync(process.execPath, [...DS, '--num_procs', '2', 'talk.js'], {
      cwd: dir,
      stdio: ['ignore', full, 'pipe'],
      encoding: 'utf8',
    });
    closeSync(full);
    expect(status).toBe(143);
    expect(stderr).toContain('the output cannot be written, the job ends: ENOSPC');
  });

  test('SIGKILL of the launcher ends all ranks, even those that ignore signals', async () => {
    const script = `
      process.on('SIGTERM', () => {});
      require('child_process').spawn('sleep', ['1000'], { stdio: 'inherit' });
      ${READY} ${HOLD}`;
    file('ignore.js', script);
    const run = start(['--num_procs', '2', '--grace_period', '1', 'ignore.js']);
    await bothReady(run);
    expect(run.processes().length).toBeGreaterThanOrEqual(6);
    run.signalGroup('SIGKILL');
    await run.whenGone();
  });
});

describe('refusals', () => {
  test.each([
    [['serve', 'm', '--max-model-len', '8'], "'--max-model-len'\n(Use --context N.)\n"],
    [['--num_gpu', '2', 'x.js'], "unknown option '--num_gpu'\n(Did you mean --num_gpus?)"],
    [['--num_procs', '2'], 'missing required argument'],
    [['absent.js'], 'script: expected a file that exists, got absent.js.'],
    [['validat', 'x'], 'got validat. Did you mean "ds validate"?'],
    [['consolidat', 'a', 'b'], 'got consolidat. Did you mean "ds consolidate"?'],
    [['--num_procs', '0', 'x.js'], 'Expected an integer of at least 1.'],
    [
      ['--num_procs', '2', '--num_gpus', '1', 'x.js'],
      '--num_gpus: expected either --num_gpus or --num_procs',
    ],
    [
      ['--num_procs', '2', '--num_accelerators', '1', 'x.js'],
      '--num_gpus: expected either --num_gpus or --num_procs',
    ],
    [['-i', 'a', '-e', 'b', 'x.js'], '--include: expected either --include or --exclude'],
    [
      ['-i', 'a', '--num_nodes', '1', 'x.js'],
      '--include: expected either --include or --num_nodes',
    ],
    [['--hostfile', 'absent', 'x.js'], '--hostfile: expected a file that can be read, got absent'],
    [['--num_nodes', '2', 'x.js'], '--num_nodes: expected a --hostfile, or a --node_rank'],
    [['--launcher', 'slurm', 'x.js'], '--launcher: expected ssh'],
    [['--master_port', '70000', 'x.js'], 'Expected a port, 1 to 65535.'],
    [['-i', 'other:0', 'x.js'], '--include: expected one of the hosts localhost, got other'],
  ])('%j', async (args, message) => {
    const { code, stderr, stdout } = await ds(args, { CUDA_VISIBLE_DEVICES: '' });
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
    expect(stderr).toContain(message);
    expect(stderr).not.toContain('    at ');
  });
});
