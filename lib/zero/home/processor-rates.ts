// How fast host threads and the device can update state in host memory, each beside the other.
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, Stream } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';
import { copyAll } from '../flat.js';
import { pinned, pinnedFilled } from './pinned.js';

/** Rates of a rank's two processors while both are at work, and while its neighbours measure theirs. */
export interface ProcessorRates {
  /** Parameters a second that host threads update by Adam. */
  host: number;
  /** Bytes a second that state goes to the device, while as much comes back. */
  link: number;
}

/** Large enough to be no cache's, small enough to be there soon. */
const ELEMENTS = 2 ** 24;
/** About a tenth of a second on a machine with a large GPU. */
const PASSES = 20;

/** What is measured, and how long. */
export interface Measured {
  elements: number;
  passes: number;
  /** In what Adam keeps its moments: those in bf16 are fewer bytes, and more work. */
  moments: 'f32' | 'bf16';
}

/** Bytes of a parameter's state, and of its gradient or its weight. */
interface Crossing {
  state: number;
  element: number;
}

/**
 * The share of the device with which both are done at the same time: what it updates crosses PCIe with all its state, of
 * the rest only gradients and weights do.
 */
export function balancedShare(
  { host, link }: ProcessorRates,
  { state, element }: Crossing,
): number {
  // Bytes that cross PCIe each way while the host updates one parameter.
  const meanwhile = link / host;
  const share = (meanwhile - element) / (state - element + meanwhile);
  return Math.max(0, Math.min(1, share));
}

/** Blocks for a fraction of a second. By default takes 0.5 GB of host memory meanwhile, and 0.2 GB of the device. */
export function measureRates(
  device: Device,
  { elements = ELEMENTS, passes = PASSES, moments = 'f32' }: Partial<Measured> = {},
): ProcessorRates {
  const own = (['f32', moments, moments] as const).map((dtype) =>
    pinned(device, [elements], dtype),
  );
  const passing = own.map(() => pinned(device, [elements], 'f32'));
  const gradients = [0, 1].map(() => pinned(device, [elements], 'bf16'));
  const control = pinnedFilled(device, [4], 'f32', 1);
  const windows = passing.map(() => held(() => Tensor.empty([elements], 'f32', device)));
  const copied = windows.map((window, i) => [window, passing[i] as Tensor] as const);
  device.compute.synchronize();
  const [host, ...ways] = timesOf(device, passes, [
    (stream) => update(own, gradients, control, stream),
    (stream) => copied.map(([window, kept]) => copyAll(window, kept, stream)),
    (stream) => copied.map(([window, kept]) => copyAll(kept, window, stream)),
  ]);
  for (const tensor of [...own, ...passing, ...gradients, control, ...windows]) tensor.release();
  const together = Math.min(...[host, ...ways].map((times) => times?.at(-1) as number));
  const rate = (times: readonly number[] = []): number => {
    const done = times.filter((time) => time <= together);
    // Of a few short passes, one may take longer than all of another's.
    const counted = done.length > 0 ? done : times;
    return counted.length / (counted.at(-1) as number);
  };
  const bytes = copied.reduce((sum, [{ bytes: each }]) => sum + each, 0);
  return { host: elements * rate(host), link: bytes * Math.min(...ways.map(rate)) };
}

/** Seconds from the start of all `works`, each on a stream of its own, to the end of each of their passes. */
function timesOf(
  device: Device,
  passes: number,
  works: readonly ((stream: Stream) => unknown)[],
): number[][] {
  const runs = works.map((work) => ({ work, stream: Stream.create(device) }));
  const synchronize = (): void => {
    for (const { stream } of runs) stream.synchronize();
  };
  // What is done for the first time takes longer.
  for (const { work, stream } of runs) work(stream);
  synchronize();
  const start = new Event(device, true).record(device.compute);
  const marks = Array.from({ length: passes }, () =>
    runs.map(({ work, stream }) => {
      work(stream);
      return new Event(device, true).record(stream);
    }),
  );
  synchronize();
  const times = runs.map((_, i) => marks.map((row) => (row[i] as Event).since(start) / 1000));
  for (const event of [start, ...marks.flat()]) event.dispose();
  for (const { stream } of runs) stream.dispose();
  return times;
}

/** The pass that takes most bytes: a step is committed and the next one tried out. */
function update(
  [master, m, v]: readonly Tensor[],
  [previous, next]: readonly Tensor[],
  control: Tensor,
  stream: Stream,
): void {
  const rule = {
    ...{ lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0 },
    ...{ correction1: 1, correction2: 1, decoupled: true },
  };
  kernels.adamWSpeculateOnHost(
    {
      ...{ master: master as Tensor, m: m as Tensor, v: v as Tensor },
      ...{ previous: previous as Tensor, previousControl: control, previousRule: rule },
      ...{ next: next as Tensor, nextControl: control, nextRule: rule },
      weight: previous as Tensor,
    },
    stream,
  );
}
