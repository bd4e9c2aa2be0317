// Tests manipulated checkpoints and folders: each gives a typed error, and no file outside is
// opened.
import { createHash } from 'node:crypto';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Checkpoint, consolidate, WeightFiles } from '../../lib/checkpoint/index.js';
import { parseManifest } from '../../lib/checkpoint/manifest.js';
import { DsError } from '../../lib/errors.js';
import type { JsonObject, JsonValue } from '../../types/json.js';
import { checksumFile } from '../support/checksum.js';
import { content, save, valuesOf } from './content.js';
import { tinyEngine } from './partitioned-engine.js';

/** Mutations of each kind. DS_FUZZ_CASES sets another number. */
const MUTATIONS = Number(process.env.DS_FUZZ_CASES ?? 300);

const MODEL = 'mp_rank_00_model_states.safetensors';
const OPTIMIZER = 'zero_pp_rank_0_mp_rank_00_optim_states.safetensors';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-hostile-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** The same sequence in every run. */
function generator(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 48271) % 2147483647;
    return state % below;
  };
}

function deep(levels: number): JsonValue {
  let value: JsonValue = 0;
  for (let i = 0; i < levels; ++i) value = [value];
  return value;
}

const HOSTILE: readonly JsonValue[] = [
  ...[-1, 0, 1, 0.5, 2 ** 31, 2 ** 53, -(2 ** 53), 1e308, null, true, '', '0', 'f32', 'F32'],
  ...['../x', '/etc/passwd', 'latest', 'manifest.json', '..', '.', 'a\0b', '__proto__', 'toString'],
  ...[[], {}, [[]], [0, 0, 0], [0, 0, -1], [0, 0, 2 ** 53], [9, 0, 1], { __proto__: [] }],
  deep(2000),
];

type Container = Record<string, JsonValue> | JsonValue[];

const isContainer = (value: JsonValue): value is Container =>
  typeof value === 'object' && value !== null;

/** Replaces, deletes, copies or adds one value at a random place. */
function mutate(value: JsonObject, random: (below: number) => number): void {
  let at: Container = value;
  for (;;) {
    const keys: string[] = Object.keys(at);
    const key = keys[random(Math.max(keys.length, 1))];
    const container = at as Record<string, JsonValue>;
    const next: JsonValue = key === undefined ? null : (container[key] as JsonValue);
    if (isContainer(next) && random(4) > 0) {
      at = next;
      continue;
    }
    const hostile = HOSTILE[random(HOSTILE.length)] as JsonValue;
    const kind = random(5);
    if (key === undefined || kind === 0) container[`new${random(10)}`] = hostile;
    else if (kind === 1 && Array.isArray(at)) at.push(structuredClone(next));
    else if (kind === 2) delete container[key];
    else if (typeof next === 'number' && kind === 3) container[key] = next + random(3) - 1;
    else container[key] = hostile;
    return;
  }
}

/** A manifest with a valid digest. */
function sealText(value: JsonObject): string {
  const body = JSON.stringify(value).slice(0, -1);
  return `${body},\n"sha256":"${createHash('sha256').update(body).digest('hex')}"}\n`;
}

function manifestOf(tag: string): JsonObject {
  const { sha256: _, ...value } = JSON.parse(readFileSync(join(dir, tag, 'manifest.json'), 'utf8'));
  return value;
}

function seal(tag: string, value: JsonObject): void {
  writeFileSync(join(dir, tag, 'manifest.json'), sealText(value));
}

function refusal(message: RegExp) {
  return expect.objectContaining({
    code: 'DS_CHECKPOINT',
    message: expect.stringMatching(message),
  });
}

/** True if the load was refused with a typed error; other errors fail the test. */
async function isRefused(run: () => Promise<unknown>): Promise<boolean> {
  try {
    await run();
    return false;
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    expect(['DS_CHECKPOINT', 'DS_IO', 'DS_NONFINITE']).toContain(error.code);
    return true;
  }
}

test('5,000 mutations of a sealed manifest parse to something consistent or are refused', async () => {
  await save(dir, 't', content(1));
  const original = manifestOf('t');
  const random = generator(2024);
  let refused = 0;
  for (let round = 0; round < 5000; ++round) {
    const value = structuredClone(original);
    for (let change = 0; change <= random(3); ++change) mutate(value, random);
    try {
      const manifest = parseManifest(sealText(value), 'x');
      for (const { name } of manifest.files) expect(name).toMatch(/^(zero|mp)_[\w]+\.safetensors$/);
      for (const records of [manifest.model, manifest.optimizer]) {
        for (const { shape, parts } of records.values()) {
          const size = shape.reduce((a, b) => a * b, 1);
          const sorted = [...parts].sort((a, b) => a.from - b.from || a.numel - b.numel);
          const end = sorted.reduce((at, part) => (part.from === at ? at + part.numel : -1), 0);
          expect(end).toBe(size);
          for (const { file } of parts) expect(file).toBeLessThan(manifest.files.length);
        }
      }
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      expect(error.code).toBe('DS_CHECKPOINT');
      refused++;
    }
  }
  expect(refused).toBeGreaterThan(3000);
});

