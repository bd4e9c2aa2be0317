// Damaged and hostile GGUF files: each is read, or refused with DS_CHECKPOINT, DS_DATA or DS_IO, or
// with DS_ARGUMENT for sizes that no model can have. DS_FUZZ_CASES sets the number of random files.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readGgufHeader } from '../../lib/checkpoint/index.js';
import { DsError } from '../../lib/errors.js';
import { nn, text } from '../../lib/index.js';
import type { JsonObject } from '../../types/json.js';
import { splitGguf } from '../support/gguf-split.js';
import { below } from '../support/random.js';

const CASES = Number(process.env.DS_FUZZ_CASES ?? 400);
const golden = join('test', 'golden', 'transformers');
const folder = mkdtempSync(join(tmpdir(), 'ds-gguf-'));
afterAll(() => rmSync(folder, { recursive: true }));
const path = join(folder, 'case.gguf');

/** Families with different keys and names. */
const FAMILIES = [
  ...(['llama', 'stablelm', 'phi', 'cohere2', 'glm4'] as const),
  ...(['gpt-neox', 'granite-moe', 'glm4-moe', 'gpt-oss', 'deepseek-v3'] as const),
  ...(['gemma4', 'qwen3-5', 'apertus', 'mixtral'] as const),
] as const;

/** Families in several files, and the number of the files. */
const SPLIT: Readonly<Record<string, number>> = { mixtral: 3 };

/** Settings that files can have, and layers of all kinds. */
const SETTINGS: Readonly<Record<string, JsonObject>> = {
  'deepseek-v3': { rope_parameters: { rope_type: 'default', rope_theta: 10_000 } },
  'qwen3-5': {
    num_hidden_layers: 2,
    layer_types: ['linear_attention', 'full_attention'],
    linear_value_head_dim: 6,
  },
  gemma4: {
    num_hidden_layers: 2,
    layer_types: ['sliding_attention', 'full_attention'],
    num_kv_shared_layers: 0,
    per_layer_config: { 1: { head_dim: 14 } },
    vocab_size_per_layer_input: 1008,
  },
};

/** A file of a model. */
interface ModelFile {
  readonly path: string;
  readonly bytes: Buffer;
}

/** A small valid model, in one or several files. */
async function validFiles(family: string): Promise<ModelFile[]> {
  const config = JSON.parse(
    readFileSync(join(golden, 'models', family, 'config.json'), 'utf8'),
  ) as JsonObject;
  const small = {
    hidden_size: 32,
    intermediate_size: 64,
    vocab_size: 1008,
    num_hidden_layers: 1,
    first_k_dense_replace: 0,
  };
  const types: JsonObject = config.layer_types ? { layer_types: ['sliding_attention'] } : {};
  const model = nn.models.fromConfig({ ...config, ...small, ...types, ...SETTINGS[family] });
  const tokenizer = join(golden, 'tokenizers', 'llama2');
  const count = SPLIT[family];
  rmSync(path, { force: true });
  await nn.saveGguf(model, path, { tokenizer, ...(count ? { type: 'F32' } : {}) });
  if (count === undefined) return [{ path, bytes: readFileSync(path) }];
  const first = await splitGguf(path, count);
  return Array.from({ length: count }, (_, i) => {
    const file = first.replace('-00001-', `-0000${i + 1}-`);
    return { path: file, bytes: readFileSync(file) };
  });
}

/** The result of reading the model of the first file: null, or the error. */
async function outcome(path: string): Promise<unknown> {
  try {
    text.Tokenizer.fromPretrained(path).encode('The engine reads 12 files.');
    const model = await nn.models.fromPretrained(path);
    // Reads every value.
    for (const parameter of model.parameters()) parameter.toRaw();
    return null;
  } catch (error) {
    return error;
  }
}

const CODES = ['DS_CHECKPOINT', 'DS_DATA', 'DS_IO', 'DS_ARGUMENT'];

const isKnown = (error: unknown): boolean =>
  error === null || (error instanceof DsError && CODES.includes(error.code));

/** Up to four changes at random places, most of them in the first `header` bytes, and cuts. */
function changed(valid: Buffer, header: number): Buffer {
  const bytes = Buffer.from(valid);
  const changes = 1 + below(4);
  for (let j = 0; j < changes; ++j) {
    const at = below(below(3) === 0 ? bytes.length : header);
    const kind = below(4);
    if (kind === 0) bytes[at] = below(256);
    else if (kind === 1) bytes.fill(255, at, Math.min(at + 8, bytes.length));
    else if (kind === 2) bytes.fill(0, at, Math.min(at + 4, bytes.length));
    else bytes[at] = (bytes[at] as number) ^ (1 << below(8));
  }
  return below(5) === 0 ? bytes.subarray(0, below(bytes.length)) : bytes;
}

