// Bytes that a training step needs on the device and in host memory, by part, before anything is
// allocated.
import type { Elements, ModelSizes } from './model-sizes.js';
import { partOf } from './part-of-model.js';
import type { Setup } from './setup.js';

/** Bytes of one rank's device at the step's worst moment, by part. */
export interface DeviceBytes {
  /** Those that stay, and those of stage 3 that are gathered at that moment. */
  weights: number;
  /** Those that wait for the step, and those on their way to other ranks or the host. */
  gradients: number;
  /** Master weights and the optimizer's state. */
  optimizer: number;
  /** What blocks keep for the backward, and what the backward of one adds. */
  activations: number;
  /** Logits and what the head's products need beside them. */
  head: number;
}

/** Bytes of all ranks of one machine in its memory, by part. */
export interface HostBytes {
  /** Master weights and the optimizer's state. */
  optimizer: number;
  /** Gradients and weights on their way, and weights that live there. */
  buffers: number;
  /** What a process takes by itself. */
  processes: number;
}

/** What one step needs. */
export interface Memory {
  /** Of each rank. */
  device: DeviceBytes;
  /** Of each rank. */
  host: HostBytes;
  /** Of each rank: master weights and state on a disk. */
  disk: number;
}

/** The sum of the parts. */
export const total = (parts: DeviceBytes | HostBytes): number =>
  Object.values(parts).reduce((sum: number, bytes: number) => sum + bytes, 0);

/** Node, the addon and the context of a GPU, as measured beside an empty model. */
const PROCESS = 0.5 * 2 ** 30;
/** Defaults of ds_config.json, in elements. */
const REDUCE_BUCKET = 5e8;
const REUSE_DISTANCE = 1e9;
const PREFETCH = 5e7;
/** Logits and rows of a chunk where not all are kept: see linearCrossEntropy(). */
const CHUNK_LOGITS = 2 ** 27;
const CHUNK_ROWS = 2048;
const LARGE_VOCABULARY = 2 ** 16;
const KEPT_LOGITS = 2 ** 30;
/** f32. */
const MASTER = 4;
/** Slots of state from a disk: offload_optimizer.buffer_count. */
const SLOTS = 4;
/** Elements of the largest part of a state that streams to the device: see StreamedHome. */
const TILE = 2 ** 24;

const bytesOf = ({ precision }: Setup): number => (precision === 'fp32' ? 4 : 2);

/** Bytes of an element, the mean over those of the engine's dtype and those of their own. */
function meanBytes({ count, own }: Elements, setup: Setup): number {
  if (own.count === 0) return bytesOf(setup);
  return ((count - own.count) * bytesOf(setup) + own.bytes) / count;
}

/**
 * Master weights and state per trained parameter: f32 weights that are whole are their own master.
 */
function stateOf({ trained: { count, own } }: ModelSizes, setup: Setup): number {
  const isWhole = setup.stage < 3;
  const f32 = setup.precision === 'fp32' ? count : own.count;
  return setup.stateBytes + MASTER * (isWhole && count > 0 ? 1 - f32 / count : 1);
}

/**
 * Elements of the head's products: logits of a chunk or of all, and padded copies of its weight.
 */
function headElements(sizes: ModelSizes, setup: Setup): number {
  const { paddedVocabulary: columns, vocabulary, channels, trained } = sizes;
  const rows = setup.microBatch * setup.seq;
  const isLarge = columns > LARGE_VOCABULARY && rows * columns > KEPT_LOGITS;
  const fitting = 2 ** Math.floor(Math.log2(CHUNK_LOGITS / columns));
  const isChunked = setup.checkpointing || isLarge;
  const held = isChunked ? Math.min(rows, fitting, CHUNK_ROWS) : rows;
  // The gradient of what a frozen head reads is made chunk by chunk in the forward.
  const early = isChunked && !trained.hasHead ? rows * channels : 0;
  const padded = vocabulary === columns ? 0 : 2 * columns * channels;
  return held * columns + padded + early;
}

/** A moment of the backward: how much there is of what grows or shrinks on the way. */
interface Moment {
  gradients: number;
  weights: number;
  activations: number;
  head: number;
}

/** Gradients when those of the head and of `done` blocks are there. */
function gradientsAt(sizes: ModelSizes, setup: Setup, done: number): number {
  const { count: parameters, root, block } = sizes.trained;
  const made = root + done * block;
  const waitsForAll = setup.accumulation > 1;
  const sharded = setup.stage >= 2 && setup.ranks > 1;
  const bucket = Math.min(Math.max(REDUCE_BUCKET, block), made);
  const underWay = setup.overlap ? Math.min(2 * bucket, made) : bucket;
  if (sharded) {
    const away = setup.optimizer === 'device' ? 0 : setup.ratio;
    const stays = waitsForAll ? parameters : (1 - away) * made + away * underWay;
    return stays / setup.ranks + underWay;
  }
  if (setup.optimizer === 'device' && setup.ratio === 1) return waitsForAll ? parameters : made;
  if (waitsForAll) return parameters;
  const kept = (1 - setup.ratio) * made;
  const sent = setup.ranks > 1 ? underWay : Math.min(made, Math.max(root, 2 * block));
  return kept + sent;
}

