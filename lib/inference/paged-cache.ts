// Paged key-value cache: one pool of blocks per layer, shared by all sequences.

import { type CacheShape, layerShapes } from '../models/caches.js';
import type {
  CacheReach,
  LatentHeads,
  LayerCache,
  RotaryReach,
  UnrotatedHeads,
} from '../nn/attention.js';
import {
  allocatePools,
  createRecurrentState,
  type RecurrentSizes,
  refuseAttention,
  type StatePools,
} from '../nn/recurrent-cache.js';
import { WIDEST_HEAD } from '../nn/scored-attention.js';
import type { Buffer } from '../runtime/buffer.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { held, isBatchInvariant, refuseBatchInvariant, scope, Tensor } from '../tensor/index.js';
import { attendGathered, attendGatheredLatents } from './gathered-attention.js';
import { type ListName, listLengths, type StepBatch } from './step-batch.js';

/** Dimensions of a cache. */
export interface CacheSizes extends Omit<CacheShape, 'recurrent'> {
  /** Tokens in a block. */
  blockSize: number;
  /** Dtype of keys and values. u8: codes of FP8 (e4m3, scale 1). Default: `dtype`. */
  keyDtype?: DType;
  /** Whether forwards are batch-invariant, without the fused op of rotation and storage. */
  isInvariant?: boolean;
  /** Layers with a recurrent state instead of keys and values, or beside them. Default: none. */
  recurrent?: RecurrentSizes | null;
  /** Bytes per token of data outside the cache, such as the features of a head. Default: 0. */
  extraTokenBytes?: number;
}

/**
 * Returns the bytes of one block: keys and values of all layers (at least one), and
 * extraTokenBytes.
 */
export function blockBytes(sizes: CacheSizes): number {
  const bytesByLayer = layerShapes(sizes).map((_, layer) => layerBytes(sizes, layer));
  const total = bytesByLayer.reduce((sum, bytes) => sum + bytes, 0);
  const extraBytes = sizes.blockSize * (sizes.extraTokenBytes ?? 0);
  return extraBytes + (total > 0 ? total : layerBytes({ ...sizes, recurrent: null }, 0));
}

/** Bytes of one layer: 2 (keys, values) x heads x block x head dim x element. */
function layerBytes(sizes: CacheSizes, layer: number): number {
  const { kvHeads, headDim, from } = required(layerShapes(sizes)[layer]);
  if (from !== null || !hasKeys(sizes, layer)) return 0;
  return 2 * kvHeads * headDim * sizes.blockSize * dtypeSize(keyDtypeOf(sizes));
}

/** Whether a layer has keys and values, its own or of another layer. */
const hasKeys = ({ recurrent }: CacheSizes, layer: number): boolean =>
  !recurrent?.layers[layer] || recurrent.besideAttention === true;

const keyDtypeOf = ({ keyDtype, dtype }: CacheSizes): DType => keyDtype ?? dtype;

/** Lists of a batch on the device; tables are [sequences, width], tiles [tiles, 3]. */
type DeviceBatch = Readonly<Record<ListName, Tensor>> & { batch: StepBatch };

/**
 * Splits `all` (i32 on the device), which starts with the numbers of `batch`, into lists. The scope
 * owns the views.
 */
export function splitLists(batch: StepBatch, all: Tensor): DeviceBatch {
  let at = 0;
  const lists = Object.entries(listLengths(batch)).map(([name, size]) => {
    const list = all.narrow(0, at, size);
    at += size;
    return [name, list] as const;
  });
  const views = Object.fromEntries(lists) as Record<ListName, Tensor>;
  const tables = views.tables.reshape([batch.sequences, batch.width]);
  return { ...views, tables, tiles: views.tiles.reshape([batch.tiles, 3]), batch };
}

/**
 * The key-value cache of a model: for each layer a pool [blocks, 2, kvHeads, blockSize, headDim],
 * the pool of an earlier layer, or the recurrent states of `sequences` sequences; some layers have
 * a pool and states. run() sets the batch of a forward; attention reads slots and block tables from
 * it.
 */
export class PagedCache {
  /** One entry per layer of the model, in order. */
  readonly layers: readonly LayerCache[];
  /** One pool per layer; none while the cache sleeps. */
  private pools: (Tensor | null)[] = [];
  /** States of recurrent layers. */
  private states: (StatePools | null)[] = [];
  private running: DeviceBatch | null = null;

