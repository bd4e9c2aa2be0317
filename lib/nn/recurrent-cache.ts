// The states of layers with a recurrence, for a batch of sequences of one length.
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { type DType, dtypeSize, statisticOf } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { leading, required } from '../runtime/required.js';
import {
  type DeltaInputs,
  refuseBatchInvariant,
  type StateSpaceInputs,
  Tensor,
} from '../tensor/index.js';
import { KeyValueCache, type RecurrentState, type SequenceCache } from './attention.js';

/** Sizes of the states of a model's layers. */
export interface RecurrentSizes {
  /** Whether a layer has a recurrence; the others have attention. */
  readonly layers: readonly boolean[];
  /** Whether layers with a recurrence have attention too. Default: false. */
  readonly besideAttention?: boolean;
  /** Channels of the short convolution. */
  readonly channels: number;
  /** Weights of each of these channels. */
  readonly taps: number;
  /** Value heads; 0: the layers have a convolution only. */
  readonly heads: number;
  /** Rows of a head's state. */
  readonly keyDim: number;
  /** Columns of a head's state. */
  readonly valueDim: number;
}

/** The states of one layer for `slots` sequences. */
export interface StatePools {
  /** The last inputs of the convolution, [slots, taps - 1, channels]. */
  readonly inputs: Tensor;
  /** The states [slots, heads, keyDim, valueDim] f32 (f64 for f64); null without heads. */
  readonly states: Tensor | null;
}

/** Allocates the pools of one layer. */
export function allocatePools(
  slots: number,
  { taps, channels, heads, keyDim, valueDim }: RecurrentSizes,
  { dtype, device }: { dtype: DType; device: Device },
): StatePools {
  return {
    inputs: Tensor.empty([slots, taps - 1, channels], dtype, device),
    states:
      heads === 0
        ? null
        : Tensor.empty([slots, heads, keyDim, valueDim], statisticOf(dtype), device),
  };
}

/** Returns the bytes of one sequence's states in all layers. */
export function stateBytes(sizes: RecurrentSizes, dtype: DType): number {
  const { layers, taps, channels, heads, keyDim, valueDim } = sizes;
  const each =
    (taps - 1) * channels * dtypeSize(dtype) +
    heads * keyDim * valueDim * dtypeSize(statisticOf(dtype));
  return layers.filter((has) => has).length * each;
}

/**
 * The first tokens of the sequences in packed tokens, their lengths, and their slots; see
 * GatedDeltaStep.
 */
type SequenceLists = Readonly<Record<'starts' | 'lengths' | 'slots', Tensor>>;

/** Returns x [B, T, ..] as packed tokens [B T, ..] with last stride 1. */
const packTokens = (x: Tensor): Tensor => {
  const [B, T, ...rest] = x.shape as [number, number, ...number[]];
  return x.contiguous().reshape([B * T, ...rest]);
};

/** Returns the recurrence of one layer over packed tokens; records nothing on the tape. */
export function createRecurrentState(
  pools: () => StatePools,
  lists: () => SequenceLists,
): RecurrentState {
  return {
    convolve(x, weight, bias) {
      const out = Tensor.empty(x.shape, x.dtype, x.device);
      const packed = { x: packTokens(x), weight, bias, out: packTokens(out) };
      refuseBatchInvariant('a sequence', 'attention', 'a recurrent layer');
      kernels.shortConvStep({ ...packed, pool: pools().inputs, ...lists() });
      return out;
    },
    delta({ q, k, v, decay, beta }: DeltaInputs) {
      const out = Tensor.empty(v.shape, v.dtype, v.device);
      refuseBatchInvariant('a sequence', 'attention', 'a recurrent layer');
      kernels.gatedDeltaStep({
        q: packTokens(q),
        k: packTokens(k),
        v: packTokens(v),
        decay: packTokens(decay),
        beta: packTokens(beta),
        ...lists(),
        out: packTokens(out),
        pool: required(pools().states),
      });
      return out;
    },
    space({ x, b, c, decay, step }: StateSpaceInputs) {
      const out = Tensor.empty(x.shape, x.dtype, x.device);
      refuseBatchInvariant('a sequence', 'attention', 'a recurrent layer');
      kernels.stateSpaceStep({
        c: packTokens(c),
        b: packTokens(b),
        x: packTokens(x),
        decay: packTokens(decay),
        step: packTokens(step),
        ...lists(),
        out: packTokens(out),
        pool: required(pools().states),
      });
      return out;
    },
  };
}

/** Throws DS_INTERNAL: attention never uses the cache of a layer with a recurrence. */
export function refuseAttention(): never {
  const [expected, got] = ['a layer with a recurrence', 'attention'];
  throw new DsError({ code: 'DS_INTERNAL', op: 'RecurrentCache', expected, got });
}

/** The states of a batch of sequences of one length. The scope in which it was made owns it. */
export class RecurrentCache implements SequenceCache {
  length = 0;
  readonly state: RecurrentState;

  constructor(
    batch: number,
    sizes: RecurrentSizes,
    { dtype, device }: { dtype: DType; device: Device },
  ) {
    const pools = allocatePools(batch, sizes, { dtype, device });
    const list = (one: (row: number) => number, count = batch): Tensor =>
      Tensor.from(
        Int32Array.from({ length: count }, (_, row) => one(row)),
        { device },
      );
    const listsOf = (count: number): SequenceLists => ({
      starts: list((row) => row * count, batch + 1),
      lengths: list(() => this.length + count),
      slots: list((row) => row),
    });
    const within = (count: number): RecurrentState =>
      createRecurrentState(
        () => pools,
        () => listsOf(count),
      );
    this.state = {
      convolve: (x, weight, bias) => {
        const [, count] = leading(x.shape, 2);
        const out = within(count).convolve(x, weight, bias);
        // Without a recurrence, the convolution is the last step of a layer.
        if (sizes.heads === 0) this.length += count;
        return out;
      },
      delta: (inputs) => {
        const [, count] = leading(inputs.v.shape, 2);
        const out = within(count).delta(inputs);
        this.length += count;
        return out;
      },
      space: (inputs) => {
        const [, count] = leading(inputs.x.shape, 2);
        const out = within(count).space(inputs);
        this.length += count;
        return out;
      },
    };
  }

  attend(): never {
    return refuseAttention();
  }
}

/** The keys, values and states of a layer with attention beside a recurrence. */
export class HybridCache extends KeyValueCache {
  readonly state: RecurrentState;

  /** `shape`: of keys and values, [B, Hk, capacity, D]. */
  constructor(
    shape: readonly [number, number, number, number],
    sizes: RecurrentSizes,
    like: { dtype: DType; device: Device },
  ) {
    super(shape, like.dtype, like.device);
    this.state = new RecurrentCache(shape[0], sizes, like).state;
  }
}
