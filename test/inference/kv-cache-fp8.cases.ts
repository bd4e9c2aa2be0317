// Tests keys and values in FP8: codes of a step equal a simulation, attention over codes has the
// bits of attention over their values, and an engine keeps twice the tokens in its memory.
import assert from 'node:assert/strict';
import {
  type InferenceConfig,
  type InferenceEngine,
  initInference,
} from '../../lib/inference/index.js';
import { type CausalLM, Gemma2, Llama } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { cast, inOrder, noGrad, scope, Tensor } from '../../lib/tensor/index.js';
import { seed } from '../../lib/tensor/random.js';
import type { Case } from '../support/case.js';

type Narrow = 'f32' | 'f16' | 'bf16';

/** Values of the codes without a sign, in order: e4m3 without infinity; NaN is left out. */
const VALUES = Array.from({ length: 127 }, (_, code) =>
  code < 8 ? code * 2 ** -9 : (8 + (code & 7)) * 2 ** ((code >> 3) - 10),
);

/** The code nearest to x, ties to even, at most the largest. */
function codeOf(x: number): number {
  const size = Math.abs(x);
  const above = VALUES.findIndex((value) => value >= size);
  const sign = x < 0 || Object.is(x, -0) ? 128 : 0;
  if (above < 0) return sign + 126;
  const below = Math.max(0, above - 1);
  const [up, down] = [VALUES[above]! - size, size - VALUES[below]!];
  const isUp = up < down || (up === down && above % 2 === 0);
  return sign + (isUp ? above : below);
}

const decodeCode = (code: number): number => (code < 128 ? 1 : -1) * VALUES[code & 127]!;

const SIZES = { heads: 8, keyHeads: 2 };

function drawTensor(shape: number[], dtype: Narrow, device: Device, size: number): Tensor {
  const out = Tensor.empty(shape, dtype, device);
  kernels.randomUniform({ out, low: -size, high: size, seed: 3, offset: shape.length, ...inOrder });
  return out;
}

const list = (values: readonly number[], device: Device, shape = [values.length]): Tensor =>
  Tensor.from(Int32Array.from(values), { shape, device });

/** Two texts of `lengths` tokens, of which the last `counts` are queries. */
interface Texts {
  lengths: readonly number[];
  counts: readonly number[];
  block: number;
  width: number;
}

const TEXTS: readonly Texts[] = [
  { lengths: [150, 61], counts: [1, 1], block: 64, width: 128 },
  { lengths: [40, 300], counts: [1, 1], block: 16, width: 64 },
  { lengths: [90, 130], counts: [90, 70], block: 48, width: 80 },
  { lengths: [33, 20], counts: [33, 1], block: 16, width: 18 },
];

/** Stores keys and values as codes and as their values, and compares the attention to both. */
function compare(dtype: Narrow, texts: Texts, invariant: boolean, device: Device): void {
  const { lengths, counts, block, width } = texts;
  const { heads, keyHeads } = SIZES;
  const tokens = lengths.reduce((sum, value) => sum + value);
  const maxBlocks = Math.ceil(Math.max(...lengths) / block);
  const tables = lengths.map((_, s) =>
    Array.from({ length: maxBlocks }, (_, b) => maxBlocks * s + b),
  );
  const slots = lengths.flatMap((length, s) =>
    Array.from({ length }, (_, i) => maxBlocks * s * block + i),
  );
  const shape = [maxBlocks * lengths.length, 2, keyHeads, block, width];
  const [k, v] = [600, 3].map((size) =>
    drawTensor([tokens, keyHeads, width], dtype, device, size),
  ) as [Tensor, Tensor];
  const small = k.mul(0.005);
  const roundTensor = (x: Tensor): Tensor => {
    const values = Float32Array.from(x.toArray(), (value) => decodeCode(codeOf(value)));
    return cast(Tensor.from(values, { shape: x.shape, device }), dtype);
  };
  const codes = Tensor.empty(shape, 'u8', device).fill_(0);
  const plain = Tensor.empty(shape, dtype, device).fill_(0);
  const places = list(slots, device);
  kernels.pagedStore({ k: small, v, slots: places, pool: codes });
  kernels.pagedStore({ k: roundTensor(small), v: roundTensor(v), slots: places, pool: plain });
  assert.deepEqual(codes.toArray().map(decodeCode), plain.toArray());
  const queries = counts.reduce((sum, value) => sum + value);
  const q = drawTensor([queries, heads, width], dtype, device, 2);
  const starts = [0, counts[0]!, queries];
  const [fromCodes, fromValues] = [codes, plain].map((pool) => {
    const out = Tensor.empty(q.shape, dtype, device);
    kernels.pagedAttention({
      q,
      pool,
      out,
      lse: null,
      sinks: null,
      scale: width ** -0.5,
      cap: 0,
      window: 0,
      invariant,
      tables: list(tables.flat(), device, [lengths.length, maxBlocks]),
      starts: list(starts, device),
      lengths: list(lengths, device),
      longest: Math.max(...counts),
    });
    return out.toArray();
  });
  assert.deepEqual(fromCodes, fromValues);
  // Beyond the largest code, and NaN.
  const far = Tensor.from(Float32Array.from([1e4, -1e4, Number.NaN, 0.001]), {
    shape: [1, 1, 4],
    device,
  });
  const few = Tensor.empty([1, 2, 1, 16, 4], 'u8', device).fill_(0);
  const edge = cast(far, dtype);
  kernels.pagedStore({ k: edge, v: edge, slots: list([0], device), pool: few });
  assert.deepEqual(few.toArray().slice(0, 4), [126, 254, 127, codeOf(0.001)]);
}

