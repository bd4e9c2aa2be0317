// Jobs on the nodes of a hostfile, through a stand-in for ssh that runs its command as sshd does.
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';

import { quote } from '../../lib/launch/shell-words.js';
import { DS, pause, Run } from './jobs.js';

let dir: string;
let runs: Run[];
beforeEach(() => {
  // A folder with a name that an unescaped command line would execute.
  dir = mkdtempSync(join(tmpdir(), "ds-ssh it's $(touch executed) "));
  runs = [];
  const hosts = ['node.a slots=1', 'node.b slots=2'];
  writeFileSync(join(dir, 'hosts'), hosts.join('\n'));
  mkdirSync(join(dir, 'bin'));
  writeFileSync(join(dir, 'bin', 'ssh'), SSH);
  chmodSync(join(dir, 'bin', 'ssh'), 0o755);
});
afterEach(async () => {
  for (const run of runs) await run.whenGone();
  rmSync(dir, { recursive: true });
});

/**
 * Logs its arguments, then runs the command in a shell with its own environment and session, like
 * sshd. The command outlives ssh; the death of ssh only ends its input.
 */
const SSH = `#!/bin/sh
printf '%s\\n' "$@" > "$SSH_LOG/ssh-$$"
while [ "$1" != -- ]; do shift; done
host=$2
shift 2
[ "$host" = node.broken ] && { echo 'Permission denied (publickey).' >&2; exit 255; }
[ "$host" = node.chatty ] && echo 'Welcome!'
exec 3<&0
mkfifo "$SSH_LOG/input-$$"
cat <&3 > "$SSH_LOG/input-$$" &
cat=$!
env -i HOME=/ PATH="$PATH" LAUNCH_TEST_MARK="$LAUNCH_TEST_MARK" HOST="$host" \\
  setsid -w sh -c "$*" < "$SSH_LOG/input-$$" 3<&-
code=$?
kill $cat
exit $code
`;

const ODD = [
  `it's`,
  '"quoted"',
  'a b',
  'a\nb',
  '$(touch executed)',
  '`touch executed`',
  '',
  '*',
  '\\',
];

function start(args: string[], script: string, env: Record<string, string> = {}): Run {
  writeFileSync(join(dir, 'script.js'), script);
  const path = `${join(dir, 'bin')}${delimiter}${process.env.PATH}`;
  const base = ['--hostfile', 'hosts', '--master_addr', '127.0.0.1'];
  const run = new Run([...DS, ...base, ...args], dir, { ...env, PATH: path, SSH_LOG: dir });
  runs.push(run);
  return run;
}

const TELL = `
const { RANK, CROSS_RANK, LOCAL_RANK, WORLD_SIZE, CUDA_VISIBLE_DEVICES, HOST, DS_JOB_SECRET, NCCL_ODD, FILE_ODD } = process.env;
console.log(JSON.stringify({ RANK, CROSS_RANK, LOCAL_RANK, WORLD_SIZE, CUDA_VISIBLE_DEVICES, HOST,
  DS_JOB_SECRET, NCCL_ODD, FILE_ODD, args: process.argv.slice(2), cwd: process.cwd() }));`;

const HOLD = 'setInterval(() => {}, 1000);';

/** The JSON output of ranks, by rank. */
function reportsIn(stdout: string): Record<string, unknown>[] {
  const texts = stdout.split('\n').filter((line) => line.includes('{'));
  return texts
    .map((text) => JSON.parse(text.slice(text.indexOf('{'))) as Record<string, unknown>)
    .sort((a, b) => Number(a.RANK) - Number(b.RANK));
}

test('arguments, folders and variables arrive unchanged and execute nothing', async () => {
  const value = `"a" 'b'\n$(touch executed) \`touch executed\``;
  writeFileSync(join(dir, '.deepspeed_env'), `FILE_ODD="x" '$(touch executed)'\n`);
  const words = `-o 'User=some one'`;
  const args = ['--ssh_port', '2222', '--launcher_args', words, 'script.js', ...ODD];
  const { code, stdout, stderr } = await start(args, TELL, { NCCL_ODD: value }).finished;
  expect({ code, stderr }).toEqual({ code: 0, stderr: expect.not.stringContaining('Error') });
  const ranks = reportsIn(stdout);
  const common = {
    WORLD_SIZE: '3',
    NCCL_ODD: value,
    FILE_ODD: `"x" '$(touch executed)'`,
    cwd: dir,
  };
  expect(ranks).toMatchObject([
    { ...common, RANK: '0', CROSS_RANK: '0', HOST: 'node.a', CUDA_VISIBLE_DEVICES: '0' },
    { ...common, RANK: '1', CROSS_RANK: '1', HOST: 'node.b', CUDA_VISIBLE_DEVICES: '0,1' },
    { ...common, RANK: '2', CROSS_RANK: '1', HOST: 'node.b', CUDA_VISIBLE_DEVICES: '0,1' },
  ]);
  expect(ranks[2]?.args).toEqual(['--local_rank=1', ...ODD]);
  const secrets = new Set(ranks.map((rank) => rank.DS_JOB_SECRET));
  expect(secrets.size).toBe(1);
  const logs = readdirSync(dir).filter((name) => name.startsWith('ssh-'));
  const lines = logs.map((name) => readFileSync(join(dir, name), 'utf8'));
  expect(lines).toHaveLength(2);
  for (const line of lines) {
    expect(line).toContain('BatchMode=yes\n');
    expect(line).toContain('-p\n2222\n-o\nUser=some one\n-o\nBatchMode=yes\n');
    expect(line).not.toContain([...secrets][0]);
  }
  expect(existsSync(join(dir, 'executed'))).toBe(false);
  expect(existsSync('executed')).toBe(false);
});

