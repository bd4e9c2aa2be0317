// ZeRO++: all-gather of weights in 8 bits, and reduction of gradients in 4 bits. Each block of
// values has one scale.

import { type DType, dtypeSize, isFloating } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import { held, Tensor } from '../tensor/index.js';
import { type GatherFlat, gatherPlain } from './gathered-weights.js';
import { parameterAlignment } from './layout.js';
import { type CollectiveStart, type Collectives, releaseOn, type Wire, type Work } from './wire.js';

/** Bits of a gathered weight (zero_quantized_weights). Source: ZeRO++'s qwZ. */
const GATHER_BITS = 8;
/** Bits of a reduced gradient (zero_quantized_gradients). Source: ZeRO++'s qgZ. */
const REDUCE_BITS = 4;

/** Gathers like gatherPlain(), but sends 8-bit codes. Shards keep full precision. */
export const gatherCodes: GatherFlat = (place, flat, group, at) => {
  if (!hasCodes(flat.dtype)) return gatherPlain(place, flat, group, at);
  const numel = flat.numel / group.size;
  const codes = new BlockCodes(GATHER_BITS, numel);
  const messages = codes.allocate(group.size, flat);
  const { memory } = place;
  if (memory && !memory.buffer.pinned) codes.write(memory, messages, group.rank, at.stream);
  else {
    const ownShard = held(() => Tensor.empty([numel], flat.dtype, flat.device));
    place.load(ownShard, at.stream);
    codes.write(ownShard, messages, group.rank, at.stream);
    releaseOn(at.stream, ownShard);
  }
  const { words } = codes;
  const from = messages.offset + group.rank * words;
  const ownMessage = held(() => messages.alias([words], undefined, from));
  const work = group.allGather(messages, ownMessage, at);
  return {
    wait: (stream) => {
      work.wait(stream);
      for (let rank = 0; rank < group.size; ++rank) {
        codes.read(messages, rank, matrix(flat, numel, rank * numel), stream);
      }
      ownMessage.release();
      releaseOn(stream, messages);
    },
  };
};

/** Elements per scale. Parameters begin at multiples of it, so a block belongs to one parameter. */
export const BLOCK = parameterAlignment;

/** Returns the bytes per element: the code, and the element's part of the scale. */
const codeBytes = (bits: number): number => bits / 8 + dtypeSize('f32') / BLOCK;

/** Bytes per element of messages. */
export const CODE_BYTES = { weights: codeBytes(GATHER_BITS), gradients: codeBytes(REDUCE_BITS) };

/**
 * Returns whether messages quantize values of `dtype`. Values of other dtypes are sent unchanged.
 */
const hasCodes = (dtype: DType): boolean => isFloating(dtype) && dtype !== 'f64';

/**
 * A message with `numel` values, a multiple of BLOCK: first 32-bit words of codes, then one f32
 * scale per block. The scale is the block's largest magnitude divided by (2^bits - 1) / 2. A code
 * is the value divided by the scale, rounded to nearest.
 */
export class BlockCodes {
  constructor(
    private readonly bits: 8 | 4,
    /** Values per message. */
    private readonly numel: number,
  ) {}

  /** 32-bit words per message. */
  get words(): number {
    return this.codeWords + this.numel / BLOCK;
  }

  private get codeWords(): number {
    return (this.numel * this.bits) / 32;
  }

  /** Returns uninitialized memory for `count` messages. The caller releases it. */
  allocate(count: number, { device }: Tensor): Tensor {
    return held(() => Tensor.empty([count * this.words], 'i32', device));
  }

  /** Quantizes `values` [numel] to message `index` of `messages`. */
  write(values: View, messages: Tensor, index: number, stream: Stream): void {
    const { bits } = this;
    const shaped = { in: matrix(values, this.numel), ...this.viewsOf(messages, index) };
    kernels.quantizeWeights({ ...shaped, bits, group: BLOCK }, stream);
  }

  /** Dequantizes message `index` to `values` [numel]. */
  read(messages: Tensor, index: number, values: View, stream: Stream): void {
    const { bits } = this;
    const shaped = { ...this.viewsOf(messages, index), out: matrix(values, this.numel) };
    kernels.dequantizeWeights({ ...shaped, zero: null, bits, group: BLOCK }, stream);
  }

  /**
   * Returns views of the codes and of the scales of a message. An i32 tensor holds both: each
   * element has 4 bytes.
   */
  private viewsOf(messages: Tensor, index: number): { packed: View; scale: View } {
    const { codeWords, numel, words } = this;
    const packed = matrix(messages, codeWords, index * words);
    const scales = matrix(messages, numel / BLOCK, index * words + codeWords);
    return { packed, scale: { ...scales, dtype: 'f32' } };
  }
}

/** Returns `count` consecutive elements from element `first` on, as a view [1, count]. */
function matrix({ buffer, dtype, offset }: View, count: number, first = 0): View {
  return { buffer, dtype, offset: offset + first, shape: [1, count], strides: [count, 1] };
}

/**
 * Reduces gradients by an all-to-all of 4-bit codes. The owner of each shard sums the decoded
 * values in f32.
 */
export class QuantizedWire implements Wire {
  constructor(
    private readonly inner: Wire,
    private readonly group: Collectives,
  ) {}

  allReduce(full: Tensor, at: CollectiveStart): Work {
    return this.inner.allReduce(full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: CollectiveStart): Work {
    const { group } = this;
    if (!hasCodes(full.dtype)) return this.inner.reduceScatter(output, full, at);
    const { numel } = output;
    const codes = new BlockCodes(REDUCE_BITS, numel);
    const sentCodes = codes.allocate(group.size, full);
    for (let rank = 0; rank < group.size; ++rank) {
      codes.write(matrix(full, numel, rank * numel), sentCodes, rank, at.stream);
    }
    const receivedCodes = codes.allocate(group.size, full);
    const work = group.allToAll(receivedCodes, sentCodes, at);
    return {
      wait: (stream) => {
        work.wait(stream);
        releaseOn(stream, sentCodes);
        const sum = held(() => Tensor.empty([numel], 'f32', output.device));
        const decoded = held(() => Tensor.emptyLike(sum));
        codes.read(receivedCodes, 0, sum, stream);
        for (let rank = 1; rank < group.size; ++rank) {
          codes.read(receivedCodes, rank, decoded, stream);
          kernels.binary({ a: sum, b: decoded, out: sum, op: 'add', accumulate: false }, stream);
        }
        kernels.copy({ in: sum, out: output }, stream);
        for (const tensor of [receivedCodes, sum, decoded]) releaseOn(stream, tensor);
      },
    };
  }
}

/**
 * Reduces over all replicas of MiCS (mics_shard_size): first over the ranks of a shard group, then
 * over the ranks with the same shard. Source: Zhang et al. 2022.
 */
export class ReplicatedWire implements Wire {
  constructor(
    /** The wire of the shard group. */
    private readonly inner: Wire,
    /** Ranks with the same shard. */
    private readonly replicas: Collectives,
  ) {}

  allReduce(full: Tensor, at: CollectiveStart): Work {
    return this.addReplicas(this.inner.allReduce(full, at), full, at);
  }

  reduceScatter(output: Tensor, full: Tensor, at: CollectiveStart): Work {
    return this.addReplicas(this.inner.reduceScatter(output, full, at), output, at);
  }

  private addReplicas(inGroup: Work, sums: Tensor, at: CollectiveStart): Work {
    return {
      wait: (stream) => {
        inGroup.wait(stream);
        this.replicas.allReduce(sums, { ...at, stream }).wait(stream);
      },
    };
  }
}