/** The fused rotation stores the codes of what it stores otherwise. */
function rotates(dtype: Narrow, width: number, device: Device): void {
  const [tokens, heads, keyHeads] = [7, 4, 2];
  const part = (count: number, size: number) =>
    drawTensor([tokens, count, width], dtype, device, size);
  const [k, v] = [part(keyHeads, 5), part(keyHeads, 2)];
  const angles = drawTensor([tokens, width / 2], 'f32', device, 1);
  const [codes, values] = (['u8', dtype] as const).map((type) => {
    const pool = Tensor.empty([1, 2, keyHeads, 16, width], type, device).fill_(0);
    const q = part(heads, 1);
    kernels.rotaryStore({
      q,
      k,
      v,
      out: q,
      cos: angles,
      sin: angles,
      pool,
      positions: list([0, 1, 2, 3, 4, 5, 6], device),
      slots: list([3, 4, 5, -1, 9, 1, 0], device),
      qNorm: null,
      kNorm: null,
      eps: 0,
    });
    return pool.toArray();
  }) as [number[], number[]];
  assert.deepEqual(codes, values.map(codeOf));
}

const llama = (): CausalLM => {
  seed(5);
  return new Llama({
    vocabSize: 67,
    maxSeq: 256,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    channels: 64,
    hidden: 96,
    ropeTheta: 1e4,
    eps: 1e-5,
  });
};

/** Scores are bounded, so blocks are gathered. */
const gemma = (): CausalLM => {
  seed(6);
  return new Gemma2({
    vocabSize: 67,
    maxSeq: 256,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    headDim: 16,
    channels: 64,
    hidden: 96,
    window: 32,
  });
};

/** The logprob of every seventh token of a text after the tokens before it, through the cache. */
async function cachedLogprobs(engine: InferenceEngine, text: readonly number[]): Promise<number[]> {
  const places = text.flatMap((_, i) => (i % 7 === 6 ? [i] : []));
  const requests = places.map((i) => {
    return { prompt: text.slice(0, i), allowedTokens: [text[i]!], maxNewTokens: 1, logprobs: 0 };
  });
  const result = await engine.generateBatch(requests);
  return result.map(([one]) => one!.logprobs![0]!.logprob);
}

/** The logprobs of a text differ little, and the same memory keeps more tokens. */
async function engine(make: () => CausalLM, device: Device): Promise<void> {
  const results: { blocks: number; logprobs: number[]; tokens: readonly number[] }[] = [];
  for (const dtype of ['auto', 'fp8'] as const) {
    const config: InferenceConfig = {
      dtype: 'bf16',
      device: device.name,
      enable_cuda_graph: 'auto',
      kv_cache: { dtype, memory: 2 ** 20, block_size: 16 },
    };
    const engine = await initInference(make(), config);
    const prompt = Array.from({ length: 150 }, (_, i) => (i * i) % 67);
    const logprobs = await cachedLogprobs(engine, prompt);
    const [text] = await engine.generate({ prompt, temperature: 0, maxNewTokens: 20 });
    const { blocks, blocksUsed } = engine.stats();
    assert.equal(blocksUsed, 0);
    results.push({
      blocks,
      logprobs,
      tokens: text!.tokens,
    });
    await engine.destroy();
  }
  const [plain, coded] = results as [(typeof results)[0], (typeof results)[0]];
  assert.equal(coded.blocks, 2 * plain.blocks);
  assert.equal(coded.tokens.length, 20);
  const differences = coded.logprobs.map((logprob, i) => Math.abs(logprob - plain.logprobs[i]!));
  const largest = Math.max(...differences);
  assert.ok(largest > 0 && largest < 0.2, `logprobs differ by ${largest}`);
}

const DTYPES = ['f32', 'f16', 'bf16'] as const;

export const cases: readonly Case[] = [
  ...DTYPES.flatMap((dtype) =>
    TEXTS.flatMap((texts, i) =>
      [false, true].map((invariant) => ({
        name: `fp8 keys: ${dtype}, texts ${i}${invariant ? ', invariant' : ''}: codes as their values`,
        run: (device: Device) =>
          noGrad(() => scope(() => compare(dtype, texts, invariant, device))),
      })),
    ),
  ),
  ...DTYPES.flatMap((dtype) =>
    [12, 128].map((width) => ({
      name: `fp8 keys: ${dtype}, heads of ${width}: the rotation stores codes`,
      run: (device: Device) => noGrad(() => scope(() => rotates(dtype, width, device))),
    })),
  ),
  { name: 'fp8 keys: an engine', run: (device) => engine(llama, device) },
  { name: 'fp8 keys: an engine that gathers blocks', run: (device) => engine(gemma, device) },
];
