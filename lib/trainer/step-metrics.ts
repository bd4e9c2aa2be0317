// Metrics of training steps: sums of micro-batches, kept on the device until a log.
import type { ProcessGroup } from '../comm/index.js';
import { LateNumbers } from '../runtime/late-numbers.js';
import { required } from '../runtime/required.js';
import { concat, noGrad, scope, Tensor } from '../tensor/index.js';
import type { MetricSums } from './evaluation-options.js';

/** A sum and its count: scalars f32 on the device, or numbers. */
export interface DeviceSum {
  /** The sum of the values. */
  readonly sum: Tensor | number;
  /** The number of values. */
  readonly count: Tensor | number;
}

/** Sums of a micro-batch by the names of metrics. */
export type DeviceSums = Readonly<Record<string, DeviceSum>>;

/** The mean of `values` [n] as a sum and its count. */
export const meanOf = (values: Tensor): DeviceSum => ({ sum: values.sum(), count: values.numel });

const same = <Value>(value: Value): Value => value;

const numberOf = (value: Tensor | number): number =>
  value instanceof Tensor ? value.item() : value;

/** Reads sums from the device, for evaluations. */
export function readSums(sums: DeviceSums): MetricSums {
  const read = Object.entries(sums).map(([name, { sum, count }]) => [
    name,
    { sum: numberOf(sum), count: numberOf(count) },
  ]);
  return Object.fromEntries(read) as MetricSums;
}

/**
 * Sums over micro-batches and the ranks of `group` since the last fetch(). An objective gives the
 * same names in the same order in each micro-batch, on every rank.
 */
export class StepMetrics {
  private names: readonly string[] = [];
  /** Places of the device's sums among all sums and counts. */
  private places: readonly number[] = [];
  /** Sums on the device, [K] f32; null without any. */
  private onDevice: Tensor | null = null;
  /** Sums and counts by name; 0 for values on the device. */
  private onHost = new Float64Array(0);
  private coming: LateNumbers | null = null;

  /** `derived` adds metrics that follow from the means of others. */
  constructor(
    private readonly group: ProcessGroup,
    private readonly derived: (means: Record<string, number>) => Record<string, number> = same,
  ) {}

  /** Adds the sums of a micro-batch, without waiting for the device. */
  add(sums: DeviceSums): void {
    const isFirst = this.names.length === 0;
    if (isFirst) this.names = Object.keys(sums);
    const values = this.names.flatMap((name) => {
      const { sum, count } = required(sums[name]);
      return [sum, count];
    });
    if (isFirst) {
      this.onHost = new Float64Array(values.length);
      this.places = values.flatMap((value, i) => (value instanceof Tensor ? [i] : []));
    }
    values.forEach((value, i) => {
      if (typeof value === 'number') this.onHost[i] = (this.onHost[i] as number) + value;
    });
    const parts = values.filter((value) => value instanceof Tensor);
    if (parts.length === 0) return;
    const before = this.onDevice;
    this.onDevice = noGrad(() =>
      scope(() => {
        const all = concat(
          parts.map((part) => part.detach().to('f32').reshape([1])),
          0,
        );
        return before ? before.add(all) : all;
      }),
    ).keep();
    before?.dispose();
  }

  /** Enqueues the sums over all ranks, and begins new ones. Every rank calls. */
  fetch(): void {
    const count = 2 * this.names.length;
    if (count === 0) return;
    this.coming ??= new LateNumbers(this.group.device, count);
    const { coming, onDevice } = this;
    noGrad(() =>
      scope(() => {
        const host = this.onHost.filter((_, i) => !this.places.includes(i));
        const parts = [
          ...(onDevice ? [onDevice] : []),
          ...(host.length > 0
            ? [Tensor.from(Float32Array.from(host), { device: this.group.device })]
            : []),
        ];
        const all = concat(parts, 0);
        if (this.group.size > 1) {
          this.group.allReduce(all, { purpose: 'metrics of a method' }).wait();
        }
        coming.fetch(all);
      }),
    );
    this.reset();
  }

  /**
   * Returns the means of the last fetch() by name, without metrics that have no value; {} without a
   * new fetch(). Waits for the device.
   */
  read(): Readonly<Record<string, number>> {
    const values = this.coming?.take();
    if (!values) return {};
    const count = 2 * this.names.length;
    const rest = Array.from({ length: count }, (_, i) => i).filter((i) => !this.places.includes(i));
    const sums = new Float32Array(count);
    [...this.places, ...rest].forEach((place, i) => {
      sums[place] = values[i] as number;
    });
    const means = this.names.flatMap((name, i) => {
      const [sum, number] = [sums[2 * i] as number, sums[2 * i + 1] as number];
      return number === 0 ? [] : [[name, sum / number]];
    });
    return this.derived(Object.fromEntries(means) as Record<string, number>);
  }

  /** Forgets the sums since the last fetch(). */
  reset(): void {
    this.onDevice?.dispose();
    this.onDevice = null;
    this.onHost.fill(0);
  }

  dispose(): void {
    this.onDevice?.dispose();
    this.coming?.dispose();
  }
}
