// Paged attention for cases that the paged kernel does not support: biased scores, chunks of
// tokens, and wide heads. It gathers the blocks of each sequence, so it needs memory for all keys
// and values of a step.

import type { LatentHeads, RotaryReach } from '../nn/attention.js';
import { attendChunks, chunkOf } from '../nn/chunked-attention.js';
import { scoredAttention, WIDEST_HEAD } from '../nn/scored-attention.js';
import { type DType, dtypeSize, statisticOf } from '../runtime/dtype.js';
import { leading, required } from '../runtime/required.js';
import {
  arange,
  attention,
  clamp,
  concat,
  indexSelect,
  logicalAnd,
  maximum,
  scope,
  softmax,
  Tensor,
  tanh,
  where,
} from '../tensor/index.js';
import type { ListName, StepBatch } from './step-batch.js';

/** A batch, and its lists on the device. */
type DeviceBatch = Readonly<Record<ListName, Tensor>> & { batch: StepBatch };

/** Soft cap, sliding window, ALiBi slopes and attention sinks of a layer. */
interface GatherOptions extends RotaryReach {
  readonly scale: number;
  /** Soft cap: scores become cap * tanh(scores / cap). Null: no cap. */
  readonly cap: number | null;
  /** Logits [H]; see attention(). */
  readonly sinks: Tensor | null;
  /** Slopes [H]; see attention(). */
  readonly slopes: Tensor | null;
  /** Default: PART_BYTES. */
  readonly partBytes?: number;
  /** Tokens of a chunk. A token sees only its own chunk. Null or absent: it sees all tokens. */
  readonly chunk?: number | null;
}

/**
 * Returns the attention [N, H, D] of queries [N, H, D] to the tokens of their sequences. `pool`
 * [blocks, 2, Hk, block, D] already has the keys and values of these tokens.
 */
export function attendGathered(
  pool: Tensor,
  on: DeviceBatch,
  q: Tensor,
  options: GatherOptions,
): Tensor {
  const { singles, sequences } = on.batch;
  return scope(() => {
    const parts = rangesOf(pool, on, q.dtype, options.partBytes).map(([first, count]) =>
      scope(() => attendSingles(pool, on, q.narrow(0, first, count), { ...options, first })),
    );
    const { starts, lengths } = hostLists(on);
    for (let s = singles; s < sequences; ++s) {
      const [from, to] = [required(starts[s]), required(starts[s + 1])];
      const [keys, values] = gatherBlocks(pool, on.tables.narrow(0, s, 1), q.dtype);
      const count = required(lengths[s]);
      const queries = q
        .narrow(0, from, to - from)
        .transpose(0, 1)
        .unsqueeze(0);
      const out = attendSequence(
        queries,
        keys.narrow(2, 0, count),
        values.narrow(2, 0, count),
        options,
      );
      parts.push(out.squeeze(0).transpose(0, 1));
    }
    return parts.length === 1 ? required(parts[0]).contiguous() : concat(parts, 0);
  });
}

/** Returns the attention [1, H, T, D] of the last T tokens of a sequence. */
function attendSequence(q: Tensor, k: Tensor, v: Tensor, options: GatherOptions): Tensor {
  const { cap, sinks, scale, slopes: alibiSlopes, window = null, chunk } = options;
  if (chunk) {
    const inChunk = { ...options, chunk: null };
    return attendChunks({ q, k, v }, chunk, (q, k, v) => attendSequence(q, k, v, inChunk));
  }
  if (cap !== null || q.size(3) > WIDEST_HEAD) return attendByScores(q, k, v, options);
  return attention(q, k, v, { causal: true, scale, window, sinks, alibiSlopes });
}

/** Bytes of gathered keys and values, or of scores, above which attention works in parts. */
const PART_BYTES = 2 ** 28;

/**
 * Returns the ranges [first, count] of the sequences with one new token. The keys and values of a
 * range need at most PART_BYTES, so that one long sequence does not multiply the memory of a step.
 */
function rangesOf(
  pool: Tensor,
  on: DeviceBatch,
  dtype: DType,
  partBytes = PART_BYTES,
): [first: number, count: number][] {
  const { singles, width } = on.batch;
  const bytes = width * (pool.numel / pool.size(0)) * dtypeSize(dtype);
  const max = Math.max(1, Math.floor(partBytes / bytes));
  return Array.from({ length: Math.ceil(singles / max) }, (_, i) => [
    i * max,
    Math.min(max, singles - i * max),
  ]);
}