test('mutated manifests on disk: opened and read, or refused', async () => {
  await save(dir, 't', content(1));
  const original = manifestOf('t');
  const random = generator(77);
  let refused = 0;
  for (let round = 0; round < MUTATIONS; ++round) {
    const value = structuredClone(original);
    for (let change = 0; change <= random(2); ++change) mutate(value, random);
    seal('t', value);
    if (await isRefused(() => valuesOf(dir, 't'))) refused++;
  }
  expect(refused).toBeGreaterThan(MUTATIONS / 2);
  seal('t', original);
  expect((await valuesOf(dir, 't')).w?.[0]).toBe(1);
});

test('mutated shards with valid checksums: read as the manifest describes, or refused', async () => {
  await save(dir, 't', content(1));
  const path = join(dir, 't', OPTIMIZER);
  const bytes = readFileSync(path);
  const original = manifestOf('t');
  const header = 8 + Number(bytes.readBigUInt64LE(0));
  const random = generator(5);
  const alphabet = Buffer.from('0123456789-.eE[]{}",: Ffw_');
  let refused = 0;
  for (let round = 0; round < MUTATIONS; ++round) {
    let mutant = Buffer.from(bytes);
    for (let change = 0; change <= random(2); ++change) {
      const at = random(header);
      if (random(20) === 0) mutant = mutant.subarray(0, random(mutant.length));
      else if (at < mutant.length) mutant[at] = alphabet[random(alphabet.length)] as number;
    }
    writeFileSync(path, mutant);
    const value = structuredClone(original);
    const record = (value.files as JsonObject[]).find(({ name }) => name === OPTIMIZER);
    Object.assign(record as JsonObject, { bytes: mutant.length, crc32c: await checksumFile(path) });
    seal('t', value);
    if (await isRefused(() => valuesOf(dir, 't'))) refused++;
  }
  expect(refused).toBeGreaterThan(0.3 * MUTATIONS);
});

