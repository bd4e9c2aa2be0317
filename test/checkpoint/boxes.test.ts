// Tests that tensors held as boxes, and as ranges of boxes, are saved and loaded across every
// partition.
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  Checkpoint,
  type CheckpointContent,
  consolidate,
  type Shard,
  saveCheckpoint,
  type TensorInfo,
  type TensorRecord,
  WeightFiles,
  writeTogether,
} from '../../lib/checkpoint/index.js';
import { parseManifest } from '../../lib/checkpoint/manifest.js';
import { DsError } from '../../lib/errors.js';
import { type Box, type BoxRange, boxesOf, positionIn, wholeBox } from '../../lib/runtime/box.js';
import { Buffer as DeviceBuffer } from '../../lib/runtime/buffer.js';
import { cpu } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import { InputFile } from '../../lib/runtime/input-file.js';
import { numel } from '../../lib/runtime/view.js';
import { Tensor } from '../../lib/tensor/tensor.js';
import type { JsonObject, JsonValue } from '../../types/json.js';
import {
  all,
  cut,
  elementsOf,
  type Random,
  randomly,
  randomRange,
  randomShape,
} from '../runtime/box-elements.js';
import { infos, valuesOf } from './content.js';
import { onRanks } from './joined-worlds.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-boxes-'));
});
afterEach(() => {
  rmSync(dir, { recursive: true, force: true });
  jest.restoreAllMocks();
});

function refusal(message: RegExp) {
  return expect.objectContaining({
    code: 'DS_CHECKPOINT',
    message: expect.stringMatching(message),
  });
}

/**
 * Element i of a whole tensor has the value `first` + i; returns the elements of a range, in its
 * order.
 */
function valuesIn(shape: readonly number[], range: BoxRange, first = 0): number[] {
  const fullBox = wholeBox(shape);
  return boxesOf(range).flatMap((box) =>
    elementsOf(all(box)).map(
      (place) => first + positionIn(fullBox, place === '' ? [] : place.split(',').map(Number)),
    ),
  );
}

interface Cut extends TensorInfo {
  name: string;
  first: number;
}

function shardOf({ name, shape, dtype, first }: Cut, range: BoxRange): Shard {
  const values = Float64Array.from(valuesIn(shape, range, first));
  const tensor = Tensor.from(values, { dtype }).keep();
  return { name, shape, box: range.box, from: range.from, tensor };
}

function contentOf(model: readonly Shard[], rank: number): CheckpointContent {
  return {
    part: { data: rank, model: 0 },
    model,
    modelIsSharded: true,
    optimizer: [],
    catalog: { model: infos(model), optimizer: new Map() },
    state: {},
    rankState: { rank },
    description: null,
  };
}

/** Saves the shards of each rank; resolves with the error of each, or null. */
async function save(ranks: readonly (readonly Shard[])[], tag = 't'): Promise<unknown[]> {
  const results = await onRanks(ranks.length, (world) => {
    const content = contentOf(ranks[world.rank] as Shard[], world.rank);
    return saveCheckpoint({ dir, tag, saveLatest: true }, content, world);
  });
  return results.map((result) => (result.status === 'rejected' ? result.reason : null));
}

async function read(checkpoint: Checkpoint, cut: Cut, range: BoxRange): Promise<number[]> {
  const into = Tensor.empty([range.numel], cut.dtype, cpu()).keep();
  await checkpoint.read('model', cut.name, { box: range.box, from: range.from }, into);
  const values = into.toArray() as number[];
  into.dispose();
  return values;
}

const DTYPES: readonly DType[] = ['f32', 'i64', 'f64', 'i32'];

/** Splits tensors at random, and assigns their parts to ranks at random. */
function randomCuts(random: Random, count: number, ranks: number) {
  const tensors = Array.from(
    { length: count },
    (_, i): Cut => ({
      name: `w${i}`,
      first: 1000 * i,
      dtype: DTYPES[i % DTYPES.length] as DType,
      shape: i === 0 ? [] : randomShape(random),
    }),
  );
  const shards = Array.from({ length: ranks }, (): Shard[] => []);
  for (const one of tensors) {
    for (const part of cut(random, all(wholeBox(one.shape)), random(5))) {
      shards[random(ranks)]?.push(shardOf(one, part));
    }
  }
  return { tensors, shards };
}

