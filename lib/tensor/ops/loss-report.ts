// Counts of a loss: targets that count, and targets with the largest logit; sums of their logits.

import { DsError } from '../../errors.js';
import { cpu, type Device, device as findDevice } from '../../runtime/device.js';
import { valueError } from '../../runtime/input-errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Tensor } from '../tensor.js';
import { viewOf } from './shapes.js';

/** What LossReport.read() returns. */
export interface LossCounts {
  /** Targets that counted. */
  counted: number;
  /** Counted targets with the first of the largest logits. */
  correct: number;
  /** correct / counted; NaN without counted targets. */
  accuracy: number;
}

/**
 * Accumulates counts on the device when it is a loss's `report`, without another pass over the
 * logits and without waiting: over any number of calls, until reset(). Recomputation in a
 * checkpoint does not count again.
 */
export class LossReport {
  /**
   * Targets that counted, [1] i64 on the loss's device. The caller may read, copy or reduce it over
   * ranks.
   */
  readonly counted: Tensor;
  /** Targets with the first of the largest logits, [1] i64. */
  readonly correct: Tensor;

  /** Default device: the CPU. Owns two numbers there until dispose(), independent of scopes. */
  constructor(device: Device | string = cpu()) {
    const found = findDevice(device);
    this.counted = Tensor.empty([1], 'i64', found).keep();
    this.correct = Tensor.empty([1], 'i64', found).keep();
    this.reset();
  }

  /** Counts from 0 again. */
  reset(): void {
    for (const out of [this.counted, this.correct]) kernels.fill({ out, value: 0 });
  }

  /** Returns the counts so far; waits for the device. */
  read(): LossCounts {
    const [counted, correct] = [this.counted.item(), this.correct.item()];
    return { counted, correct, accuracy: correct / counted };
  }

  /** Frees both tensors. */
  dispose(): void {
    this.counted.dispose();
    this.correct.dispose();
  }

  /** @internal Adds `counted`, [1] of any dtype, and the sum of `correct`, [rows] i64. */
  add(counted: Tensor, correct: Tensor): void {
    const whole = Tensor.emptyLike(this.counted);
    kernels.copy({ in: counted, out: whole });
    const out = this.counted;
    kernels.binary({ a: out, b: whole, out, op: 'add', accumulate: false });
    const total = viewOf(this.correct, [1]);
    kernels.reduce({ in: correct, out: total, op: 'sum', accumulate: true });
    whole.dispose();
  }
}

/** Sums over the logits of rows, [rows] in the dtype of losses. */
export interface RowSums {
  /** The sum of p x over the logits x of a row; 0 for ignored rows. */
  readonly expected: Tensor;
  /** The sum of the logits; 0 for ignored rows. */
  readonly total: Tensor;
}

/**
 * A LossReport with the entropies and the means of the logits of the rows that count. A loss reads
 * its logits once more for them.
 */
export class TokenReport extends LossReport {
  /** The sum of the entropies, [1] f32. */
  readonly entropy: Tensor;
  /** The sum of the means of the logits, [1] f32. */
  readonly logits: Tensor;

  constructor(device: Device | string = cpu()) {
    super(device);
    const { device: found } = this.counted;
    this.entropy = Tensor.empty([1], 'f32', found).keep();
    this.logits = Tensor.empty([1], 'f32', found).keep();
    for (const out of [this.entropy, this.logits]) kernels.fill({ out, value: 0 });
  }

  override dispose(): void {
    super.dispose();
    this.entropy.dispose();
    this.logits.dispose();
  }

  /** @internal Adds rows with the log-sum-exps `lse` over `classes` logits. */
  addSums(lse: Tensor, { expected, total }: RowSums, classes: number): void {
    const entropies = Tensor.emptyLike(lse);
    kernels.binary({ a: lse, b: expected, out: entropies, op: 'sub', accumulate: false });
    const sum = Tensor.empty([1], lse.dtype, lse.device);
    const narrow = Tensor.empty([1], 'f32', lse.device);
    for (const [rows, into, scale] of [
      [entropies, this.entropy, 1],
      [total, this.logits, 1 / classes],
    ] as const) {
      kernels.reduce({ in: rows, out: sum, op: 'sum', accumulate: false });
      kernels.copy({ in: sum, out: narrow });
      kernels.scale({ in: narrow, out: into, scale, shift: 0, accumulate: true });
    }
    for (const tensor of [entropies, sum, narrow]) tensor.dispose();
  }
}

/**
 * Returns `report`. Throws DS_ARGUMENT unless it is a LossReport, DS_DEVICE unless it is on
 * `device`.
 */
export function requireReport(op: string, report: unknown, device: Device): LossReport {
  if (!(report instanceof LossReport)) {
    throw valueError(
      `${op} report`,
      'a LossReport',
      report,
      "Create one on the device of the loss: new LossReport('cuda').",
    );
  }
  if (report.counted.device === device) return report;
  throw new DsError({
    code: 'DS_DEVICE',
    op: `${op} report`,
    expected: `a report on the loss's device, ${device.name}`,
    got: `a report on ${report.counted.device.name}`,
    hint: `Create it there: new LossReport('${device.name}').`,
  });
}
