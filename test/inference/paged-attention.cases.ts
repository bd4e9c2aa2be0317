// Paged attention of whole prompts and of their last pieces is the attention of training to the
// same keys, over many tiles of rows and keys.
import assert from 'node:assert/strict';
import { concat, noGrad, scope, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { inOrder } from '../../lib/tensor/index.js';
import { allSeen } from '../native/matrix/attention-reference.js';
import type { Case } from '../support/case.js';

const BLOCK = 64;
const sizes = { heads: 16, keyHeads: 8, width: 72 };
/** Tokens of a text, and how many of them are queries. */
const TEXTS = [
  [200, 200],
  [130, 130],
  [170, 33],
  [1, 1],
] as const;

/**
 * How far two orders of the same sums may be from each other after rounding, for sums of about 1.
 */
const TOLERANCE = { f32: 4e-6, f16: 2e-3, bf16: 1.6e-2 } as const;

/** A window, and how long the host believes texts to be: by that kernels are chosen. */
const CALLS = [
  { window: 0, longest: 200 },
  { window: 100, longest: 2000 },
  { window: 0, longest: 2000 },
] as const;

/** Rows [tokens, heads, D] as [1, heads, tokens, D]. */
const toBatch = (x: Tensor): Tensor => x.transpose(0, 1).unsqueeze(0);

function attend(q: Tensor, k: Tensor, v: Tensor, window: number): Tensor {
  const out = Tensor.empty(q.shape, q.dtype, q.device);
  kernels.attention({
    q: toBatch(q),
    k: toBatch(k),
    v: toBatch(v),
    out: toBatch(out),
    lse: Tensor.empty([1, sizes.heads, q.size(0)], 'f32', q.device),
    ...allSeen,
    window,
    scale: sizes.width ** -0.5,
    causal: true,
  });
  return out;
}

function list(values: readonly number[], device: Device, shape = [values.length]): Tensor {
  return Tensor.from(Int32Array.from(values), { shape, device });
}

/**
 * The texts one after the other; blocks of theirs in the reverse order, the last ones of the pool.
 */
function compare(
  dtype: keyof typeof TOLERANCE,
  call: (typeof CALLS)[number],
  device: Device,
): void {
  const { window, longest } = call;
  const { heads, keyHeads, width } = sizes;
  let drawn = 0;
  const draw = (count: number, of: number): Tensor => {
    const out = Tensor.empty([count, of, width], dtype as DType, device);
    kernels.randomNormal({ out, mean: 0, stddev: 1, seed: 11, offset: drawn++ << 20, ...inOrder });
    return out;
  };
  const widest = Math.max(...TEXTS.map(([tokens]) => Math.ceil(tokens / BLOCK)));
  const blocks = TEXTS.reduce((sum, [tokens]) => sum + Math.ceil(tokens / BLOCK), 0);
  const pool = Tensor.empty([blocks, 2, keyHeads, BLOCK, width], dtype as DType, device);
  kernels.fill({ out: pool, value: Number.NaN });
  let next = blocks;
  const tables = TEXTS.map(([tokens]) =>
    Array.from({ length: widest }, (_, i) => (i * BLOCK < tokens ? --next : -1)),
  );
  const dense: Tensor[] = [];
  const queries = TEXTS.map(([tokens, count], s) => {
    const [k, v, q] = [draw(tokens, keyHeads), draw(tokens, keyHeads), draw(count, heads)];
    const slots = Array.from({ length: tokens }, (_, i) => {
      const block = (tables[s] as number[])[Math.floor(i / BLOCK)] as number;
      return block * BLOCK + (i % BLOCK);
    });
    kernels.pagedStore({ k, v, slots: list(slots, device), pool });
    dense.push(attend(q, k, v, window));
    return q;
  });
  const starts = [0];
  for (const [, count] of TEXTS) starts.push((starts.at(-1) as number) + count);
  const q = concat(queries, 0);
  const out = Tensor.empty(q.shape, q.dtype, device);
  kernels.fill({ out, value: Number.NaN });
  kernels.pagedAttention({
    q,
    pool,
    out,
    window,
    scale: width ** -0.5,
    cap: 0,
    longest,
    lse: null,
    sinks: null,
    invariant: false,
    tables: list(tables.flat(), device, [TEXTS.length, widest]),
    starts: list(starts, device),
    lengths: list(
      TEXTS.map(([tokens]) => tokens),
      device,
    ),
  });
  const wide = (x: Tensor): number[] => x.to('f32').contiguous().toArray();
  const [got, wanted] = [wide(out), wide(concat(dense, 0))];
  const worst = got.reduce((largest, x, i) => {
    const expected = wanted[i] as number;
    return Math.max(largest, Math.abs(x - expected) / Math.max(1, Math.abs(expected)));
  }, 0);
  assert.ok(worst <= TOLERANCE[dtype], `${dtype}, window ${window}: off by ${worst}`);
}

export const cases: Case[] = (['f32', 'f16', 'bf16'] as const).flatMap((dtype) =>
  CALLS.map((call) => ({
    name: `PagedAttention of prompts is Attention: ${dtype}, window ${call.window} of ${call.longest}`,
    run: async (device: Device) => noGrad(() => scope(() => compare(dtype, call, device))),
  })),
);
