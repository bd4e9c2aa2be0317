// Bytes that a training step needs on the device and in host memory, by part, before anything is
// allocated.
import { gathersOf } from './gathered-weights.js';
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
/** Logits and rows of a chunk where not all are kept: see linearCrossEntropy(). */
const CHUNK_LOGITS = 2 ** 27;
const CHUNK_ROWS = 2048;
const LARGE_VOCABULARY = 2 ** 16;
const KEPT_LOGIT_BYTES = { trained: 2 ** 32, frozen: 2 ** 31 };
/** f32. */
const MASTER = 4;
/** What restores one from its bf16 weight: see SplitHome. */
const LOWER_HALF = 2 + 1 / 8;
/** Slots of weights that come down for their update, and elements of the largest: see SplitHome. */
const WEIGHT_SLOTS = 2;
const LARGEST_SLOT = 2 ** 26;
/** Elements of the largest part of a state that streams to the device: see StreamedHome. */
const TILE = 2 ** 24;

/** Bytes of an element of weights and outputs, in the dtype that the engine computes with. */
export const elementBytes = ({ precision }: Setup): number => (precision === 'fp32' ? 4 : 2);

/** Bytes of an element, the mean over those of the engine's dtype and those of their own. */
export function meanBytes({ count, own }: Elements, setup: Setup): number {
  if (own.count === 0) return elementBytes(setup);
  return ((count - own.count) * elementBytes(setup) + own.bytes) / count;
}

/** Bytes of a gradient's element. */
const gradientBytes = ({ trained }: ModelSizes, setup: Setup): number =>
  setup.wideGradients ? MASTER : meanBytes(trained, setup);

/**
 * Master weights and state per trained parameter on the device, where f32 weights that live there
 * are their own master.
 */
function stateOf({ trained: { count, own } }: ModelSizes, setup: Setup): number {
  const f32 = setup.precision === 'fp32' ? count : own.count;
  const isTheirs = setup.weights === 'device' && count > 0;
  return setup.stateBytes + MASTER * (isTheirs ? 1 - f32 / count : 1);
}

/** Bytes of AdamW's moments. */
export const adamWStateBytes = (bf16States: boolean): number => (bf16States ? 4 : 8);

/**
 * Whether masters that stream to the device are in halves: AdamW's, whose moments have as many
 * bytes, of bf16 weights.
 */
function streamsHalves(setup: Setup): boolean {
  const { optimizer, precision } = setup;
  const isAdamW = setup.stateBytes === adamWStateBytes(setup.bf16States);
  return optimizer === 'cpu' && precision === 'bf16' && isAdamW;
}

/** Whether the bf16 weights are half of their masters: where no weights are tried out. */
const splitsMasters = (setup: Setup): boolean => streamsHalves(setup) && !setup.speculates;

/** Whether the device keeps upper halves of the masters that stream, and their weights. */
export const joinsMasters = (setup: Setup): boolean => streamsHalves(setup) && setup.speculates;

/** Of trained weights that live in host memory, the share that the device has all the same. */
export const shareThatStays = (setup: Setup): number =>
  joinsMasters(setup) && setup.weights === 'cpu' ? setup.ratio * setup.gpuShare : 0;

/** Bytes of state that cross PCIe each way for a parameter that the device updates. */
export function bytesOfStreamed(setup: Setup): number {
  if (!streamsHalves(setup)) return setup.stateBytes + MASTER;
  const weight = setup.weights === 'cpu' && !setup.speculates ? elementBytes(setup) : 0;
  return setup.stateBytes + LOWER_HALF + weight;
}

/** Per trained parameter that is away from the device, in halves where they are split. */
function splitStateOf({ trained: { count, own } }: ModelSizes, setup: Setup): number {
  const f32 = count > 0 ? own.count / count : 0;
  return setup.stateBytes + LOWER_HALF * (1 - f32) + MASTER * f32;
}

/**
 * Elements of the head's products: logits of a chunk or of all, and padded copies of its weight.
 */
