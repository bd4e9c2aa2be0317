// Measures how fast CPU threads and the GPU update state in host memory while both work.

import type { Device } from '../runtime/device.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import { copyAll } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import { allocateFilled, allocatePinned } from '../zero/state/memory.js';

/**
 * Rates of a rank's two processors, the CPU and the GPU, while both work and other ranks of the
 * host measure too.
 */
export interface ProcessorRates {
  /** Parameters per second that CPU threads update by Adam. */
  host: number;
  /** Bytes per second of state to the device, with equal traffic back. */
  link: number;
}

/**
 * Number of elements per pass. It is so large that the start of a pass takes no noticeable time.
 */
const ELEMENTS = 2 ** 24;
/**
 * Number of working sets that passes use in turn. They have 1.8 GB in total, more than the
 * last-level cache of a server (half a GiB): cached memory is a third faster than the state of a
 * real step.
 */
const WORKING_SETS = 4;
/** Number of passes: they take about a tenth of a second on a host with a large GPU. */
const PASSES = 20;

/** Settings of the measurement. */
export interface RateSettings {
  elements: number;
  passes: number;
  /** The dtype of Adam's moments. bf16 moments have fewer bytes and cost more work. */
  moments: 'f32' | 'bf16';
}

/** Bytes per parameter over PCIe. */
interface Crossing {
  /** Bytes of the state, if the device updates it. */
  state: number;
  /** Bytes of the gradient or weight, if CPU threads update it. */
  element: number;
  /** Bytes of the weight for the forward, if it is stored in host memory. */
  gathered: number;
}

/**
 * Fraction of the threads' update time in which state can be transferred. Transfers start after the
 * step decision or the gradient of their unit, and the forward waits for their end. Threads have
 * neither limit.
 */
const STREAMING = 0.75;

/**
 * Returns the share of the device for which both processors finish at the same time. The device's
 * share moves all its state over PCIe, the rest only gradients and weights.
 */
export function balancedShare(
  { host, link }: ProcessorRates,
  { state, element, gathered }: Crossing,
): number {
  // Bytes over PCIe each way while the host updates one parameter.
  const meanwhile = (STREAMING * link) / host;
  const share = (meanwhile - element - gathered) / (state - element + meanwhile);
  return Math.max(0, Math.min(1, share));
}

/** Host memory of one pass: passes of threads and tile copies use the working sets in turn. */
interface WorkingSet {
  /** Master and moments for threads. */
  readonly state: readonly Tensor[];
  /** bf16 gradients: of the committed step, and of the next step. */
  readonly gradients: readonly Tensor[];
  /** State that is copied to the device and back. */
  readonly passing: readonly Tensor[];
}

/**
 * Returns the measured rates; blocks for a fraction of a second. Default temporary memory: 1.8 GB
 * on the host, 0.2 GB on the device.
 */
export function measureRates(
  device: Device,
  { elements = ELEMENTS, passes = PASSES, moments = 'f32' }: Partial<RateSettings> = {},
): ProcessorRates {
  const allocateWorkingSet = (): WorkingSet => {
    const allocate = (dtype: DType): Tensor => allocatePinned(device, [elements], dtype);
    return {
      state: [allocate('f32'), allocate(moments), allocate(moments)],
      gradients: [allocate('bf16'), allocate('bf16')],
      passing: [allocate('f32'), allocate('f32'), allocate('f32')],
    };
  };
  const workingSets = Array.from({ length: WORKING_SETS }, allocateWorkingSet);
  const workingSetAt = (pass: number): WorkingSet => required(workingSets[pass % WORKING_SETS]);
  const control = allocateFilled(device, [4], 'f32', 1);
  const window = workingSetAt(0).passing.map(() =>
    held(() => Tensor.empty([elements], 'f32', device)),
  );
  device.compute.synchronize();
  const [host, ...copies] = timePasses(device, passes, [
    (stream, pass) => updateOnHost(workingSetAt(pass), control, stream),
    (stream, pass) => copyEach(window, workingSetAt(pass).passing, stream),
    // Copies back use another working set than the next upload, which would otherwise read from a
    // cache.
    (stream, pass) => copyEach(workingSetAt(pass + WORKING_SETS / 2).passing, window, stream),
  ]);
  const memory = workingSets.flatMap(({ state, gradients, passing }) => [
    state,
    gradients,
    passing,
  ]);
  for (const tensor of [...memory.flat(), control, ...window]) tensor.release();
  const firstEnd = Math.min(...[host, ...copies].map((times) => required(times?.at(-1))));
  const rate = (times: readonly number[] = []): number => passRate(times, firstEnd);
  const bytes = window.length * elements * dtypeSize('f32');
  return { host: elements * rate(host), link: bytes * Math.min(...copies.map(rate)) };
}

/**
 * Returns the passes per second of a stream. It counts passes until `firstEnd`, when the first
 * stream ends: later passes have the machine to themselves.
 */
export function passRate(times: readonly number[], firstEnd: number): number {
  const done = times.filter((time) => time <= firstEnd);
  // With few short passes, one may take longer than all passes of another stream.
  const counted = done.length > 0 ? done : times;
  return counted.length / required(counted.at(-1));
}

/**
 * Runs all `works`, each on its own stream. Returns the seconds from the start to the end of each
 * pass.
 */
function timePasses(
  device: Device,
  passes: number,
  works: readonly ((stream: Stream, pass: number) => void)[],
): number[][] {
  const runs = works.map((work) => ({ work, stream: Stream.create(device) }));
  const synchronize = (): void => {
    for (const { stream } of runs) stream.synchronize();
  };
  // First runs are slower.
  for (const { work, stream } of runs) {
    for (let pass = 0; pass < WORKING_SETS; ++pass) work(stream, pass);
  }
  synchronize();
  const start = new Event(device, true).record(device.compute);
  const marks = Array.from({ length: passes }, (_, pass) =>
    runs.map(({ work, stream }) => {
      work(stream, pass);
      return new Event(device, true).record(stream);
    }),
  );
  synchronize();
  const times = runs.map((_, i) => marks.map((row) => required(row[i]).since(start) / 1000));
  for (const event of [start, ...marks.flat()]) event.dispose();
  for (const { stream } of runs) stream.dispose();
  return times;
}

function copyEach(to: readonly Tensor[], from: readonly Tensor[], stream: Stream): void {
  to.forEach((tensor, i) => void copyAll(tensor, required(from[i]), stream));
}

/** Runs the pass with the most bytes: it commits a step and speculates the next. */
function updateOnHost({ state, gradients }: WorkingSet, control: Tensor, stream: Stream): void {
  const [master, m, v] = state;
  const [previous, next] = gradients;
  const rule = {
    lr: 1e-3,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    weightDecay: 0,
    correction1: 1,
    correction2: 1,
    decoupled: true,
  };
  kernels.adamWSpeculateOnHost(
    {
      master: required(master),
      m: required(m),
      v: required(v),
      previous: required(previous),
      previousControl: control,
      previousRule: rule,
      next: required(next),
      nextControl: control,
      nextRule: rule,
      weight: required(previous),
    },
    stream,
  );
}