  /** Throws DS_OUT_OF_MEMORY if the pools do not fit. */
  constructor(
    private readonly sizes: CacheSizes,
    private readonly blocks: number,
    private readonly sequences = 0,
  ) {
    const pool = (layer: number): Tensor => required(this.pools[layer]);
    this.layers = layerShapes(sizes).map(({ from }, i): LayerCache => {
      const running = (): DeviceBatch => required(this.running);
      const state = this.isRecurrent(i)
        ? createRecurrentState(() => required(this.states[i]), this.runningLists)
        : null;
      if (state && !hasKeys(sizes, i)) return { attend: refuseAttention, state };
      const plain: LayerCache = {
        ...(state && { state }),
        attend: (q, k, v, reach) => attend(pool(i), running(), { q, k, v }, reach),
        attendStored: (q, reach) => attendStored(pool(from ?? i), running(), toRagged(q), reach),
      };
      if (sizes.latent) {
        const attendLatent = (of: LatentHeads, scale: number): Tensor =>
          attendLatents(pool(i), running(), of, scale);
        return { ...plain, attendLatent };
      }
      if (sizes.isInvariant) return plain;
      return {
        ...plain,
        attendRotary: (heads, reach) => attendRotary(pool(i), running(), heads, reach),
      };
    });
    this.wake();
  }

  private isRecurrent(layer: number): boolean {
    return this.sizes.recurrent?.layers[layer] ?? false;
  }

  private readonly runningLists = () => {
    const { starts, lengths, states } = required(this.running);
    return { starts, lengths, slots: states };
  };

  /** Frees the pools with all keys, values and states. */
  sleep(): void {
    for (const pool of this.pools.splice(0)) pool?.dispose();
    for (const pools of this.states.splice(0)) {
      pools?.inputs.dispose();
      pools?.states?.dispose();
    }
  }

  /** Allocates the pools if the cache sleeps. Throws DS_OUT_OF_MEMORY if they no longer fit. */
  wake(): void {
    if (this.pools.length > 0) return;
    const { dtype, device, blockSize, recurrent } = this.sizes;
    for (const [i, { kvHeads, headDim, from }] of layerShapes(this.sizes).entries()) {
      const shape = [this.blocks, 2, kvHeads, blockSize, headDim];
      const isRecurrent = this.isRecurrent(i);
      const pool = (): Tensor => Tensor.empty(shape, keyDtypeOf(this.sizes), device);
      this.pools.push(from !== null || !hasKeys(this.sizes, i) ? null : held(pool));
      const states = (): StatePools => {
        const pools = allocatePools(this.sequences, required(recurrent), { dtype, device });
        return { inputs: pools.inputs.keep(), states: pools.states?.keep() ?? null };
      };
      this.states.push(isRecurrent ? scope(states) : null);
    }
  }

  /** Copies a block of all layers to or from `host` at `offset`, in the order of the steps. */
  copyBlock(block: number, host: Buffer, offset: number, isSave: boolean): void {
    const { device } = this.sizes;
    let at = offset;
    for (const [layer, pool] of this.pools.entries()) {
      if (!pool) continue;
      const bytes = layerBytes(this.sizes, layer);
      const blockOffset = block * bytes;
      if (isSave) host.copyFrom(pool.buffer, { to: at, from: blockOffset, bytes }, device.compute);
      else pool.buffer.copyFrom(host, { to: blockOffset, from: at, bytes }, device.compute);
      at += bytes;
    }
  }

  /** Runs a forward that computes the tokens of `batch`. */
  run<T>(batch: DeviceBatch, body: () => T): T {
    this.running = batch;
    try {
      return body();
    } finally {
      this.running = null;
    }
  }

  dispose(): void {
    this.sleep();
  }
}

interface Projected {
  /** [1, H, N, D]. */
  q: Tensor;
  /** [1, Hk, N, D]. */
  k: Tensor;
  v: Tensor;
}

/** [1, H, N, D] as [N, H, D]. */
const toRagged = (x: Tensor): Tensor => x.squeeze(0).transpose(0, 1);

function attend(pool: Tensor, on: DeviceBatch, of: Projected, reach: CacheReach): Tensor {
  kernels.pagedStore({ k: toRagged(of.k), v: toRagged(of.v), slots: on.slots, pool });
  return attendStored(pool, on, toRagged(of.q), reach);
}

