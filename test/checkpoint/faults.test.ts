// Every file call of a save, an export and a consolidation fails once: a typed error, the old checkpoint or the new one
// whole, and nothing left behind by the save after it.
import * as files from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { consolidate } from '../../lib/checkpoint/index.js';
import { DsError } from '../../lib/errors.js';
import { addon } from '../../lib/runtime/addon.js';
import { content, save, valuesOf } from './content.js';

const HOSTS = [
  ['mkdir', 'readdir', 'rename', 'lstat', 'writeFile', 'readFile', 'unlink', 'rmdir', 'statfs'],
  ['syncPath', 'renameExclusive', 'lockFile', 'writeFile'],
] as const;
/** The module's own object: namespaces cannot be patched. */
const node =
  jest.requireActual<Record<string, (...args: unknown[]) => Promise<unknown>>>('node:fs/promises');
const native = addon as unknown as typeof node;
const CALLS = [
  ...HOSTS[0].map((name) => ({ host: node, name, error: nodeError(name) })),
  ...HOSTS[1].map((name) => ({ host: native, name, error: nativeError(name) })),
];

function nodeError(syscall: string): Error {
  const message = `EIO: i/o error, ${syscall} '/somewhere'`;
  return Object.assign(new Error(message), { code: 'EIO', errno: -5, syscall });
}

function nativeError(op: string): Error {
  const got = 'Input/output error (errno 5)';
  return Object.assign(new Error(got), { code: 'DS_IO', op, expected: 'success', got, hint: '' });
}

let dir: string;
beforeEach(async () => {
  dir = await files.mkdtemp(join(tmpdir(), 'ds-faults-'));
});
afterEach(() => files.rm(dir, { recursive: true, force: true }));

/** Runs `body` with the call of this number failing; returns how many calls there were, and what was thrown. */
async function withFault(
  { host, name, error }: (typeof CALLS)[number],
  number: number,
  body: () => Promise<unknown>,
): Promise<{ calls: number; thrown: unknown }> {
  let calls = 0;
  const real = host[name] as (...args: unknown[]) => Promise<unknown>;
  const spy = jest.spyOn(host, name).mockImplementation((...args: unknown[]) => {
    return ++calls === number ? Promise.reject(error) : real.apply(host, args);
  });
  try {
    return await body().then(
      () => ({ calls, thrown: null }),
      (thrown: unknown) => ({ calls, thrown }),
    );
  } finally {
    spy.mockRestore();
  }
}

/** Fails each call of each kind in turn. Returns how many there were. */
async function everyFault(
  body: () => Promise<unknown>,
  check: (place: string) => Promise<void>,
): Promise<number> {
  let places = 0;
  for (const call of CALLS) {
    for (let number = 1; ; ++number) {
      const { calls, thrown } = await withFault(call, number, body);
      const place = `${call.name} ${number}`;
      const said = thrown instanceof DsError ? thrown.code : (thrown ?? 'success');
      expect([place, said]).toEqual([
        place,
        expect.stringMatching(/^(success|DS_IO|DS_CHECKPOINT)$/),
      ]);
      await check(place);
      if (calls < number) break;
      places++;
    }
  }
  return places;
}

const hidden = async () => (await files.readdir(dir)).filter((name) => name.startsWith('.'));

test('saves over a checkpoint, with latest and retention', async () => {
  await save(dir, 'old', content(1));
  await save(dir, 't', content(2));
  const places = await everyFault(
    () => save(dir, 't', content(3), { keepLast: 1 }),
    async (place) => {
      const { w, 'w.fp32': master } = await valuesOf(dir, 't');
      expect([place, w]).toEqual([place, master]);
      await valuesOf(dir);
      await save(dir, 'old', content(1));
      expect([place, await hidden()]).toEqual([place, []]);
    },
  );
  expect(places).toBeGreaterThan(40);
});

test('consolidations', async () => {
  const out = join(dir, 'out');
  await save(dir, 't', content(2));
  const places = await everyFault(
    () => consolidate(dir, out),
    async (place) => {
      const there = await files.readdir(out).catch(() => null);
      if (there) expect([place, there]).toEqual([place, ['model.safetensors']]);
      await files.rm(out, { recursive: true, force: true });
      await save(dir, 't', content(2));
      expect([place, await hidden()]).toEqual([place, []]);
    },
  );
  expect(places).toBeGreaterThan(15);
});