test('saved in any parts by 1 to 4 ranks: any part of any tensor is read from them', async () => {
  const random = randomly(21);
  for (let round = 0; round < 8; ++round) {
    const { tensors, shards } = randomCuts(random, 12, 1 + (round % 4));
    expect(await save(shards)).toEqual(shards.map(() => null));
    const checkpoint = await Checkpoint.open(dir);
    for (const cut of tensors) {
      for (let k = 0; k < 8; ++k) {
        const range = k === 0 ? all(wholeBox(cut.shape)) : randomRange(random, cut.shape);
        expect(await read(checkpoint, cut, range)).toEqual(valuesIn(cut.shape, range, cut.first));
      }
    }
    await checkpoint.close();
    const values = await valuesOf(dir);
    for (const { name, shape, first } of tensors) {
      expect(values[name]).toEqual(valuesIn(shape, all(wholeBox(shape)), first));
    }
  }
});

describe('a layer that is', () => {
  const tensor = (name: string, shape: number[], first = 0): Cut => ({
    name,
    shape,
    first,
    dtype: 'f32',
  });
  const columns = (shape: readonly number[], from: number, to: number): Box => ({
    offset: [0, from],
    shape: [shape[0] as number, to - from],
  });
  const rows = (shape: readonly number[], from: number, to: number): Box => ({
    offset: [from, ...shape.slice(1).map(() => 0)],
    shape: [to - from, ...shape.slice(1)],
  });

  test('cut on its second dim by two ranks is read by three, and by one', async () => {
    const w = tensor('w', [5, 12]);
    const halves = [columns(w.shape, 0, 6), columns(w.shape, 6, 12)];
    expect(await save(halves.map((box) => [shardOf(w, all(box))]))).toEqual([null, null]);
    const checkpoint = await Checkpoint.open(dir);
    const fullBoxRange = all(wholeBox(w.shape));
    const thirds = [0, 4, 8].map((from) => all(columns(w.shape, from, from + 4)));
    for (const range of [fullBoxRange, ...thirds, all(rows(w.shape, 1, 3))]) {
      expect(await read(checkpoint, w, range)).toEqual(valuesIn(w.shape, range));
    }
    await checkpoint.close();
    const manifest = manifestOf();
    expect(manifest.format).toBe(3);
    expect((manifest.model as JsonObject).w).toEqual({
      dtype: 'f32',
      shape: [5, 12],
      parts: [
        [1, 0, 30, [0, 0], [5, 6]],
        [3, 0, 30, [0, 6], [5, 6]],
      ],
    });
    expect(entriesOf(1)).toEqual(['w[0:5,0:6]']);
  });

  test('a packed projection cut by thirds, and each share cut by ZeRO, loads on other meshes', async () => {
    const [heads, inner] = [12, 3];
    const qkv = tensor('qkv', [3 * heads, inner]);
    const bias = tensor('bias', [3 * heads], 500);
    /** The boxes of rank r of n: its heads of q, of k and of v. */
    const share = (cut: Cut, r: number, n: number): BoxRange[] =>
      [0, 1, 2].map((third) => {
        const from = third * heads + (r * heads) / n;
        return all(rows(cut.shape, from, from + heads / n));
      });
    const ranks = [0, 1, 2].flatMap((r) =>
      [0, 1].map((zero) =>
        [qkv, bias].flatMap((cut) =>
          share(cut, r, 3).map((range) => {
            const half = Math.ceil(range.numel / 2);
            const from = zero * half;
            return shardOf(cut, { ...range, from, numel: Math.min(half, range.numel - from) });
          }),
        ),
      ),
    );
    expect(await save(ranks)).toEqual(ranks.map(() => null));
    const checkpoint = await Checkpoint.open(dir);
    for (const n of [1, 2, 4]) {
      for (let r = 0; r < n; ++r) {
        for (const cut of [qkv, bias]) {
          for (const range of share(cut, r, n)) {
            const expected = valuesIn(cut.shape, range, cut.first);
            expect(await read(checkpoint, cut, range)).toEqual(expected);
          }
        }
      }
    }
    await checkpoint.close();
  });

  test('a tensor of one rank joins the catalog of all ranks', async () => {
    const [a, b, c] = [tensor('a', [3]), tensor('b', [2, 2], 50), tensor('c', [4, 4], 90)];
    const half = (from: number) => shardOf(c, all(columns(c.shape, from, from + 2)));
    const whole = (cut: Cut) => shardOf(cut, all(wholeBox(cut.shape)));
    const ranks = [[whole(a), half(0)], [half(2)], [whole(b)]];
    expect(await save(ranks)).toEqual([null, null, null]);
    const checkpoint = await Checkpoint.open(dir);
    expect([...checkpoint.tensors('model').keys()].sort()).toEqual(['a', 'b', 'c']);
    await checkpoint.close();
    const values = await valuesOf(dir);
    expect(values.b).toEqual([50, 51, 52, 53]);
    expect(values.c).toEqual(Array.from({ length: 16 }, (_, i) => 90 + i));
    const { path } = await consolidate(dir, join(dir, 'out'));
    const weights = await WeightFiles.open(path);
    const out = await weights.read('c');
    expect([out.shape, out.toArray()]).toEqual([[4, 4], values.c]);
    out.release();
    await weights.close();
  });

  test('different shapes on two ranks, missing elements and duplicates are refused on all ranks', async () => {
    const w = tensor('w', [4, 6]);
    const [left, right] = [columns(w.shape, 0, 3), columns(w.shape, 3, 6)];
    const other = { ...w, shape: [4, 7] };
    const cases: [Shard[][], RegExp][] = [
      [
        [[shardOf(w, all(left))], [shardOf(other, all(right))]],
        /w: expected \[4, 6\] f32, as on rank 0, got \[4, 7\] f32 on rank 1/,
      ],
      [
        [[shardOf(w, all(left))], [shardOf(w, { ...all(right), numel: 11 })]],
        /no element \[3, 5\]/,
      ],
      [
        [[shardOf(w, all(left))], [shardOf(w, all(columns(w.shape, 2, 6)))]],
        /24 elements.*got element \[0, 2\] twice/,
      ],
      [[[shardOf(w, all(left)), shardOf(w, all(left))]], /"w\[0:4,0:3\]" twice/],
      [
        [[{ ...shardOf(w, all(left)), box: { offset: [0, 4], shape: [4, 3] } }]],
        /"w" inside \[4, 6\], got elements 0 to 12 of \[4, 3\] at \[0, 4\]/,
      ],
      [[[{ ...shardOf(w, all(wholeBox(w.shape))), name: 'w[0:2,0:3]' }]], /does not end in/],
    ];
    for (const [ranks, message] of cases) {
      expect(await save(ranks)).toEqual(ranks.map(() => refusal(message)));
    }
  });

  test('written into one file by ranks with a box each', async () => {
    const [w, v] = [tensor('w', [4, 6]), tensor('v', [2, 3, 4], 100)];
    const middle = (from: number): Box => ({ offset: [0, from, 0], shape: [2, 2 - from, 4] });
    const catalog = new Map([w, v].map(({ name, shape, dtype }) => [name, { shape, dtype }]));
    const shards = [
      [shardOf(w, all(columns(w.shape, 0, 2))), shardOf(v, all(middle(0)))],
      [
        shardOf(w, all(columns(w.shape, 2, 6))),
        shardOf(v, all({ offset: [0, 2, 0], shape: [2, 1, 4] })),
      ],
    ];
    const results = await onRanks(2, (world) =>
      writeTogether({ dir, file: 'w.safetensors' }, catalog, shards[world.rank] as Shard[], world),
    );
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled']);
    const file = await WeightFiles.open(join(dir, 'w.safetensors'));
    for (const { name, shape, first } of [w, v]) {
      const values = await file.read(name);
      expect(values.toArray()).toEqual(valuesIn(shape, all(wholeBox(shape)), first));
      values.release();
    }
    await file.close();
  });
});

