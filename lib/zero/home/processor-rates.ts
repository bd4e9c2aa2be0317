// How fast host threads and the device can update state in host memory, each beside the other.
import type { Device } from '../../runtime/device.js';
import { type DType, dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, Stream } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';
import { copyAll } from '../flat.js';
import { pinned, pinnedFilled } from './pinned.js';

/**
 * Rates of a rank's two processors while both are at work, and while its neighbours measure theirs.
 */
export interface ProcessorRates {
  /** Parameters a second that host threads update by Adam. */
  host: number;
  /** Bytes a second that state goes to the device, while as much comes back. */
  link: number;
}

/** Of a pass: long enough that its start does not count. */
const ELEMENTS = 2 ** 24;
/**
 * Passes take turns in so many places: 1.8 GB in all, where a server's last cache has up to half a
 * GiB. What a cache holds comes and goes a third faster than a step's state ever does.
 */
const PLACES = 4;
/** About a tenth of a second on a machine with a large GPU. */
const PASSES = 20;

/** What is measured, and how long. */
export interface Measured {
  elements: number;
  passes: number;
  /** In what Adam keeps its moments: those in bf16 are fewer bytes, and more work. */
  moments: 'f32' | 'bf16';
}

/** Bytes of a parameter that cross PCIe. */
interface Crossing {
  /** Its state, where the device updates it. */
  state: number;
  /** Its gradient or its weight, where threads do. */
  element: number;
  /** Its weight on the way to the forward, where it lives in host memory, whoever updates it. */
  gathered: number;
}

/**
 * Of the time that threads update, the part in which state can stream: it comes after the step
 * decision or its unit's gradient, and forward waits for the last of it, which threads need not.
 */
const STREAMING = 0.75;

/**
 * The share of the device with which both are done at the same time: what it updates crosses PCIe
 * with all its state, of the rest only gradients and weights do.
 */
export function balancedShare(
  { host, link }: ProcessorRates,
  { state, element, gathered }: Crossing,
): number {
  // Bytes that cross PCIe each way while the host updates one parameter.
  const meanwhile = (STREAMING * link) / host;
  const share = (meanwhile - element - gathered) / (state - element + meanwhile);
  return Math.max(0, Math.min(1, share));
}

/** Host memory that passes of the threads, and tiles on their way, use in turn. */
interface Place {
  /** Master and moments, which threads update. */
  readonly state: readonly Tensor[];
  /** bf16: of the step that is committed, and of the next one. */
  readonly gradients: readonly Tensor[];
  /** State that goes to the device, and comes back. */
  readonly passing: readonly Tensor[];
}

/**
 * Blocks for a fraction of a second. By default takes 1.8 GB of host memory meanwhile, and 0.2 GB
 * of the device.
 */
export function measureRates(
  device: Device,
  { elements = ELEMENTS, passes = PASSES, moments = 'f32' }: Partial<Measured> = {},
): ProcessorRates {
  const place = (): Place => {
    const of = (dtype: DType): Tensor => pinned(device, [elements], dtype);
    return {
      state: [of('f32'), of(moments), of(moments)],
      gradients: [of('bf16'), of('bf16')],
      passing: [of('f32'), of('f32'), of('f32')],
    };
  };
  const places = Array.from({ length: PLACES }, place);
  const at = (turn: number): Place => places[turn % PLACES] as Place;
  const control = pinnedFilled(device, [4], 'f32', 1);
  const window = at(0).passing.map(() => held(() => Tensor.empty([elements], 'f32', device)));
  device.compute.synchronize();
  const [host, ...ways] = timesOf(device, passes, [
    (stream, turn) => update(at(turn), control, stream),
    (stream, turn) => copyEach(window, at(turn).passing, stream),
    // What comes back goes elsewhere than where the next one comes from, which a cache would have.
    (stream, turn) => copyEach(at(turn + PLACES / 2).passing, window, stream),
  ]);
  const memory = places.flatMap(({ state, gradients, passing }) => [state, gradients, passing]);
  for (const tensor of [...memory.flat(), control, ...window]) tensor.release();
  const together = Math.min(...[host, ...ways].map((times) => times?.at(-1) as number));
  const rate = (times: readonly number[] = []): number => {
    const done = times.filter((time) => time <= together);
    // Of a few short passes, one may take longer than all of another's.
    const counted = done.length > 0 ? done : times;
    return counted.length / (counted.at(-1) as number);
  };
  const bytes = window.length * elements * dtypeSize('f32');
  return { host: elements * rate(host), link: bytes * Math.min(...ways.map(rate)) };
}

/**
 * Seconds from the start of all `works`, each on a stream of its own, to the end of each of their
 * passes.
 */
function timesOf(
  device: Device,
  passes: number,
  works: readonly ((stream: Stream, turn: number) => void)[],
): number[][] {
  const runs = works.map((work) => ({ work, stream: Stream.create(device) }));
  const synchronize = (): void => {
    for (const { stream } of runs) stream.synchronize();
  };
  // What is done for the first time takes longer.
  for (const { work, stream } of runs) {
    for (let turn = 0; turn < PLACES; ++turn) work(stream, turn);
  }
  synchronize();
  const start = new Event(device, true).record(device.compute);
  const marks = Array.from({ length: passes }, (_, turn) =>
    runs.map(({ work, stream }) => {
      work(stream, turn);
      return new Event(device, true).record(stream);
    }),
  );
  synchronize();
  const times = runs.map((_, i) => marks.map((row) => (row[i] as Event).since(start) / 1000));
  for (const event of [start, ...marks.flat()]) event.dispose();
  for (const { stream } of runs) stream.dispose();
  return times;
}

function copyEach(to: readonly Tensor[], from: readonly Tensor[], stream: Stream): void {
  to.forEach((one, i) => void copyAll(one, from[i] as Tensor, stream));
}

/** The pass that takes most bytes: a step is committed and the next one tried out. */
function update({ state, gradients }: Place, control: Tensor, stream: Stream): void {
  const [master, m, v] = state;
  const [previous, next] = gradients;
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
