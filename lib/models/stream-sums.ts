// Sums of the residual stream at the borders of checkpointed segments. A forward without gradients
// leaves each sum to the kernel of the next block's first norm, so that no kernel only adds.

import * as kernels from '../runtime/kernels.generated.js';
import { isGradEnabled, Tensor } from '../tensor/index.js';
import { writeSumInto } from '../tensor/ops/norm.js';
import { areInputsOnDevice } from '../tensor/recompute/policy.js';

/** A sum whose memory is not written yet. Holds references to the terms. */
interface WaitingSum {
  readonly sum: Tensor;
  readonly terms: readonly [Tensor, Tensor];
}

/** The sums of one forward; at most one waits at a time. */
export class StreamSums {
  private waiting: WaitingSum | null = null;

  /**
   * Returns branch + residual. If `mayWait`, and if no gradients are recorded, enter() of the next
   * block writes the values; until then only their memory may be used.
   */
  add(branch: Tensor, residual: Tensor, mayWait: boolean): Tensor {
    if (!mayWait || isGradEnabled() || !areInputsOnDevice()) return branch.add(residual);
    this.settle();
    const sum = Tensor.emptyLike(branch);
    this.waiting = { sum, terms: [branch.retain(), residual.retain()] };
    return sum;
  }

  /**
   * Runs a block on the stream `input`, which is branch + residual, or branch without a residual.
   */
  enter<T>(input: Tensor, block: (branch: Tensor, residual: Tensor | null) => T): T {
    const { waiting } = this;
    if (!waiting || waiting.sum !== input || isGradEnabled()) {
      this.settle();
      return block(input, null);
    }
    const [branch, residual] = waiting.terms;
    const drop = (): void => this.drop();
    const result = writeSumInto(input, drop, () => block(branch, residual));
    this.settle();
    return result;
  }

  /** Writes the sum that still waits. */
  settle(): void {
    const { waiting } = this;
    if (!waiting) return;
    const { sum: out, terms } = waiting;
    const [a, b] = terms;
    kernels.binary({ a, b, out, op: 'add', accumulate: false });
    this.drop();
  }

  /** Releases the terms of the sum that waits, without writing it. */
  drop(): void {
    for (const term of this.waiting?.terms ?? []) term.release();
    this.waiting = null;
  }
}