/** scoredAttention() in parts of queries: the scores of a part need at most PART_BYTES. */
function attendByScores(q: Tensor, k: Tensor, v: Tensor, options: GatherOptions): Tensor {
  const { scale, cap, window = null, partBytes = PART_BYTES } = options;
  const [, H, T] = leading(q.shape, 3);
  const S = k.size(2);
  const max = Math.max(1, Math.floor(partBytes / (H * S * dtypeSize(q.dtype))));
  const parts: Tensor[] = [];
  for (let first = 0; first < T; first += max) {
    const count = Math.min(max, T - first);
    const keys = S - T + first + count;
    const queries = q.narrow(2, first, count);
    const visible = [k, v].map((of) => of.narrow(2, 0, keys));
    const [seenKeys, seenValues] = leading(visible, 2);
    parts.push(scoredAttention(queries, seenKeys, seenValues, { scale, window, cap }));
  }
  return parts.length === 1 ? required(parts[0]) : concat(parts, 2);
}

/**
 * Returns the attention [S, H, D] of the sequences from `first` on, with one new token each. Reads
 * their lengths on the device only, so that a graph can record the step.
 */
function attendSingles(
  pool: Tensor,
  on: DeviceBatch,
  q: Tensor,
  { first, ...options }: GatherOptions & { first: number },
): Tensor {
  const { scale, cap, window, sinks, slopes, chunk } = options;
  const [S, H, D] = leading(q.shape, 3);
  const [keys, values] = gatherBlocks(pool, on.tables.narrow(0, first, S), q.dtype);
  const [Hk, L] = [keys.size(1), keys.size(2)];
  const products = q.reshape([S, Hk, H / Hk, D]).matmul(keys.transpose(2, 3));
  const positions = arange(L, { dtype: 'i32', device: q.device }).reshape([1, 1, 1, L]);
  // A padding row has length 0. It attends to one key, because the softmax of an empty row is NaN.
  const ends = maximum(on.lengths.narrow(0, first, S), 1).reshape([S, 1, 1, 1]);
  const stored = positions.lt(ends);
  const plain = cap === null ? products.mul(scale) : tanh(products.mul(scale / cap)).mul(cap);
  const distances = positions.sub(ends).add(1).to(statisticOf(q.dtype));
  const scores = slopes
    ? plain.add(
        slopes
          .reshape([1, Hk, H / Hk, 1])
          .mul(distances)
          .to(q.dtype),
      )
    : plain;
  const inWindow = window === null ? stored : logicalAnd(stored, positions.ge(ends.sub(window)));
  const visible = chunk
    ? logicalAnd(inWindow, positions.ge(chunkOf(ends.sub(1), chunk).mul(chunk)))
    : inWindow;
  const logits = where(visible, scores, Number.NEGATIVE_INFINITY);
  const weights = sinks ? softmaxWithSinks(logits, sinks) : softmax(logits, -1);
  // Unwritten memory of a block may hold NaN, and NaN times a weight of 0 is NaN.
  const filled = where(stored.reshape([S, 1, L, 1]), values, 0);
  return weights.matmul(filled).reshape([S, H, D]);
}

/**
 * Returns the attention [N, H, D] of the queries `of.q` to the latents in `pool`. Sequences with
 * one new token use the latents as keys and values of all heads. Other sequences expand the
 * latents.
 */
export function attendGatheredLatents(
  pool: Tensor,
  on: DeviceBatch,
  of: LatentHeads,
  scale: number,
  partBytes = PART_BYTES,
): Tensor {
  const { singles, sequences } = on.batch;
  const latentsOf = (from: number, count: number): Tensor =>
    concat(gatherBlocks(pool, on.tables.narrow(0, from, count), of.q.dtype), 3);
  return scope(() => {
    const q = of.q.squeeze(0).transpose(0, 1);
    const parts = rangesOf(pool, on, of.q.dtype, partBytes).map(([first, count]) =>
      scope(() => {
        const queries = of.absorbed(q.narrow(0, first, count));
        const lengths = on.lengths.narrow(0, first, count);
        const sums = weighLatents(queries, latentsOf(first, count), lengths, scale);
        return of.released(sums);
      }),
    );
    const { starts, lengths } = hostLists(on);
    for (let s = singles; s < sequences; ++s) {
      const [from, to] = [required(starts[s]), required(starts[s + 1])];
      const { k, v } = of.expanded(latentsOf(s, 1).narrow(2, 0, required(lengths[s])));
      const out = attention(of.q.narrow(2, from, to - from), k, v, { causal: true, scale });
      parts.push(out.squeeze(0).transpose(0, 1));
    }
    return parts.length === 1 ? required(parts[0]).contiguous() : concat(parts, 0);
  });
}