/**
 * Weights: those that stay, and at stage 3 those gathered when the backward has done `done` blocks.
 */
function weightsAt(sizes: ModelSizes, setup: Setup, done: number): number {
  const { parameters, root, block } = sizes;
  const comesAndGoes = setup.stage === 3 && (setup.ranks > 1 || setup.weights === 'cpu');
  if (!comesAndGoes) return parameters;
  const stays = setup.weights === 'cpu' ? 0 : parameters / setup.ranks;
  // The last blocks of the forward are not let go where the backward needs them again soon.
  const reused = REUSE_DISTANCE / 2 - done * block;
  const live = Math.max(reused, (done === 0 ? root : block) + block + PREFETCH);
  return stays + Math.min(parameters, live);
}

function momentsOf(sizes: ModelSizes, setup: Setup): Moment[] {
  const { layers, activations: shape, channels, trained, unpacked, adapters } = sizes;
  const tokens = setup.microBatch * setup.seq;
  // The first stage has so many micro-batches under way before the first backward (1F1B).
  const inFlight = Math.min(setup.stages, setup.accumulation);
  const element = bytesOf(setup);
  const stream = tokens * channels * element;
  const block = tokens * (shape.kept * element + shape.statistics);
  const perBlock = setup.checkpointing ? tokens * shape.stream * element : block;
  const passing = tokens * adapters.perToken + adapters.lengths;
  const inBackward =
    unpacked * element +
    passing * MASTER +
    (setup.checkpointing
      ? block + tokens * shape.replayed * element
      : tokens * shape.backward * element);
  const beginning = {
    gradients: Math.min(trained.root, gradientsAt(sizes, setup, 0)),
    weights: weightsAt(sizes, setup, 0),
    activations: inFlight * layers * perBlock + 3 * stream,
    head: headElements(sizes, setup),
  };
  const during = (done: number): Moment => ({
    gradients: gradientsAt(sizes, setup, done),
    weights: weightsAt(sizes, setup, done),
    activations: (inFlight * layers - done + 1) * perBlock + inBackward,
    head: 0,
  });
  return [beginning, ...Array.from({ length: layers }, (_, done) => during(done + 1))];
}

/**
 * What one rank needs at the worst moment of the backward: at the head, or in one of the blocks.
 */
export function memoryOf(whole: ModelSizes, setup: Setup): Memory {
  const sizes = partOf(whole, setup);
  const { weights, trained } = sizes;
  const parameters = trained.count;
  const element = bytesOf(setup);
  const [ofWeight, ofGradient] = [meanBytes(weights, setup), meanBytes(trained, setup)];
  const share = setup.stage === 0 ? 1 : 1 / setup.ranks;
  const stateBytes = stateOf(sizes, setup);
  const state = stateBytes * parameters * share;
  const away = setup.optimizer === 'device' ? 0 : setup.ratio;
  const streamed = away * setup.gpuShare;
  const windows = streamed > 0 ? 2 * stateBytes * Math.min(TILE, trained.block * share) : 0;
  // The device has a gradient that has come and one that is not committed, and windows for state.
  const passingThrough = 2 * ofGradient * parameters * share * streamed + windows;
  const moments = momentsOf(sizes, setup).map(
    (moment): DeviceBytes => ({
      weights: moment.weights * ofWeight,
      gradients: moment.gradients * ofGradient,
      optimizer: (1 - away) * state + passingThrough,
      activations: moment.activations,
      head: moment.head * element,
    }),
  );
  const device = moments.reduce((worst, one) => (total(one) > total(worst) ? one : worst));
  // A gradient and a weight on their way for every parameter whose state host threads update.
  const onDisk = setup.optimizer === 'nvme';
  const passing = (onDisk ? 1 : 2) * ofGradient * parameters * share * (away - streamed);
  const largest = Math.max(trained.root, trained.block);
  const slots = onDisk ? SLOTS * stateBytes * largest * share : 0;
  const frozen = ofWeight * weights.count - ofGradient * parameters;
  const resident = away < 1 ? ofWeight * weights.count : frozen;
  const living = setup.weights === 'cpu' ? resident * share : 0;
  const inMemory = onDisk ? 0 : away * state;
  const host = { optimizer: inMemory, buffers: passing + living + slots, processes: PROCESS };
  return { device, host, disk: onDisk ? away * state : 0 };
}
