// Slopes of attention with linear biases. Source: Press et al. 2022 (ALiBi).
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { Tensor, within } from '../../tensor/index.js';

/**
 * The slope of each head: powers of 2^(-8 / P), for P the largest power of two up to `heads`; other
 * heads have the odd powers of 2^(-4 / P).
 */
export function alibiSlopes(heads: number): number[] {
  const power = 2 ** Math.floor(Math.log2(heads));
  return Array.from({ length: heads }, (_, i) =>
    i < power ? 2 ** ((-8 * (i + 1)) / power) : 2 ** ((-4 * (2 * (i - power) + 1)) / power),
  );
}

/** Slopes of all heads, cached on the devices that use them. They are not part of checkpoints. */
export class AlibiSlopes {
  private readonly made = new Map<string, Tensor>();

  constructor(private readonly heads: number) {}

  /** Returns the slopes [heads] on the device of `like`: f64 for f64, else f32. */
  slopesOn({ device, dtype: values }: { device: Device; dtype: DType }): Tensor {
    const dtype = values === 'f64' ? 'f64' : 'f32';
    const key = `${device.name} ${dtype}`;
    if (!this.made.has(key)) {
      const list = alibiSlopes(this.heads);
      this.made.set(
        key,
        within(null, () => Tensor.from(list, { dtype, device })),
      );
    }
    return required(this.made.get(key));
  }

  /** Frees the tensors; they are rebuilt when needed. */
  release(): void {
    for (const tensor of this.made.values()) tensor.dispose();
    this.made.clear();
  }
}