/** Returns the weighted sums [S, H, W] of latents [S, 1, L, W] for queries [S, H, W]. */
function weighLatents(q: Tensor, latents: Tensor, lengths: Tensor, scale: number): Tensor {
  const [S, , L] = leading(latents.shape, 3);
  const positions = arange(L, { dtype: 'i32', device: q.device }).reshape([1, 1, L]);
  const ends = maximum(lengths, 1).reshape([S, 1, 1]);
  const visible = positions.lt(ends);
  const all = latents.squeeze(1);
  const scores = q.matmul(all.transpose(1, 2)).mul(scale);
  const weights = softmax(where(visible, scores, Number.NEGATIVE_INFINITY), -1);
  return weights.matmul(where(visible.reshape([S, L, 1]), all, 0));
}

/**
 * Returns the softmax over logits [S, Hk, H / Hk, L] and one sink [H] per head, without the sinks'
 * columns.
 */
function softmaxWithSinks(logits: Tensor, sinks: Tensor): Tensor {
  const [S, Hk, G, L] = leading(logits.shape, 4);
  const extra = sinks.to(logits.dtype).reshape([1, Hk, G, 1]).expand([S, Hk, G, 1]);
  return softmax(concat([logits, extra], -1), -1).narrow(3, 0, L);
}

/**
 * Returns keys and values [S, Hk, width * block, D] of sequences, by their block tables [S, width].
 */
function gatherBlocks(pool: Tensor, tables: Tensor, dtype: DType): [Tensor, Tensor] {
  const [S, width] = leading(tables.shape, 2);
  const [blocks, , Hk, block, D] = leading(pool.shape, 5);
  // Unused entries of a table hold arbitrary values.
  const ids = clamp(tables.reshape([-1]), { min: 0, max: blocks - 1 });
  const rows = indexSelect(pool, 0, ids);
  const values = pool.dtype === 'u8' ? decodeFp8(rows, dtype) : rows;
  const all = values.reshape([S, width, 2, Hk, block, D]);
  return leading(
    [0, 1].map((part) =>
      all
        .narrow(2, part, 1)
        .squeeze(2)
        .transpose(1, 2)
        .reshape([S, Hk, width * block, D]),
    ),
    2,
  );
}

/** Returns the values of FP8 codes (e4m3, u8) in `dtype`. */
function decodeFp8(codes: Tensor, dtype: DType): Tensor {
  const table = Tensor.from(Float32Array.from(E4M3), { dtype, device: codes.device });
  const flat = indexSelect(table, 0, codes.reshape([-1]).to('i64'));
  return flat.reshape(codes.shape);
}

/** The value of each e4m3 code: 1 sign bit, 4 exponent bits with bias 7, 3 mantissa bits. */
const E4M3 = Array.from({ length: 256 }, (_, code) => {
  const [exponent, mantissa] = [(code >> 3) & 15, code & 7];
  const size =
    exponent === 15 && mantissa === 7
      ? Number.NaN
      : exponent === 0
        ? mantissa * 2 ** -9
        : (8 + mantissa) * 2 ** (exponent - 10);
  return code < 128 ? size : -size;
});

/**
 * Returns two lists of the batch from host memory, so that the host does not wait for the device.
 */
function hostLists({ batch }: DeviceBatch): Record<'starts' | 'lengths', Int32Array> {
  const { numbers, tokens, ends, sequences } = batch;
  const at = 3 * tokens + ends;
  return {
    starts: numbers.subarray(at, at + sequences + 1),
    lengths: numbers.subarray(at + sequences + 1, at + 2 * sequences + 1),
  };
}