function headElements(sizes: ModelSizes, setup: Setup): number {
  const { paddedVocabulary: columns, vocabulary, channels, trained } = sizes;
  const rows = setup.microBatch * setup.seq;
  const kept = KEPT_LOGIT_BYTES[trained.hasHead ? 'trained' : 'frozen'];
  const isLarge = columns > LARGE_VOCABULARY && rows * columns * elementBytes(setup) > kept;
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

/**
 * Of the gradients that are made, the share that leaves the device: what the device updates of
 * masters in halves waits there for its update.
 */
function leaving(setup: Setup): number {
  const { optimizer, ratio, gpuShare } = setup;
  if (optimizer === 'device') return 0;
  return splitsMasters(setup) ? ratio * (1 - gpuShare) : ratio;
}

/**
 * Elements of gradients of blocks that wait for their reduction or are in it. A bucket has whole
 * blocks. With overlap, one bucket fills while the last one is reduced.
 */
function bucketsOf(block: number, { optimizer, reduceBucket, overlap }: Setup): number {
  // The host waits for no bucket: see gradientBucket().
  const size = optimizer === 'device' ? reduceBucket : 0;
  const blocks = block === 0 ? 0 : Math.max(1, Math.ceil(size / block));
  return (overlap ? 2 : 1) * blocks * block;
}

/** Gradients when those of the head and of `done` blocks are there. */
function gradientsAt(sizes: ModelSizes, setup: Setup, done: number): number {
  const { count: parameters, root, block } = sizes.trained;
  const made = root + done * block;
  const waitsForAll = setup.accumulation > 1;
  const sharded = setup.stage >= 2 && setup.ranks > 1;
  const underWay = Math.min(root + bucketsOf(block, setup), made);
  if (sharded) {
    const away = leaving(setup);
    const stays = waitsForAll ? parameters : (1 - away) * made + away * underWay;
    return stays / setup.ranks + underWay;
  }
  if (setup.optimizer === 'device' && setup.ratio === 1) return waitsForAll ? parameters : made;
  if (waitsForAll) return parameters;
  const kept = (1 - leaving(setup)) * made;
  const sent = setup.ranks > 1 ? underWay : Math.min(made, Math.max(root, 2 * block));
  return kept + sent;
}

/** Whether weights come to the device when they are used and go again. */
const gathersWeights = ({ stage, ranks, weights }: Setup): boolean =>
  stage === 3 && (ranks > 1 || weights === 'cpu');

/** Weights on the device when the backward has done `done` blocks. */
function weightsAt(sizes: ModelSizes, setup: Setup, done: number): number {
  const { parameters } = sizes;
  const { ranks, nearRanks } = setup;
  if (!gathersWeights(setup)) return parameters;
  const stays = setup.weights === 'cpu' ? 0 : parameters / ranks;
  const near = ranks > 1 && nearRanks > 1 ? parameters / nearRanks : 0;
  return stays + near + (gathersOf(sizes, setup).live[done] as number);
}

function momentsOf(sizes: ModelSizes, setup: Setup): Moment[] {
  const { layers, activations: shape, channels, trained, unpacked, adapters } = sizes;
  const tokens = setup.microBatch * setup.seq;
  // The first stage has so many micro-batches under way before the first backward (1F1B).
  const inFlight = Math.min(setup.stages, setup.accumulation);
  const element = elementBytes(setup);
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

/** Bytes of offloaded state and of what passes through for it, by where they are. */
interface Offloaded {
  device: number;
  optimizer: number;
  buffers: number;
  disk: number;
}

function offloadedBytes(sizes: ModelSizes, setup: Setup): Offloaded {
  const { optimizer, weights, gpuShare } = setup;
  if (optimizer === 'device') return { device: 0, optimizer: 0, buffers: 0, disk: 0 };
  const { count, root, block } = sizes.trained;
  const share = setup.stage === 0 ? 1 : 1 / setup.ranks;
  const away = setup.ratio * count * share;
  const whole = setup.stateBytes + MASTER;
  const ofGradient = gradientBytes(sizes, setup);
  const largest = Math.max(root, block) * share;
  const beside = weightsBeside(sizes, setup);
  // Host threads write weights that live in host memory where they are.
  const besideOnHost = weights === 'device' ? beside : 0;
  if (optimizer === 'nvme') {
    const slots = setup.slots * whole * Math.min(largest, setup.subGroup);
    const buffers = (ofGradient + besideOnHost) * away + slots;
    return { device: 0, optimizer: 0, buffers, disk: whole * away };
  }
  const streamed = away * gpuShare;
  const isSplit = splitsMasters(setup);
  const split = splitStateOf(sizes, setup);
  const ofStreamed = streamsHalves(setup) ? split : whole;
  const ofThreads = isSplit ? split : whole;
  // The device has windows for state, and, but for those in halves, which gradientsAt() has, a
  // gradient that has come; of what is tried out one that is not committed, too, and upper halves
  // beside the weights, which it then has wherever others live.
  const largestTile = Math.min(TILE, block * share);
  const isJoined = joinsMasters(setup);
  const ofTile = 2 * bytesOfStreamed(setup) + (isJoined ? MASTER : 0);
  const windows = streamed > 0 ? ofTile * largestTile : 0;
  const kept = isJoined ? elementBytes(setup) * (weights === 'cpu' ? 2 : 1) : 0;
  // Updates after the step decision leave weights where gradients were, or where the weights live.
  const passing = setup.speculates ? 2 : 1;
  const fetched = isSplit && weights === 'device' && away > streamed;
  const slots = fetched ? WEIGHT_SLOTS * 2 * Math.min(LARGEST_SLOT, largest) : 0;
  return {
    device: (isSplit ? 0 : passing * ofGradient + beside + kept) * streamed + windows,
    optimizer: ofStreamed * streamed + ofThreads * (away - streamed),
    buffers: (passing * ofGradient + besideOnHost) * (away - streamed) + slots,
    disk: 0,
  };
}

/**
 * Updated weights per trained parameter, on their way to where they live: in memory of their own
 * where they are narrower than their gradients. Those in halves have slots, and f32 ones leave from
 * their masters.
 */
function weightsBeside({ trained }: ModelSizes, setup: Setup): number {
  const isNarrower = setup.precision !== 'fp32' && setup.wideGradients && trained.count > 0;
  if (!isNarrower || splitsMasters(setup)) return 0;
  return elementBytes(setup) * (1 - trained.own.count / trained.count);
}

/** Weights that live in host memory. */
function livingWeights({ weights, trained }: ModelSizes, setup: Setup, share: number): number {
  if (setup.weights !== 'cpu') return 0;
  const stays = shareThatStays(setup) * trained.count;
  return meanBytes(weights, setup) * (weights.count - stays) * share;
}

/**
 * What one rank needs at the worst moment of the backward: at the head, or in one of the blocks.
 */
export function memoryOf(whole: ModelSizes, setup: Setup): Memory {
  const sizes = partOf(whole, setup);
  const { weights, trained } = sizes;
  const element = elementBytes(setup);
  const [ofWeight, ofGradient] = [meanBytes(weights, setup), gradientBytes(sizes, setup)];
  const share = setup.stage === 0 ? 1 : 1 / setup.ranks;
  const away = setup.optimizer === 'device' ? 0 : setup.ratio;
  const kept = (1 - away) * stateOf(sizes, setup) * trained.count * share;
  const offloaded = offloadedBytes(sizes, setup);
  const moments = momentsOf(sizes, setup).map(
    (moment): DeviceBytes => ({
      weights: moment.weights * ofWeight,
      gradients: moment.gradients * ofGradient,
      optimizer: kept + offloaded.device,
      activations: moment.activations,
      head: moment.head * element,
    }),
  );
  const device = moments.reduce((worst, one) => (total(one) > total(worst) ? one : worst));
  const buffers = offloaded.buffers + livingWeights(sizes, setup, share);
  const host = { optimizer: offloaded.optimizer, buffers, processes: PROCESS };
  return { device, host, disk: offloaded.disk };
}