test('lines of all nodes are merged', async () => {
  writeFileSync(join(dir, 'hosts'), 'node.chatty slots=1\nnode.b slots=2');
  const script = `console.log('all'); console.error('rank ' + process.env.RANK);`;
  const { stdout, stderr } = await start(['script.js'], script).finished;
  expect(stdout).toContain('[node.chatty] Welcome!\n');
  expect(stdout).toContain('all\n');
  expect(
    stderr
      .split('\n')
      .filter((line) => line.includes('rank '))
      .sort(),
  ).toEqual(['[0] rank 0', '[1] rank 1', '[2] rank 2']);
});

test('a failure on one node ends the ranks of the others', async () => {
  const script = `
    if (process.env.RANK === '2') setTimeout(() => { console.error('lost'); process.exit(9); }, 50);
    ${HOLD}`;
  const { code, stderr } = await start(['script.js'], script).finished;
  expect(code).toBe(9);
  expect(stderr).toMatch(/ds: rank 2 on node\.b failed first: exit code 9\..*\n {2}lost\n/);
});

test('a node that ssh does not reach ends the job', async () => {
  writeFileSync(join(dir, 'hosts'), 'node.a slots=1\nnode.broken slots=1');
  const { code, stderr } = await start(['script.js'], HOLD).finished;
  expect(code).toBe(255);
  expect(stderr).toContain('ds: ssh to node.broken failed first: exit code 255.');
  expect(stderr).toContain('  Permission denied (publickey).');
});

test('a script that a node does not have ends the job', async () => {
  const { code, stderr } = await start(['absent.js'], HOLD).finished;
  expect(code).toBe(2);
  expect(stderr).toContain('script: expected a file that exists, got absent.js.');
});

test.each([
  ['SIGINT', 130],
  ['SIGKILL', null],
] as const)('%s of the launcher leaves nothing on any node', async (signal, code) => {
  const run = start(['--grace_period', '1', 'script.js'], `console.log('ready'); ${HOLD}`);
  await run.whenPrinted('ready');
  while (run.processes().length < 6) await pause(10);
  run.signalGroup(signal);
  expect(await run.finished).toMatchObject({ code });
  await run.whenGone();
});

test('a lost connection ends the ranks on both sides', async () => {
  const script = `console.log('ready ' + process.env.HOST); ${HOLD}`;
  const run = start(['script.js'], script);
  await run.whenPrinted('ready node.a');
  await run.whenPrinted('ready node.b');
  const [log] = readdirSync(dir).filter((name) => name.startsWith('ssh-'));
  process.kill(-Number(log?.slice('ssh-'.length)), 'SIGKILL');
  const { code, stderr } = await run.finished;
  expect(code).toBe(128 + 9);
  expect(stderr).toMatch(/ds: ssh to node\.[ab] failed first: signal SIGKILL/);
  await run.whenGone();
});

test('filters and limits choose hosts and slots', async () => {
  const include = await start(['-i', 'node.b:1', 'script.js'], TELL).finished;
  expect(reportsIn(include.stdout)).toMatchObject([
    { RANK: '0', WORLD_SIZE: '1', CROSS_RANK: '0', HOST: 'node.b', CUDA_VISIBLE_DEVICES: '1' },
  ]);
  const exclude = await start(['-e', 'node.b:0', 'script.js'], TELL).finished;
  expect(reportsIn(exclude.stdout)).toMatchObject([
    { HOST: 'node.a' },
    { CUDA_VISIBLE_DEVICES: '1' },
  ]);
  const limited = await start(['--num_nodes', '1', '--num_procs', '1', 'script.js'], TELL).finished;
  expect(reportsIn(limited.stdout)).toMatchObject([{ HOST: 'node.a', CUDA_VISIBLE_DEVICES: '' }]);
  const tooMany = await start(['--num_gpus', '2', 'script.js'], TELL).finished;
  expect(tooMany).toMatchObject({ code: 2 });
  expect(tooMany.stderr).toContain('--num_gpus: expected at most the 1 slots of node.a, got 2');
});

test('a hostfile with one node runs without ssh', async () => {
  const args = ['--no_ssh', '--node_rank', '1', 'script.js'];
  const { stdout } = await start(args, TELL, { DS_JOB_SECRET: 'shared' }).finished;
  expect(reportsIn(stdout)).toMatchObject([
    { RANK: '1', WORLD_SIZE: '3', DS_JOB_SECRET: 'shared' },
    { RANK: '2', LOCAL_RANK: '1' },
  ]);
  expect(readdirSync(dir).filter((name) => name.startsWith('ssh-'))).toEqual([]);
  const nobody = await start(['--no_ssh', 'script.js'], TELL).finished;
  expect(nobody.stderr).toContain('--no_ssh: expected a --node_rank on each node');
});

test('a real shell reads a quoted word as one word', async () => {
  const { execFileSync } = await import('node:child_process');
  const line = `printf '%s\\0' ${ODD.map(quote).join(' ')}`;
  expect(execFileSync('sh', ['-c', line], { encoding: 'utf8' }).split('\0')).toEqual([...ODD, '']);
});
