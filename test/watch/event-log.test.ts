// The log of a run: whole lines, resumed logs, killed writers, and hostile contents.
import { spawn } from 'node:child_process';
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { threadOptions } from '../../lib/runtime/thread.js';
import { EventLog } from '../../lib/watch/event-log.js';
import { decodeEvent, encodeEvent, eventsPath } from '../../lib/watch/events.js';
import { RunIndex } from '../../lib/watch/run-index.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-watch-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const row = (step: number, loss: number) =>
  ({ e: 'row', track: 'train', step, values: { loss } }) as const;
const lines = () => readFileSync(eventsPath(dir), 'utf8').split('\n');

async function index(): Promise<RunIndex> {
  const run = new RunIndex(dir, 'run');
  await run.update();
  expect(run.failure).toBeNull();
  return run;
}

const losses = async (run: RunIndex) => {
  const { train } = await run.readSeries({ axis: 'step' }, 4000);
  return [train.step, train.columns.loss?.mean ?? []];
};

test('rows are read back, non-finite numbers as gaps', async () => {
  const log = new EventLog(dir);
  for (const loss of [2.5, Number.NaN, Number.POSITIVE_INFINITY, 0.1 + 0.2]) {
    log.write(row(lines.length + log.path.length, loss));
  }
  log.close();
  expect(lines()[1]).toContain('"loss":"NaN"');
  expect(decodeEvent(lines()[2] as string)).toMatchObject({ values: { loss: Infinity } });
  expect(decodeEvent(lines()[3] as string)).toMatchObject({ values: { loss: 0.3 } });
});

test('a partial last line is skipped, and a later process starts a new line', async () => {
  const first = new EventLog(dir);
  first.write(row(1, 4));
  first.write(row(2, 3));
  first.close();
  appendFileSync(eventsPath(dir), '{"e":"row","track":"train","st');
  const run = await index();
  expect(await losses(run)).toEqual([
    [1, 2],
    [4, 3],
  ]);
  const second = new EventLog(dir);
  second.write(row(3, 2));
  second.close();
  await run.update();
  expect(await losses(run)).toEqual([
    [1, 2, 3],
    [4, 3, 2],
  ]);
});

test('a resumed run replaces the steps after its checkpoint', async () => {
  const log = new EventLog(dir);
  for (const step of [1, 2, 3, 4, 5]) log.write(row(step, step));
  for (const step of [3, 4]) log.write(row(step, 10 * step));
  log.close();
  expect(await losses(await index())).toEqual([
    [1, 2, 3, 4],
    [1, 2, 30, 40],
  ]);
});

test('after kill -9, the log has complete lines, except the last moment', async () => {
  const program = join(__dirname, 'killed-writer.ts');
  const child = spawn(process.execPath, [...(threadOptions.execArgv ?? []), program, dir]);
  let written = 0;
  await new Promise<void>((resolve) => {
    child.stdout.on('data', (chunk: Buffer) => {
      written = Number(chunk.toString().trim().split('\n').at(-1));
      if (written >= 60) child.kill('SIGKILL');
    });
    child.once('exit', () => resolve());
  });
  expect(child.signalCode).toBe('SIGKILL');
  const [steps] = await losses(await index());
  expect(steps?.length).toBeGreaterThan(10);
  expect(steps).toEqual(steps?.map((_, i) => i + 1));
});

test('a full disk or a closed log costs a warning, not the run', () => {
  const log = new EventLog(dir);
  const warned = jest.spyOn(process, 'emitWarning').mockImplementation();
  Object.assign(log, {
    file: {
      append() {
        throw new Error('ENOSPC: no space left on device, write');
      },
      close() {},
    },
  });
  log.write(row(1, 1));
  log.write(row(2, 1));
  log.close();
  expect(warned).toHaveBeenCalledTimes(1);
  expect(warned.mock.calls[0]?.[0]).toMatch(/log of ds watch failed .* switched off: ENOSPC/);
  warned.mockRestore();
});

test('hostile lines are ignored, and the others are read', async () => {
  const odd = [
    ...['', 'null', '[]', '"x"', '{', '{"e":"row"}', '{"e":"__proto__","time":1}'],
    ...['{"e":"toString","time":1}', '{"e":"row","time":-1,"track":"train","step":1,"values":{}}'],
    '{"e":"row","time":1,"track":"__proto__","step":1,"values":{"loss":1}}',
    '{"e":"row","time":1,"track":"train","step":1.5,"values":{"loss":1}}',
    '{"e":"row","time":1,"track":"train","step":1e300,"values":{"loss":1}}',
    '{"e":"row","time":1e300,"track":"train","step":1,"values":{"loss":1}}',
    '{"e":"row","time":1,"track":"train","step":1,"values":[1]}',
    '{"e":"ranks","time":1,"step":1,"busy":"all"}',
    `{"e":"log","time":1,"line":"${'x'.repeat(5 * 2 ** 20)}"}`,
    '{"e":"start","time":1,"name":{"a":1},"about":"no","config":"no","pid":-1,"host":7}',
    '\u0000\ufffd{"e":"log"}',
  ];
  mkdirSync(join(dir, 'watch'));
  writeFileSync(eventsPath(dir), `${odd.join('\n')}\n`);
  const wide = Object.fromEntries(Array.from({ length: 500 }, (_, i) => [`c${i}`, i]));
  const deep = `{"e":"row","time":5,"track":"train","step":7,"values":{"__proto__":1,"loss":1}}\n`;
  appendFileSync(eventsPath(dir), deep);
  appendFileSync(
    eventsPath(dir),
    encodeEvent({ e: 'row', time: 6, track: 'eval', step: 7, values: wide }),
  );
  const run = await index();
  const series = await run.readSeries({ axis: 'step' }, 10);
  expect(series.train.step).toEqual([7]);
  expect(Object.keys(series.eval.columns)).toHaveLength(64);
  expect(run.summarize()).toMatchObject({ lines: 0, starts: 1, step: 7 });
  expect(({} as Record<string, unknown>).loss).toBeUndefined();
});

test('a file that shrinks or is replaced is read again', async () => {
  const log = new EventLog(dir);
  for (const step of [1, 2, 3]) log.write(row(step, step));
  log.close();
  const run = await index();
  writeFileSync(eventsPath(dir), encodeEvent({ ...row(1, 9), time: 1 }));
  await run.update();
  expect(await losses(run)).toEqual([[1], [9]]);
});