test('partial rows are read in pieces of 32 MiB', async () => {
  const shape = [2100, 4096];
  const numbers = new Float32Array(numel(shape));
  for (let i = 0; i < numbers.length; ++i) numbers[i] = i;
  const fullTensor = Tensor.from(numbers, { shape });
  expect(await save([[{ name: 'w', shape, tensor: fullTensor.keep() }]])).toEqual([null]);
  const checkpoint = await Checkpoint.open(dir);
  const box: Box = { offset: [1, 1000], shape: [2098, 2500] };
  const into = Tensor.empty(box.shape, 'f32', cpu()).keep();
  const pinned = jest.spyOn(DeviceBuffer, 'allocatePinned');
  const reads = jest.spyOn(InputFile.prototype, 'read');
  await checkpoint.read('model', 'w', { box }, into);
  expect(pinned.mock.calls.map(([, bytes]) => bytes)).toEqual([32 * 2 ** 20]);
  expect(reads.mock.calls.length).toBeLessThanOrEqual(4);
  const values = into.toRaw() as Float32Array;
  const bad = values.findIndex(
    (value, i) => value !== Math.fround((1 + Math.floor(i / 2500)) * 4096 + 1000 + (i % 2500)),
  );
  expect(bad).toBe(-1);
  pinned.mockClear();
  reads.mockClear();
  const rows = into.alias([100, 4096]);
  await checkpoint.read('model', 'w', { box: { offset: [7, 0], shape: [100, 4096] } }, rows);
  expect([pinned.mock.calls.length, reads.mock.calls.length]).toEqual([0, 1]);
  await checkpoint.close();
  for (const tensor of [into, rows, fullTensor]) tensor.dispose();
});

