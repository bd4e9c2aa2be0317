// Runs jest on some files of a tree, with a limit of time, and ends all processes that the run
// started.
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));

/** Ends every process with this mark in its environment, also one in a session of its own. */
function endMarked(mark) {
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
    try {
      const environment = readFileSync(`/proc/${name}/environ`, 'latin1');
      if (environment.includes(mark)) process.kill(Number(name), 'SIGKILL');
    } catch {
      // It has ended, or belongs to another user.
    }
  }
}

/** Lines of the log that tests and instrumented sources have written, as { kind, time, text }. */
function readLog(path) {
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, 'utf8').split('\n').slice(0, -1);
  return lines.map((line) => {
    const [kind, time, text] = line.split('\t');
    return { kind, time: Number(time), text };
  });
}

function jestArguments(tree, files, names) {
  const config = ['--config', join(tree, 'jest.config.cjs'), '--runInBand', '--ci', '--silent'];
  const own = ['--env', join(here, 'environment.cjs')];
  const order = ['--testSequencer', join(here, 'given-order.cjs'), '--watchman=false'];
  const only = names ? ['-t', names] : [];
  return [...config, ...own, ...order, ...only, '--runTestsByPath', ...files];
}

/** `{ code, seconds, log, output }` of a run; `code` is null where time ran out. */
export async function runTests(tree, { files, names, ids, limit }) {
  const mark = `MUTATE_MARK=${randomBytes(8).toString('hex')}`;
  const hits = `${tree}.log`;
  rmSync(hits, { force: true });
  const environment = { ...process.env, MUTATE_HITS: hits, MUTATE_ORDER: files.join(':') };
  environment.MUTATE_MARK = mark.split('=')[1];
  if (ids) environment.MUTATE_IDS = ids.join(',');
  const jest = join(tree, 'node_modules/jest/bin/jest.js');
  const started = Date.now();
  const child = spawn(process.execPath, [jest, ...jestArguments(tree, files, names)], {
    cwd: tree,
    env: environment,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk) => {
      output = (output + chunk).slice(-20_000);
    });
  }
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    endMarked(mark);
  }, limit * 1000);
  const code = await new Promise((resolve) => child.once('exit', resolve));
  clearTimeout(timer);
  endMarked(mark);
  const seconds = (Date.now() - started) / 1000;
  return { code: isLate ? null : (code ?? 1), seconds, log: readLog(hits), output };
}
