// StepMetrics: sums of a method's metrics over micro-batches. They stay on the device until a log
// event.
import type { ProcessGroup } from '../comm/index.js';
import { NumberReadback } from '../runtime/number-readback.js';
import { required } from '../runtime/required.js';
import { concat, maximum, noGrad, scope, Tensor } from '../tensor/index.js';
import type { MetricSums } from './evaluation-options.js';

/** A sum and a count: scalars f32 on the device, or numbers. */
export interface DeviceSum {
  /** The sum of the values. With `extreme`: the largest or smallest value. */
  readonly sum: Tensor | number;
  /** Number of values. */
  readonly count: Tensor | number;
  /** Set for a metric that is the largest or the smallest value over micro-batches and ranks. */
  readonly extreme?: 'max' | 'min';
}

/** Returns a metric that is an extreme. `value`: a scalar on the device. */
export const extremeOf = (value: Tensor, extreme: 'max' | 'min'): DeviceSum => ({
  sum: value,
  count: 1,
  extreme,
});

/** Sums of a micro-batch, by the names of metrics. */
export type DeviceSums = Readonly<Record<string, DeviceSum>>;

/** Returns the mean of `values` [n], as a sum and a count. */
export const meanOf = (values: Tensor): DeviceSum => ({ sum: values.sum(), count: values.numel });

const same = <Value>(value: Value): Value => value;

const numberOf = (value: Tensor | number): number =>
  value instanceof Tensor ? value.item() : value;

/**
 * Reads sums from the device for an evaluation. Extremes are left out, because evaluations add
 * sums.
 */
export function readSums(sums: DeviceSums): MetricSums {
  const means = Object.entries(sums).filter(([, { extreme }]) => !extreme);
  const read = means.map(([name, { sum, count }]) => [
    name,
    { sum: numberOf(sum), count: numberOf(count) },
  ]);
  return Object.fromEntries(read) as MetricSums;
}

/**
 * Sums over micro-batches since the last fetch(). fetch() adds the sums of all ranks of `group`. On
 * every rank, an objective must give the same names in the same order for each micro-batch.
 */
export class StepMetrics {
  /** Names of the metrics. The names of extremes come last. */
  private names: readonly string[] = [];
  /** The kind of each extreme. */
  private kinds: readonly ('max' | 'min')[] = [];
  /** The largest values of extremes on the device, [E] f32. Smallest values are stored negated. */
  private extremes: Tensor | null = null;
  /** Indices of the sums and counts that are on the device. */
  private places: readonly number[] = [];
  /** The sums and counts on the device, [K] f32, or null. */
  private onDevice: Tensor | null = null;
  /** The sums and counts of all metrics; 0 for values on the device. */
  private onHost = new Float64Array(0);
  private coming: NumberReadback | null = null;

  /** `derived` returns the means with additional metrics that are computed from them. */
  constructor(
    private readonly group: ProcessGroup,
    private readonly derived: (means: Record<string, number>) => Record<string, number> = same,
  ) {}

  /** Adds the sums of a micro-batch. Does not wait for the device. */
  add(sums: DeviceSums): void {
    const isFirst = this.names.length === 0;
    if (isFirst) this.nameAll(sums);
    this.addExtremes(sums);
    const values = this.summed.flatMap((name) => {
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

  private nameAll(sums: DeviceSums): void {
    const all = Object.keys(sums);
    const kindOf = (name: string) => sums[name]?.extreme;
    const last = all.filter((name) => kindOf(name) !== undefined);
    this.names = [...all.filter((name) => kindOf(name) === undefined), ...last];
    this.kinds = last.map((name) => required(kindOf(name)));
  }

  /** Names of the metrics that are means. */
  private get summed(): readonly string[] {
    return this.names.slice(0, this.names.length - this.kinds.length);
  }

  private addExtremes(sums: DeviceSums): void {
    const last = this.names.slice(this.names.length - this.kinds.length);
    if (last.length === 0) return;
    const before = this.extremes;
    this.extremes = noGrad(() =>
      scope(() => {
        const parts = last.map((name, i) => {
          const value = required(sums[name]).sum as Tensor;
          const ownTensor = value.detach().to('f32').reshape([1]);
          return this.kinds[i] === 'min' ? ownTensor.neg() : ownTensor;
        });
        const all = concat(parts, 0);
        return before ? maximum(before, all) : all;
      }),
    ).keep();
    before?.dispose();
  }

  /**
   * Enqueues the sum over all ranks and its copy to the host, and starts new sums. All ranks must
   * call it.
   */
  fetch(): void {
    if (this.names.length === 0) return;
    const count = 2 * this.summed.length + this.kinds.length;
    this.coming ??= new NumberReadback(this.group.device, count);
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
        const sums = concat(parts, 0);
        const purpose = 'metrics of a method';
        const isShared = this.group.size > 1;
        if (isShared) this.group.allReduce(sums, { purpose }).wait();
        const extremes = this.kinds.length > 0 ? this.fetchedExtremes() : null;
        if (extremes && isShared) this.group.allReduce(extremes, { op: 'max', purpose }).wait();
        coming.fetch(sums, ...(extremes ? [extremes] : []));
      }),
    );
    this.reset();
  }

  /** Returns a copy of the extremes; -Infinity if this rank had no micro-batch. */
  private fetchedExtremes(): Tensor {
    if (this.extremes) return this.extremes.clone();
    const none = new Float32Array(this.kinds.length).fill(Number.NEGATIVE_INFINITY);
    return Tensor.from(none, { device: this.group.device });
  }

  /**
   * Returns the metrics of the last fetch(), by name. Metrics without a value are left out. Returns
   * {} if there was no fetch() since the last read(). Waits for the device.
   */
  read(): Readonly<Record<string, number>> {
    const values = this.coming?.take();
    if (!values) return {};
    const count = 2 * this.summed.length;
    const rest = Array.from({ length: count }, (_, i) => i).filter((i) => !this.places.includes(i));
    const sums = new Float32Array(count);
    [...this.places, ...rest].forEach((place, i) => {
      sums[place] = values[i] as number;
    });
    const means = this.summed.flatMap((name, i) => {
      const [sum, number] = [sums[2 * i] as number, sums[2 * i + 1] as number];
      return number === 0 ? [] : [[name, sum / number]];
    });
    const extremes = this.kinds.flatMap((kind, i) => {
      const value = values[count + i] as number;
      if (value === Number.NEGATIVE_INFINITY) return [];
      return [[this.names[this.summed.length + i], kind === 'min' ? 0 - value : value]];
    });
    const all = Object.fromEntries([...means, ...extremes]) as Record<string, number>;
    return this.derived(all);
  }

  /** Drops the sums since the last fetch(). */
  reset(): void {
    this.onDevice?.dispose();
    this.onDevice = null;
    this.extremes?.dispose();
    this.extremes = null;
    this.onHost.fill(0);
  }

  dispose(): void {
    this.onDevice?.dispose();
    this.extremes?.dispose();
    this.coming?.dispose();
  }
}
