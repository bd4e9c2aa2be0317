// Stores the hidden states that an EAGLE-3 head reads, by slot of the paged cache.
import type { Places } from '../../models/index.js';
import type { Linear } from '../../nn/linear.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { concat, held, indexSelect, Tensor } from '../../tensor/index.js';

/** Hooks around the model's forward in a runner. */
export interface RunnerHooks {
  /** Runs a forward at `places`. `slots` are those of its tokens in the cache, [N] i32. */
  around(slots: Tensor, places: Places, forward: (places: Places) => Tensor): Tensor;
}

/** Sizes of a pool. */
interface PoolSizes {
  /** Number of slots: blocks times tokens per block. */
  readonly slots: number;
  /** Length of a feature; even. */
  readonly width: number;
  readonly dtype: DType;
  readonly device: Device;
}

/**
 * Features by cache slot: row i [width] belongs to the token in slot i. Sequences that share blocks
 * of the prefix cache share features too.
 */
export class FeaturePool {
  private rows: Tensor | null = null;

  constructor(private readonly sizes: PoolSizes) {
    this.wake();
  }

  /** Returns the features of `slots` [N] i32 as [N, width]. */
  read(slots: Tensor): Tensor {
    const { slots: count, width } = this.sizes;
    return indexSelect(required(this.rows).reshape([count, width]), 0, slots);
  }

  /** Stores features [N, width] at `slots` [N] i32; negative slots are skipped. */
  write(features: Tensor, slots: Tensor): void {
    const half = this.sizes.width / 2;
    // The op stores a key and a value; here these are the halves of a feature.
    const part = (i: number): Tensor => features.narrow(1, i * half, half).unsqueeze(1);
    kernels.pagedStore({ k: part(0), v: part(1), slots, pool: required(this.rows) });
  }

  /** Allocates the rows if the pool sleeps. */
  wake(): void {
    const { slots, width, dtype, device } = this.sizes;
    this.rows ??= held(() => Tensor.empty([slots, 2, 1, 1, width / 2], dtype, device));
  }

  sleep(): void {
    this.rows?.dispose();
    this.rows = null;
  }
}

/** Stores the features of each forward: hidden states of three layers, projected by `fc`. */
export class FeatureWriter implements RunnerHooks {
  constructor(
    private readonly pool: FeaturePool,
    private readonly fc: Linear,
    /** The layers to read, ascending. */
    private readonly layers: readonly number[],
  ) {}

  around(slots: Tensor, places: Places, forward: (places: Places) => Tensor): Tensor {
    const hidden: Tensor[] = [];
    const take = (stream: Tensor): void => {
      hidden.push(stream.reshape([-1, stream.size(2)]).keep());
    };
    const result = forward({ ...places, taps: { layers: this.layers, take } });
    this.pool.write(this.fc.call(concat(hidden, 1)), slots);
    for (const tensor of hidden) tensor.dispose();
    return result;
  }
}
