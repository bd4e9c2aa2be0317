// Tests that saveCheckpoint() and loadCheckpoint() throw for arguments that they would otherwise
// ignore or change.
import { mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { makeFolder } from '../../lib/checkpoint/make-folder.js';
import {
  type Engine,
  findLatest,
  initialize,
  listTags,
  nn,
  type SaveOptions,
  Tensor,
} from '../../lib/index.js';

let dir: string;
let engine: Engine;
beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-arguments-'));
  const config = {
    train_batch_size: 1,
    optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
  } as const;
  ({ engine } = await initialize({ model: new nn.Linear(2, 2), config, device: 'cpu' }));
});
afterEach(() => {
  engine.destroy();
  rmSync(dir, { recursive: true, force: true });
});

const refusal = (message: RegExp) =>
  expect.objectContaining({
    code: 'DS_ARGUMENT',
    message: expect.stringMatching(message),
  });

test('refuses a tag in place of options, and misspelled option names', async () => {
  await expect(engine.saveCheckpoint(dir, 'epoch1' as SaveOptions)).rejects.toEqual(
    refusal(
      /saveCheckpoint: expected an object of options, such as \{ tag: \.\.\. \}, got "epoch1"/,
    ),
  );
  await expect(
    engine.saveCheckpoint(dir, { clientStat: { epoch: 1 } } as SaveOptions),
  ).rejects.toEqual(refusal(/"clientStat".*Did you mean "clientState"/));
  await expect(engine.loadCheckpoint(dir, { strict: false } as object)).rejects.toEqual(
    refusal(/loadCheckpoint: expected the options tag, loadModuleStrict.*got "strict"/),
  );
  expect(readdirSync(dir)).toEqual([]);
});

test('options that are true or false refuse other values', async () => {
  await expect(engine.saveCheckpoint(dir, { saveLatest: 'no' } as object)).rejects.toEqual(
    refusal(/saveCheckpoint saveLatest: expected true or false, got "no"/),
  );
  expect(readdirSync(dir)).toEqual([]);
  await engine.saveCheckpoint(dir);
  for (const name of ['loadModuleStrict', 'loadOptimizerStates', 'loadModuleOnly']) {
    await expect(engine.loadCheckpoint(dir, { [name]: 0 })).rejects.toEqual(
      refusal(new RegExp(`loadCheckpoint ${name}: expected true or false, got 0`)),
    );
  }
  await engine.loadCheckpoint(dir, { loadModuleOnly: undefined } as object);
});

test.each([[''], [undefined], [5], ['a\0b']])('%j is no folder to resume from', async (path) => {
  const folder = path as string;
  for (const [op, call] of [
    ['findLatest', () => findLatest(folder)],
    ['listTags', () => listTags(folder)],
    ['loadCheckpoint', () => engine.loadCheckpoint(folder)],
  ] as const) {
    await expect(call()).rejects.toEqual(
      refusal(new RegExp(`^${op}: expected the path of a folder`)),
    );
  }
});

const self: Record<string, unknown> = {};
self.again = self;

/** Nests objects `levels` deep. */
function nest(levels: number): object {
  let value = {};
  for (let level = 0; level < levels; ++level) value = { in: value };
  return value;
}