test.each(FAMILIES)('random changes and cuts of %s', async (family) => {
  const files = await validFiles(family);
  const [{ path: first }] = files as [ModelFile];
  const cases = CASES / FAMILIES.length;
  expect(await outcome(first)).toBeNull();
  let refused = 0;
  for (let i = 0; i < cases; ++i) {
    const { path: place, bytes } = files[below(files.length)] as ModelFile;
    const header = Math.min(Math.max(bytes.indexOf('token_embd.weight'), 0) + 2000, bytes.length);
    writeFileSync(place, changed(bytes, header));
    const error = await outcome(first);
    writeFileSync(place, bytes);
    if (!isKnown(error)) {
      throw new Error(`case ${i}: ${(error as Error).stack}`);
    }
    if (error !== null) refused += 1;
  }
  expect(refused).toBeGreaterThan(cases / 4);
});

const u32 = (value: number): Buffer => Buffer.from(Uint32Array.of(value).buffer);
const u64 = (value: bigint): Buffer => Buffer.from(BigUint64Array.of(value).buffer);
const words = (value: string): Buffer =>
  Buffer.concat([u64(BigInt(value.length)), Buffer.from(value)]);
const file = (tensors: bigint, pairs: bigint, ...rest: Buffer[]): Buffer =>
  Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors), u64(pairs), ...rest]);
const tensor = (name: string, dims: readonly bigint[], type: number, offset: bigint): Buffer =>
  Buffer.concat([words(name), u32(dims.length), ...dims.map(u64), u32(type), u64(offset)]);

test.each([
  ['nothing', Buffer.alloc(0), 'a GGUF file'],
  ['another format', Buffer.from('PK\u0003\u0004 and so on'), 'a GGUF file'],
  ['version 1', Buffer.concat([Buffer.from('GGUF'), u32(1)]), 'version 2 or 3'],
  ['2^60 tensors', file(2n ** 60n, 0n), 'below 2.53'],
  ['a million tensors more', file(2_000_000n, 0n), 'at most 1000000 tensors'],
  ['a text of 2^40 bytes', file(0n, 1n, u64(2n ** 40n)), 'a string of at most'],
  [
    'a list of 2^40 values',
    file(0n, 1n, words('a'), u32(9), u32(4), u64(2n ** 40n)),
    'a list of at most 0',
  ],
  [
    'lists in lists',
    file(0n, 1n, words('a'), ...Array.from({ length: 9 }, () => [u32(9), u64(1n)]).flat()),
    'levels|0 to 12|list of',
  ],
  ['a type of value', file(0n, 1n, words('a'), u32(77)), 'from 0 to 12'],
  ['an alignment', file(0n, 1n, words('general.alignment'), u32(4), u32(0)), 'a power of 2'],
  ['five dimensions', file(1n, 0n, words('t'), u32(5)), 'at most 4 dimensions'],
  ['NVFP4', file(1n, 0n, tensor('t', [256n], 40, 0n)), 'got NVFP4'],
  ['half a block', file(1n, 0n, tensor('t', [33n], 8, 0n)), 'whole blocks of 32'],
  [
    '2^60 values',
    file(1n, 0n, tensor('t', [2n ** 30n, 2n ** 30n], 0, 0n)),
    'whole blocks|inside of the file',
  ],
  ['values behind the end', file(1n, 0n, tensor('t', [64n], 0, 0n)), 'inside of the file'],
  [
    'overlap',
    Buffer.concat([
      file(2n, 0n, tensor('t', [8n], 0, 0n), tensor('u', [8n], 0, 0n)),
      Buffer.alloc(256),
    ]),
    'without overlap',
  ],
  [
    'a name twice',
    Buffer.concat([
      file(2n, 0n, tensor('t', [8n], 0, 0n), tensor('t', [8n], 0, 32n)),
      Buffer.alloc(256),
    ]),
    'distinct names',
  ],
])('%s is refused', (_, bytes, message) => {
  const read = (at: number, into: Uint8Array): void => {
    if (at + into.length > bytes.length) throw new Error('a read behind the end');
    into.set(bytes.subarray(at, at + into.length));
  };
  expect(() => readGgufHeader('file', bytes.length, read)).toThrow(new RegExp(message));
});
