// The end of npm, which its commands do not hear of.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

const hook = join(__dirname, '../support/run-typescript.cjs');
const source = join(__dirname, '../../lib/launch/npm-parent.ts');

let dir: string;
let child: ChildProcess | null = null;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-npm-'));
  mkdirSync(join(dir, 'node_modules/.bin'), { recursive: true });
  const tool = join(dir, 'node_modules/.bin/tool');
  // A shell that replaces itself by the tool leaves npm as the parent, which passes SIGTERM on.
  const end = (how: string) => `{ write('${how}'); process.exit(0); }`;
  writeFileSync(
    tool,
    `#!${process.execPath}
const { appendFileSync } = require('node:fs');
const write = (text) => appendFileSync(${JSON.stringify(join(dir, 'log'))}, text + '\\n');
require(${JSON.stringify(hook)});
const { onNpmEnd } = require(${JSON.stringify(source)});
process.on('SIGTERM', () => ${end('ended')});
onNpmEnd(() => ${end('ended')}, 50);
write(String(process.pid));
setTimeout(() => ${end('stayed')}, Number(process.argv[2]));`,
  );
  chmodSync(tool, 0o755);
  writeFileSync(
    join(dir, 'package.json'),
    '{ "name": "app", "scripts": { "back": "tool 3000 &", "log": "tool 60000 >out 2>&1; true" } }',
  );
});
afterEach(async () => {
  child?.kill('SIGKILL');
  const [pid] = logged();
  try {
    if (pid) process.kill(Number(pid), 'SIGKILL');
  } catch {
    // It has ended.
  }
  rmSync(dir, { recursive: true });
});

const logged = (): string[] => {
  const path = join(dir, 'log');
  return existsSync(path) ? readFileSync(path, 'utf8').trim().split('\n') : [];
};

/** Starts a command in the folder, and waits until the tool runs. */
async function start(...words: [string, ...string[]]): Promise<ChildProcess> {
  const [program, ...rest] = words;
  child = spawn(program, rest, { cwd: dir, stdio: 'ignore' });
  while (logged().length === 0) await delay(20);
  return child;
}

async function ending(): Promise<string | undefined> {
  while (logged().length < 2) await delay(20);
  return logged()[1];
}

test('a command of npx ends after npx has ended', async () => {
  const npm = await start('npm', 'exec', '--offline', '--', 'tool', '60000');
  npm.kill('SIGTERM');
  expect(await ending()).toBe('ended');
});

test('a command with redirected output ends after npm has ended', async () => {
  const npm = await start('npm', 'run', '--offline', 'log');
  npm.kill('SIGTERM');
  expect(await ending()).toBe('ended');
});

test('a command in the background of a script of npm stays', async () => {
  await start('npm', 'run', '--offline', 'back');
  expect(await ending()).toBe('stayed');
});

test('a command of another shell stays', async () => {
  const shell = await start('sh', '-c', 'node_modules/.bin/tool 1500; true');
  shell.kill('SIGTERM');
  expect(await ending()).toBe('stayed');
});

/** Whether this process may start another one as process 1 of its own. */
const hasNamespaces = spawnSync('unshare', ['-pf', '--mount-proc', 'true']).status === 0;

(hasNamespaces ? test : test.skip)(
  'npm as process 1 gives a notice, unless it is the parent',
  () => {
    writeFileSync(
      join(dir, 'notice.cjs'),
      `require(${JSON.stringify(hook)});
const { npmContainerNotice } = require(${JSON.stringify(source)});
console.log(npmContainerNotice('ds serve'));`,
    );
    const scripts = { shell: 'node notice.cjs', replaced: 'exec node notice.cjs' };
    writeFileSync(join(dir, 'package.json'), JSON.stringify({ name: 'app', scripts }));
    const run = (script: string, ...before: string[]): string => {
      const words = [...before, 'npm', 'run', '--offline', '--silent', script];
      return spawnSync(words[0] as string, words.slice(1), { cwd: dir, encoding: 'utf8' }).stdout;
    };
    const contained = ['unshare', '-pf', '--mount-proc'];
    expect(run('shell', ...contained)).toMatch(
      /^ds serve: npm is the first process of this container.*"exec ds serve"/,
    );
    expect(run('replaced', ...contained)).toBe('null\n');
    expect(run('shell')).toBe('null\n');
  },
);