describe('a manifest', () => {
  async function withChange(change: (value: JsonObject) => void): Promise<Promise<Checkpoint>> {
    await save(dir, 't', content(1));
    const value = manifestOf('t');
    change(value);
    seal('t', value);
    return Checkpoint.open(dir, 't');
  }
  const files = (value: JsonObject) => value.files as JsonObject[];
  const record = (value: JsonObject) => (value.optimizer as JsonObject)['w.fp32'] as JsonObject;

  test.each<[string, (value: JsonObject) => void, RegExp]>([
    ['a file above', (v) => Object.assign(files(v)[0] as object, { name: '../x' }), /own folder/],
    [
      'an absolute file',
      (v) => Object.assign(files(v)[0] as object, { name: '/etc/x' }),
      /own folder/,
    ],
    ['another file', (v) => Object.assign(files(v)[0] as object, { name: 'latest' }), /own folder/],
    [
      'overlapping parts',
      (v) =>
        Object.assign(record(v), {
          parts: [
            [0, 0, 600],
            [0, 500, 500],
          ],
        }),
      /\[5, 0\] twice/,
    ],
    [
      'a hole',
      (v) =>
        Object.assign(record(v), {
          parts: [
            [0, 0, 400],
            [0, 500, 500],
          ],
        }),
      /no element \[4, 0\]/,
    ],
    [
      'a negative offset',
      (v) => Object.assign(record(v), { parts: [[0, -1, 1001]] }),
      /whole number/,
    ],
    [
      'too few',
      (v) => Object.assign(record(v), { parts: [[0, 0, 999]] }),
      /1000 elements.*got no element \[9, 99\]/,
    ],
    [
      'a file beyond the list',
      (v) => Object.assign(record(v), { parts: [[7, 0, 1000]] }),
      /parts \[file/,
    ],
    [
      'a shape that overflows',
      (v) => Object.assign(record(v), { shape: [2 ** 52, 2 ** 52] }),
      /a shape of at most 2\^53/,
    ],
    [
      'another dtype than the file',
      (v) => Object.assign(record(v), { dtype: 'i32' }),
      /as in the manifest, got f32/,
    ],
    [
      'another shape than the file',
      (v) => Object.assign(record(v), { shape: [1000] }),
      /as in the manifest/,
    ],
    ['an unknown dtype', (v) => Object.assign(record(v), { dtype: 'f8' }), /f32, f16/],
    [
      'a tensor in the wrong file',
      (v) => Object.assign(record(v), { parts: [[1, 0, 1000]] }),
      /that the manifest lists/,
    ],
    [
      'a tensor of no file',
      (v) => Object.assign(v.optimizer as object, { x: record(v) }),
      /: x: .*got no tensor of this name/,
    ],
    ['deep state', (v) => Object.assign(v, { ranks: deep(3000) }), /ranks/],
  ])('with %s is refused', async (_name, change, message) => {
    await expect(withChange(change)).rejects.toEqual(refusal(message));
  });

  test.each<[object | string, RegExp]>([
    // An unknown format may have another digest, so the load checks known formats only.
    [{ format: 1, library: '0.1.0' }, /format 2 or 3, got format 1/],
    [{ format: 4, library: '9.0.0' }, /format 2 or 3, got format 4, saved by version "9\.0\.0"/],
    [{ format: 2 }, /contents that match the digest/],
    [{ format: 3 }, /contents that match the digest/],
    [{ format: '4' }, /contents that match the digest/],
    [{ format: null }, /contents that match the digest/],
    [{}, /contents that match the digest/],
    ['{"format":4,"library":', /contents that match the digest/],
    ['[4]', /contents that match the digest/],
  ])('without its digest: %j', (value, message) => {
    const text = typeof value === 'string' ? value : JSON.stringify(value);
    expect(() => parseManifest(text, 'x')).toThrow(refusal(message));
  });

  test('reports an older format', async () => {
    await save(dir, 't', content(1));
    writeFileSync(join(dir, 't', 'manifest.json'), '{"format":1,"library":"0.1.0","sha256":"x"}');
    await expect(Checkpoint.open(dir)).rejects.toEqual(
      refusal(/format 2 or 3, got format 1.*0\.1\.0/),
    );
  });

  test('of a million brackets is refused', async () => {
    await save(dir, 't', content(1));
    writeFileSync(join(dir, 't', 'manifest.json'), '['.repeat(1e6));
    await expect(Checkpoint.open(dir)).rejects.toEqual(refusal(/manifest/));
  });
});

test.each([MODEL, OPTIMIZER, 'manifest.json'])(
  'a link in the place of %s is not followed',
  async (name) => {
    await save(dir, 't', content(1));
    const elsewhere = join(dir, 'elsewhere');
    renameSync(join(dir, 't', name), elsewhere);
    symlinkSync(elsewhere, join(dir, 't', name));
    await expect(Checkpoint.open(dir)).rejects.toEqual(refusal(/symbolic link/));
  },
);

test('a latest that leads out of the folder is refused', async () => {
  await save(dir, 't', content(1));
  const inner = join(dir, 'inner');
  mkdirSync(inner);
  for (const tag of ['../t', '..', '/tmp', '', 'a/../../t']) {
    writeFileSync(join(inner, 'latest'), tag);
    await expect(Checkpoint.open(inner)).rejects.toEqual(refusal(/latest: checkpoint tag/));
  }
});

test('state with hostile names changes no prototype', async () => {
  await save(dir, 't', content(1, JSON.parse('{"__proto__":{"polluted":1},"n":1}')));
  const { state } = await Checkpoint.open(dir);
  expect(Object.keys(state).sort()).toEqual(['__proto__', 'n']);
  expect(({} as JsonObject).polluted).toBeUndefined();
});

test("mutations of a pretrained folder's index and headers are read or refused", async () => {
  const engine = await tinyEngine(5, 1);
  await engine.saveCheckpoint(dir, { tag: 't' });
  engine.destroy();
  const good = join(dir, 'good');
  await consolidate(dir, good, { maxShardBytes: 40_000 });
  const index = join(dir, 'bad', 'model.safetensors.index.json');
  cpSync(good, join(dir, 'bad'), { recursive: true });
  const original = JSON.parse(readFileSync(index, 'utf8'));
  const files = readdirSync(good).filter((name) => name.endsWith('.safetensors'));
  const random = generator(99);
  let refused = 0;
  for (let round = 0; round < MUTATIONS; ++round) {
    const value = structuredClone(original);
    const map = value.weight_map as JsonObject;
    const names = Object.keys(map);
    const change = random(4);
    if (change === 0) mutate(value, random);
    else if (change === 1)
      map[names[random(names.length)] as string] = files[random(files.length)] as string;
    else map[names[random(names.length)] as string] = HOSTILE[random(HOSTILE.length)] as JsonValue;
    writeFileSync(index, JSON.stringify(value));
    const read = async () => {
      const folder = await WeightFiles.open(join(dir, 'bad'));
      const [first] = folder.tensors.keys();
      if (first !== undefined) (await folder.read(first)).release();
    };
    if (await isRefused(read)) refused++;
  }
  expect(refused).toBeGreaterThan(MUTATIONS / 2);
});
