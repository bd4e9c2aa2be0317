// `ds train --watch` and `ds watch` as a user runs them.
import { cpSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { nn, seed } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { decodeEvent, eventsPath, type RunEvent } from '../../lib/watch/events.js';
import { readOrCreateToken } from '../../lib/watch/request-guard.js';
import { DS, Run } from '../launch/jobs.js';

let dir: string;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-watch-'));
  seed(1);
  const sizes = { layers: 1, heads: 2, kvHeads: 1, channels: 32, hidden: 64, maxSeq: 64 };
  const model = new nn.models.Llama({ vocabSize: 1007, ...sizes, tied: true });
  await nn.saveWeights(model, join(dir, 'model'), { format: 'hf' });
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), join(dir, 'model'), { recursive: true });
  const rows = Array.from({ length: 16 }, (_, i) => JSON.stringify({ text: `row ${i} of a few` }));
  writeFileSync(join(dir, 'rows.jsonl'), rows.join('\n'));
});
afterAll(() => rmSync(dir, { recursive: true }));

const start = (line: string): Run =>
  new Run([...DS, ...line.split(' ')], dir, { DS_NUM_THREADS: '1' });

const TRAIN =
  'train --model model --data rows.jsonl --eval_data rows.jsonl --dataset_num_proc 0 --max_length 64 --per_device_train_batch_size 2 --num_train_epochs 1 --save_strategy no';

function eventsOf(folder: string): RunEvent[] {
  const lines = readFileSync(eventsPath(join(dir, folder)), 'utf8').split('\n');
  return lines.map(decodeEvent).filter((event) => event !== null);
}

test('ds train --watch on two ranks: the address, samples, rank times and an end', async () => {
  const { code, stdout } = await start(`--num_procs 2 ${TRAIN} --output both --watch 0`).finished;
  expect(code).toBe(0);
  const [, token] = /watch this run at http:\/\/127\.0\.0\.1:\d+\/#([\w-]{43})/.exec(stdout) ?? [];
  expect(token).toBeDefined();
  const events = eventsOf('both');
  const kinds = new Set(events.map(({ e }) => e));
  expect([...kinds].sort()).toEqual(['end', 'length', 'log', 'ranks', 'row', 'start', 'text']);
  const busy = [expect.any(Number), expect.any(Number)];
  expect(events.find(({ e }) => e === 'ranks')).toMatchObject({ busy });
  const text = readFileSync(eventsPath(join(dir, 'both')), 'utf8');
  expect(text).not.toContain(token);
  expect(text).toContain('"reason":"done"');
});

test('ds watch serves a finished run until a signal, and reports errors', async () => {
  expect((await start(`${TRAIN} --device cpu --output alone`).finished).code).toBe(0);
  const watch = start('watch alone --port 0');
  await watch.whenPrinted('/#');
  const { origin, hash } = new URL(watch.stdout.trim().split(' at ')[1] as string);
  const headers = { authorization: `Bearer ${hash.slice(1)}` };
  const answer = await fetch(`${origin}/api/runs`, { headers });
  expect(await answer.json()).toMatchObject({ runs: [{ name: 'alone', state: 'ended', step: 8 }] });
  expect((await fetch(`${origin}/api/runs`)).status).toBe(401);
  watch.child.kill('SIGINT');
  expect(await watch.finished).toMatchObject({ code: 0, stderr: '' });

  const none = await start('watch model').finished;
  expect(none).toMatchObject({ code: 2, stdout: '' });
  expect(none.stderr).toMatch(/ds watch .*model: expected a run: .*, got a folder without one/);
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  const { port } = other.address() as AddressInfo;
  const busy = await start(`watch alone --port ${port}`).finished;
  expect(busy.stderr).toMatch(/expected an address and a port that are free, got .*EADDRINUSE/);
  await new Promise((resolve) => other.close(resolve));
});

test('--no_watch records nothing', async () => {
  expect((await start(`${TRAIN} --device cpu --output bare --no_watch`).finished).code).toBe(0);
  expect(() => statSync(join(dir, 'bare', 'watch'))).toThrow('ENOENT');
});

test('the file of the token is readable only by the user', () => {
  const file = join(dir, 'kept', 'watch-token');
  const token = readOrCreateToken(file);
  expect(token).toMatch(/^[\w-]{43}$/);
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect(readOrCreateToken(file)).toBe(token);
  writeFileSync(join(dir, 'open'), `${token}\n`, { mode: 0o644 });
  expect(readOrCreateToken(join(dir, 'open'))).not.toBe(token);
  writeFileSync(join(dir, 'odd'), 'short\n', { mode: 0o600 });
  expect(readOrCreateToken(join(dir, 'odd'))).toMatch(/^[\w-]{43}$/);
});