/** Attends with queries [N, H, D] to tokens that are stored already. */
function attendStored(pool: Tensor, on: DeviceBatch, q: Tensor, reach: CacheReach): Tensor {
  const { scoreCap = null, sinks = null, alibiSlopes: slopes = null, window } = reach;
  const { scale = 1 / Math.sqrt(q.size(2)) } = reach;
  const isWide = q.size(2) > WIDEST_HEAD;
  // If all keys of the batch fit into one chunk, chunks hide no key.
  const chunk = on.batch.width * pool.size(3) > (reach.chunk ?? Infinity) ? reach.chunk : null;
  if (sinks || slopes || isWide || chunk) {
    const got = 'biased scores, sinks, chunks, or heads of more than 256 channels';
    refuseBatchInvariant('attention', 'plain scores', got);
    if (slopes || isWide || chunk) {
      const how = { window, chunk, scale, cap: scoreCap, sinks, slopes };
      const out = attendGathered(pool, on, q, how);
      return out.transpose(0, 1).unsqueeze(0);
    }
  }
  return attendPool(pool, on, q, reach);
}

function attendLatents(pool: Tensor, on: DeviceBatch, of: LatentHeads, scale: number): Tensor {
  const width = pool.size(4);
  const half = (part: number): Tensor =>
    toRagged(of.latent.narrow(3, part * width, width).contiguous());
  kernels.pagedStore({ k: half(0), v: half(1), slots: on.slots, pool });
  return attendGatheredLatents(pool, on, of, scale).transpose(0, 1).unsqueeze(0);
}

function attendRotary(
  pool: Tensor,
  on: DeviceBatch,
  heads: UnrotatedHeads,
  reach: RotaryReach,
): Tensor {
  const { cos, sin, norms } = heads;
  const [q, k, v] = [heads.q.squeeze(0), heads.k.squeeze(0), heads.v.squeeze(0)];
  const { slots } = on;
  const positions = heads.positions.reshape([-1]);
  const weights = { qNorm: norms?.q ?? null, kNorm: norms?.k ?? null, eps: norms?.eps ?? 0 };
  const operands = { q, k, v, cos, sin, positions, ...weights, slots, pool };
  const isDecoding = on.batch.singles === on.batch.tokens && !isBatchInvariant();
  if (isDecoding) return attendSingles(operands, on, reach);
  kernels.rotaryStore({ ...operands, out: q });
  return attendPool(pool, on, q, reach);
}

/** The operands of RotaryStore, without its output. */
type RotaryOperands = Omit<kernels.RotaryStoreArgs, 'out' | 'q'> & { q: Tensor };

/** Rotates, stores and attends in one op, in a batch of single tokens. Returns [1, H, N, D]. */
function attendSingles(operands: RotaryOperands, on: DeviceBatch, reach: RotaryReach): Tensor {
  const { q } = operands;
  const { window, sinks = null, scale = 1 / Math.sqrt(q.size(2)) } = reach;
  const out = Tensor.empty(q.shape, q.dtype, q.device);
  const { singles } = on.batch;
  const [tables, lengths] = [on.tables.narrow(0, 0, singles), on.lengths.narrow(0, 0, singles)];
  const starts = on.starts.narrow(0, 0, singles + 1);
  kernels.rotaryAttention({
    ...operands,
    tables,
    starts,
    lengths,
    out,
    sinks,
    scale,
    cap: reach.scoreCap ?? 0,
    window: window ?? 0,
  });
  return out.transpose(0, 1).unsqueeze(0);
}

/**
 * Attends with queries [N, H, D]; their keys and values are already stored. Returns [1, H, N, D].
 */
function attendPool(pool: Tensor, on: DeviceBatch, q: Tensor, reach: RotaryReach): Tensor {
  const { batch } = on;
  const { window, scale = 1 / Math.sqrt(q.size(2)) } = reach;
  const out = Tensor.empty(q.shape, q.dtype, q.device);
  const { singles, sequences, tokens } = batch;
  const part = (from: number, count: number, rows: readonly [number, number]): void => {
    if (count === 0) return;
    kernels.pagedAttention({
      q: q.narrow(0, ...rows),
      pool,
      tables: on.tables.narrow(0, from, count),
      starts: on.starts.narrow(0, from, count + 1),
      lengths: on.lengths.narrow(0, from, count),
      out: out.narrow(0, ...rows),
      lse: null,
      sinks: reach.sinks ?? null,
      scale,
      cap: reach.scoreCap ?? 0,
      window: window ?? 0,
      longest: from < singles ? 1 : batch.longest,
      invariant: isBatchInvariant(),
    });
  };
  // Sequences with one token and prompts run separately: the kernel picks its tile rows by
  // `longest`.
  part(0, singles, [0, singles]);
  part(singles, sequences - singles, [singles, tokens - singles]);
  return out.transpose(0, 1).unsqueeze(0);
}