function manifestOf(): JsonObject {
  const { sha256: _, ...value } = JSON.parse(readFileSync(join(dir, 't', 'manifest.json'), 'utf8'));
  return value;
}

function seal(value: JsonObject): string {
  const body = JSON.stringify(value).slice(0, -1);
  return `${body},\n"sha256":"${createHash('sha256').update(body).digest('hex')}"}\n`;
}

function entriesOf(file: number): string[] {
  const { name } = (manifestOf().files as JsonObject[])[file] as { name: string };
  const bytes = readFileSync(join(dir, 't', name));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + Number(bytes.readBigUInt64LE(0))));
  return Object.keys(header).filter((key) => key !== '__metadata__');
}

describe('a forged manifest', () => {
  /** "w" [4, 6] in two halves of columns, files 1 and 3, and "v" [6] whole. */
  async function saveHalves(): Promise<void> {
    const w: Cut = { name: 'w', shape: [4, 6], dtype: 'f32', first: 0 };
    const half = (from: number) => shardOf(w, all({ offset: [0, from], shape: [4, 3] }));
    const v: Cut = { name: 'v', shape: [6], dtype: 'f32', first: 70 };
    await save([[half(0), shardOf(v, all(wholeBox(v.shape)))], [half(3)]]);
  }
  const HUGE = 2 ** 53 - 1;
  const right = [3, 0, 12, [0, 3], [4, 3]];

  test.each<[string, JsonValue[], RegExp]>([
    ['a box outside the shape', [[1, 0, 12, [0, 4], [4, 3]], right], /a part inside \[4, 6\]/],
    ['a box of other dims', [[1, 0, 12, [0], [12]], right], /a part inside/],
    ['a negative offset', [[1, 0, 12, [0, -1], [4, 3]], right], /whole number of at least 0.*-1/],
    ['a negative size', [[1, 0, 12, [0, 0], [-4, -3]], right], /whole number of at least 0/],
    ['a fraction', [[1, 0, 12, [0, 0.5], [4, 3]], right], /whole number/],
    ['huge numbers', [[1, 0, 12, [HUGE, HUGE], [HUGE, HUGE]], right], /a part inside/],
    ['a huge range', [[1, HUGE, HUGE, [0, 0], [4, 3]], right], /a part inside/],
    ['boxes that overlap', [[1, 0, 16, [0, 0], [4, 4]], right], /got element \[0, 3\] twice/],
    ['the same box twice', [right, right], /got element \[0, 3\] twice/],
    ['a box too few', [right], /24 elements.*got no element \[0, 0\]/],
    ['a range too short', [[1, 0, 11, [0, 0], [4, 3]], right], /got no element \[3, 2\]/],
    ['boxes and ranges that overlap', [[1, 0, 12], right], /got element \[0, 3\] twice/],
    [
      'a box that is a range',
      [
        [1, 0, 12, [0, 0], [2, 6]],
        [3, 12, 12],
      ],
      /not contiguous in/,
    ],
    ['a box that is all', [[1, 0, 24, [0, 0], [4, 6]]], /not contiguous in \[4, 6\], or no box/],
    ['an empty box', [[1, 0, 0, [0, 0], [4, 0]], right], /not contiguous in/],
    ['four items', [[1, 0, 12, [0, 0]], right], /parts \[file, from, numel\] or/],
    ['text for a box', [[1, 0, 12, 'x', 'y'], right], /expected a list/],
    ['lists in a box', [[1, 0, 12, [[0], 0], [4, 3]], right], /whole number.*a list of 1/],
    ['a file beyond the list', [[9, 0, 12, [0, 0], [4, 3]], right], /parts \[file/],
    [
      'a box of another file',
      [[3, 0, 12, [0, 0], [4, 3]], right],
      /w\[0:4,0:3\].*got no tensor of this name/,
    ],
    [
      'another cut than the files',
      [
        [1, 0, 8, [0, 0], [4, 2]],
        [3, 0, 16, [0, 2], [4, 4]],
      ],
      /w\[0:4,0:2\]: expected the tensor that the manifest lists, got no tensor of this name/,
    ],
  ])('with %s is refused, and the tensor is named', async (_name, parts, message) => {
    await saveHalves();
    const value = manifestOf();
    ((value.model as JsonObject).w as JsonObject).parts = parts;
    writeFileSync(join(dir, 't', 'manifest.json'), seal(value));
    const error = await Checkpoint.open(dir).catch((thrown: unknown) => thrown);
    expect(error).toEqual(refusal(message));
    expect((error as DsError).op).toMatch(/manifest.json: model w|model_states.safetensors: w/);
    expect((error as DsError).hint).not.toBe('');
  });

  test('of format 2 has no boxes; of another dtype than the files is refused', async () => {
    await saveHalves();
    const text = seal({ ...manifestOf(), format: 2 });
    expect(() => parseManifest(text, 'x')).toThrow(/parts \[file, from, numel\], got \[1, 0, 12/);
    const value = manifestOf();
    ((value.model as JsonObject).w as JsonObject).dtype = 'i32';
    writeFileSync(join(dir, 't', 'manifest.json'), seal(value));
    await expect(Checkpoint.open(dir)).rejects.toEqual(refusal(/i32 \[4, 3\], as in the manifest/));
  });

  test('1,500 mutations of the parts are complete by count, or refused', async () => {
    await saveHalves();
    const original = manifestOf();
    const random = randomly(31);
    const numbers = (): number => [random(5), random(8), 12, 24, 2 ** 40][random(5)] as number;
    let refused = 0;
    for (let round = 0; round < 1500; ++round) {
      const value = structuredClone(original);
      const record = (value.model as JsonObject).w as JsonObject;
      const parts = record.parts as JsonValue[][];
      const part = parts[random(2)] as JsonValue[];
      const at = random(5);
      const list = part[at];
      if (random(8) === 0) parts.push(structuredClone(part));
      else if (Array.isArray(list)) list[random(2)] = numbers();
      else part[at] = numbers();
      try {
        const { model } = parseManifest(seal(value), 'x');
        const { shape, parts: read } = model.get('w') as TensorRecord;
        expect(read.flatMap(elementsOf).sort()).toEqual(elementsOf(all(wholeBox(shape))).sort());
      } catch (error) {
        if (!(error instanceof DsError)) throw error;
        expect(error.code).toBe('DS_CHECKPOINT');
        refused++;
      }
    }
    expect(refused).toBeGreaterThan(700);
    expect(refused).toBeLessThan(1500);
  });
});
