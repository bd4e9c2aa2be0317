// Tests that signals stop a training loop that never yields, on all ranks at the same step, and
// that a second one ends it.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { StopRequest } from '../../lib/engine/step/step-decisions.js';
import { DS, pause, Run, scriptOf } from '../launch/jobs.js';
import type { Stopped, Stopping } from './stopping-process.js';

const PROGRAM = join(__dirname, 'stopping-process');
/** In milliseconds. Signals closer than half a second count as one request. */
const APART = 700;
const ENDLESS = Number.MAX_SAFE_INTEGER;

let folder: string;
const runs: Run[] = [];
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-stopping-'));
  writeFileSync(join(folder, 'train.js'), scriptOf(PROGRAM));
});
afterEach(() => {
  for (const run of runs.splice(0)) for (const pid of run.processes()) process.kill(pid, 'SIGKILL');
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function start(options: Stopping, ...launcher: string[]): Run {
  const run = new Run([...launcher, 'train.js', JSON.stringify(options)], folder, {
    DS_NUM_THREADS: '1',
  });
  runs.push(run);
  return run;
}

/** Output lines without the labels of ranks. */
const lines = (run: Run): string[] =>
  run.stdout.split('\n').map((line) => line.replace(/^\[\d+\] /, ''));

const stopReports = (run: Run): Stopped[] =>
  lines(run)
    .filter((line) => line.includes('"heard"'))
    .map((line) => JSON.parse(line) as Stopped)
    .sort((a, b) => a.rank - b.rank);

test('a loop without await stops after the first signal; a second signal ends it at once', async () => {
  const run = start({ steps: ENDLESS, busy: 60 });
  await run.whenPrinted('training');
  run.child.kill('SIGINT');
  // npm and launchers forward the signal that the terminal sends too.
  run.child.kill('SIGINT');
  await run.whenPrinted('heard');
  const [{ requested, aborted, heard, steps }] = stopReports(run) as [Stopped];
  expect({ requested, aborted }).toEqual({ requested: true, aborted: 'Stop requested by SIGINT.' });
  expect(steps).toBeGreaterThanOrEqual(2);
  // The program's own handler stays installed. It runs only after the loop, which never yields.
  expect(heard[0]).toBe(0);
  expect(heard[1]).toBeGreaterThanOrEqual(1);
  await pause(APART);
  run.child.kill('SIGINT');
  expect(await run.finished).toMatchObject({ code: null, signal: 'SIGINT' });
});

test('a run that ignores stopRequested, or has no engine, is ended by the signal', async () => {
  const deaf = start({ steps: ENDLESS, deaf: true });
  const destroyed = start({ steps: ENDLESS, destroyed: true });
  for (const run of [deaf, destroyed]) {
    await run.whenPrinted('training');
    run.child.kill('SIGTERM');
    expect(await run.finished).toMatchObject({ code: null, signal: 'SIGTERM' });
  }
});

test('a second watch of a signal in one process is refused, and does not change the first', () => {
  const program = `
    const { addon } = require(${JSON.stringify(join(__dirname, '../../lib/runtime/addon.ts'))});
    const { SIGUSR2 } = require('node:os').constants.signals;
    process.on('SIGUSR2', () => console.log('heard', addon.notedSignal() === SIGUSR2));
    addon.watchSignal(SIGUSR2);
    try {
      addon.watchSignal(SIGUSR2);
    } catch (error) {
      console.log(error.code);
    }
    process.kill(process.pid, 'SIGUSR2');
    setTimeout(() => addon.unwatchSignal(SIGUSR2), 100);`;
  const hook = join(__dirname, '../support/run-typescript.cjs');
  const ended = spawnSync(process.execPath, ['-r', hook, '-e', program], { encoding: 'utf8' });
  expect(ended).toMatchObject({ status: 0, stdout: 'DS_ARGUMENT\nheard true\n' });
});

test('after a signal or a request on one rank, all ranks stop at the same step', async () => {
  const ds = [...DS, '--num_procs', '2'];
  const run = start({ steps: ENDLESS }, ...ds);
  await run.whenPrinted('"training":1');
  const { pid } = JSON.parse(lines(run).find((line) => line.includes('"training":1')) as string);
  process.kill(pid, 'SIGTERM');
  expect(await run.finished).toMatchObject({ code: 0 });
  const [zero, one] = stopReports(run) as [Stopped, Stopped];
  expect([zero.requested, one.requested, one.steps]).toEqual([true, true, zero.steps]);
  expect([zero.aborted, one.aborted]).toEqual([
    'Stop requested by another rank.',
    'Stop requested by SIGTERM.',
  ]);
  const asked = start({ steps: ENDLESS, request: 3 }, ...ds);
  expect(await asked.finished).toMatchObject({ code: 0 });
  // The request comes after step 3, goes out with the gradients of step 4, and reaches all ranks by
  // the end of step 5.
  expect(stopReports(asked).map(({ steps }) => steps)).toEqual([5, 5]);
});

test.each(['SIGTERM', ['SIGKILL'], ['SIGFOO'], [15], null])(
  'stopSignals %j is refused',
  (signals) => {
    expect(() => new StopRequest({ worldSize: 1, signals: signals as NodeJS.Signals[] })).toThrow(
      /initialize stopSignals: expected a list of signals/,
    );
  },
);