test.each<[string, unknown, RegExp]>([
  ['infinity', { best: Number.POSITIVE_INFINITY }, /clientState\.best: .*got Infinity/],
  ['NaN', { losses: [1, Number.NaN] }, /clientState\.losses\[1\]: .*got NaN/],
  ['a function', { f: () => 0 }, /clientState\.f: .*got a function/],
  ['a bigint', { a: { n: 1n } }, /clientState\.a\.n: .*got a bigint/],
  ['a Map', { m: new Map() }, /clientState\.m: .*got a Map/],
  ['a typed array', { w: new Float32Array(2) }, /clientState\.w: .*got a Float32Array/],
  ['a cycle', { self }, /clientState\.self\.again: .*contains itself/],
  ['a date that is none', { at: new Date('?') }, /clientState\.at: .*got an invalid Date/],
  ['a toJSON() that gives NaN', { x: { toJSON: () => Number.NaN } }, /clientState\.x: .*got NaN/],
  ['a toJSON() that gives a bigint', { x: { toJSON: () => 1n } }, /clientState\.x: .*a bigint/],
  ['a toJSON() that gives a list', { toJSON: () => [1] }, /clientState: .*got an array/],
  ['too many levels', nest(20_000), /clientState\.in\.in.*: .*at most 1000 levels/],
])('a client state with %s is refused, and nothing is left behind', async (_, state, message) => {
  const options = { clientState: state } as SaveOptions;
  await expect(engine.saveCheckpoint(dir, options)).rejects.toEqual(refusal(message));
  expect(readdirSync(dir)).toEqual([]);
});

test.each<[string, unknown, RegExp]>([
  ['nothing that can be loaded', null, /companions\.mine: expected an object.*got null/],
  ['a list', [1], /companions\.mine: expected an object.*got an array/],
  ['a promise', Promise.resolve({}), /companions\.mine: .*got a Promise/],
  ['an infinity', { best: Number.POSITIVE_INFINITY }, /companions\.mine\.best: .*got Infinity/],
])(
  'a companion whose state is %s is refused by its name, and nothing is left behind',
  async (_, state, message) => {
    const stateful = { stateDict: () => state as never, loadStateDict: () => {} };
    engine.companions.set('mine', stateful);
    await expect(engine.saveCheckpoint(dir)).rejects.toEqual(refusal(message));
    expect(readdirSync(dir)).toEqual([]);
  },
);

test('restores every JSON value of clientState', async () => {
  const shared = { epoch: 3 };
  const state = { a: shared, b: [shared, null, 'x', true], at: new Date(0), none: undefined };
  await engine.saveCheckpoint(dir, { clientState: state as never, tag: undefined });
  const { clientState } = await engine.loadCheckpoint(dir);
  expect(clientState).toEqual(JSON.parse(JSON.stringify(state)));
});

test('a folder that cannot be created is an error, without endless retries', async () => {
  await makeFolder(join(dir, 'a', 'b'));
  await makeFolder(join(dir, 'a', 'b'));
  expect(readdirSync(join(dir, 'a'))).toEqual(['b']);
  symlinkSync('/nowhere/at/all', join(dir, 'dangling'));
  for (const path of ['/proc/checkpoints', join(dir, 'dangling', 'c')]) {
    await expect(engine.saveCheckpoint(path)).rejects.toEqual(
      expect.objectContaining({ code: 'DS_IO', message: expect.stringMatching(/mkdir .*E[A-Z]+/) }),
    );
  }
});

test('many processes may create the same folder at the same time', async () => {
  for (let round = 0; round < 50; ++round) {
    const paths = Array.from({ length: 8 }, (_, i) => join(dir, `${round}`, 'a', 'b', `${i % 2}`));
    await Promise.all(paths.map((path) => makeFolder(path)));
    expect(readdirSync(join(dir, `${round}`, 'a', 'b'))).toEqual(['0', '1']);
  }
});

test('a destroyed engine refuses to train, save and load', async () => {
  await engine.saveCheckpoint(dir);
  const input = Tensor.from([[1, 2]]).keep();
  const loss = engine.forward<Tensor>(input).mean();
  engine.destroy();
  const late = expect.objectContaining({
    message: expect.stringMatching(/before engine\.destroy/),
  });
  expect(() => engine.forward(input)).toThrow(late);
  expect(() => engine.backward(loss)).toThrow(late);
  expect(() => engine.step()).toThrow(late);
  input.dispose();
  loss.dispose();
  await expect(engine.saveCheckpoint(dir)).rejects.toEqual(late);
  await expect(engine.loadCheckpoint(dir)).rejects.toEqual(late);
  await expect(engine.save16bitModel(dir)).rejects.toEqual(late);
});
