// Predicts the device and host memory of a training step by part.

import { LOWER_HALF } from '../optim/split-master.js';
import { required } from '../runtime/required.js';
import { STREAMED_TILE } from '../zero/state/placement/streamed.js';
import { LARGEST_SLOT, WEIGHT_SLOTS } from '../zero/state/weight-slots.js';
import { gathersOf } from './gathered-weights.js';
import type { Elements, ModelSizes } from './model-sizes.js';
import { partOf } from './part-of-model.js';
import type { Setup } from './setup.js';

/** Device memory of one rank at the peak of a step, in bytes by part. */
export interface DeviceBytes {
  /** Resident weights, and with stage 3 the gathered weights at that moment. */
  weights: number;
  /** Gradients before the update, and gradients in transfer to other ranks or the host. */
  gradients: number;
  /** Master weights and optimizer state. */
  optimizer: number;
  /** Saved activations of blocks, and temporaries of one block's backward. */
  activations: number;
  /** Logits and temporaries of the head. */
  head: number;
}

/** Host memory of one rank, in bytes by part. */
export interface HostBytes {
  /** Master weights and optimizer state. */
  optimizer: number;
  /** Transfer buffers of gradients and weights, and weights that live in host memory. */
  buffers: number;
  /** Baseline memory of a process. */
  processes: number;
}

/** Predicted memory of one step. */
export interface Memory {
  /** Of each rank. */
  device: DeviceBytes;
  /** Of each rank. */
  host: HostBytes;
  /** Of each rank: master weights and optimizer state on disk. */
  disk: number;
}

/** Returns the sum of the parts. */
export const total = (parts: DeviceBytes | HostBytes): number =>
  Object.values(parts).reduce((sum: number, bytes: number) => sum + bytes, 0);

/** Node, the addon and the GPU context, measured with an empty model. */
const PROCESS = 0.5 * 2 ** 30;
/** Largest logits and rows of a chunk in a chunked loss: see linearCrossEntropy(). */
const CHUNK_LOGITS = 2 ** 27;
const CHUNK_ROWS = 2048;
const LARGE_VOCABULARY = 2 ** 16;
const KEPT_LOGIT_BYTES = { trained: 2 ** 32, frozen: 2 ** 31 };
/** Bytes of an f32 master weight. */
const MASTER = 4;

/** Bytes of an element in the engine's compute dtype. */
export const elementBytes = ({ precision }: Setup): number => (precision === 'fp32' ? 4 : 2);

/** Mean bytes of an element, over elements in the engine's dtype and in a fixed dtype. */
export function meanBytes({ count, own }: Elements, setup: Setup): number {
  if (own.count === 0) return elementBytes(setup);
  return ((count - own.count) * elementBytes(setup) + own.bytes) / count;
}

/** Bytes of a gradient element. */
const gradientBytes = ({ trained }: ModelSizes, setup: Setup): number =>
  setup.wideGradients ? MASTER : meanBytes(trained, setup);

/**
 * Bytes of master weights and state per trained parameter on the device. f32 weights on the device
 * are their own masters.
 */
function stateOf({ trained: { count, own } }: ModelSizes, setup: Setup): number {
  const f32 = setup.precision === 'fp32' ? count : own.count;
  const isTheirs = setup.weights === 'device' && count > 0;
  return setup.stateBytes + MASTER * (isTheirs ? 1 - f32 / count : 1);
}

/** Bytes of AdamW's moments per parameter. */
export const adamWStateBytes = (bf16States: boolean): number => (bf16States ? 4 : 8);

/**
 * Returns true if streamed masters are split into a bf16 weight and its lower half. It needs AdamW,
 * offload to the CPU and bf16 weights.
 */
function streamsHalves(setup: Setup): boolean {
  const { optimizer, precision } = setup;
  const isAdamW = setup.stateBytes === adamWStateBytes(setup.bf16States);
  return optimizer === 'cpu' && precision === 'bf16' && isAdamW;
}

/** True if the bf16 weights are the upper halves of the masters: without speculative updates. */
const splitsMasters = (setup: Setup): boolean => streamsHalves(setup) && !setup.speculates;

/** True if the device keeps weights and separate upper halves of the streamed masters. */
export const joinsMasters = (setup: Setup): boolean => streamsHalves(setup) && setup.speculates;

/** Fraction of the trained weights in host memory that also stays on the device. */
export const shareThatStays = (setup: Setup): number =>
  joinsMasters(setup) && setup.weights === 'cpu' ? setup.ratio * setup.gpuShare : 0;

/** Bytes of state that cross PCIe in each direction per parameter that the device updates. */
export function bytesOfStreamed(setup: Setup): number {
  if (!streamsHalves(setup)) return setup.stateBytes + MASTER;
  const weight = setup.weights === 'cpu' && !setup.speculates ? elementBytes(setup) : 0;
  return setup.stateBytes + LOWER_HALF + weight;
}

/** Bytes per offloaded trained parameter with split masters. */
function splitStateOf({ trained: { count, own } }: ModelSizes, setup: Setup): number {
  const f32 = count > 0 ? own.count / count : 0;
  return setup.stateBytes + LOWER_HALF * (1 - f32) + MASTER * f32;
}

/** Elements of the head: logits of a chunk or of all rows, and padded copies of its weight. */
function headElements(sizes: ModelSizes, setup: Setup): number {
  const { paddedVocabulary: columns, vocabulary, channels, trained } = sizes;
  const rows = setup.microBatch * setup.seq;
  const kept = KEPT_LOGIT_BYTES[trained.hasHead ? 'trained' : 'frozen'];
  const isLarge = columns > LARGE_VOCABULARY && rows * columns * elementBytes(setup) > kept;
  const fitting = 2 ** Math.floor(Math.log2(CHUNK_LOGITS / columns));
  const isChunked = setup.checkpointing || isLarge;
  const held = isChunked ? Math.min(rows, fitting, CHUNK_ROWS) : rows;
  // For a frozen head, the gradient of its input is computed per chunk in the forward.
  const early = isChunked && !trained.hasHead ? rows * channels : 0;
  const padded = vocabulary === columns ? 0 : 2 * columns * channels;
  return held * columns + padded + early;
}

/** Memory that changes during backward, at one moment. */
interface Moment {
  gradients: number;
  weights: number;
  activations: number;
  head: number;
  /** Bytes of messages of quantized collectives. */
  messages: number;
}

/**
 * Fraction of the new gradients that leaves the device. With split masters, gradients of the
 * device's share of the update stay there.
 */
function leaving(setup: Setup): number {
  const { optimizer, ratio, gpuShare } = setup;
  if (optimizer === 'device') return 0;
  return splitsMasters(setup) ? ratio * (1 - gpuShare) : ratio;
}

/**
 * Elements of block gradients in reduction buckets, pending or in flight. A bucket contains whole
 * blocks. With overlap, one bucket fills during the reduction of the last one.
 */
function bucketsOf(block: number, { optimizer, reduceBucket, overlap }: Setup): number {
  // Offload to the host uses no buckets: see gradientBucket().
  const size = optimizer === 'device' ? reduceBucket : 0;
  const blocks = block === 0 ? 0 : Math.max(1, Math.ceil(size / block));
  return (overlap ? 2 : 1) * blocks * block;
}

/** Gradient elements after the backward of the head and of `done` blocks. */
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

/** True if weights are gathered for use and released afterwards. */
const gathersWeights = ({ stage, ranks, weights }: Setup): boolean =>
  stage === 3 && (ranks > 1 || weights === 'cpu');

/** Weight elements on the device after the backward of `done` blocks. */
function weightsAt(sizes: ModelSizes, setup: Setup, done: number): number {
  const { parameters } = sizes;
  const { ranks, nearRanks } = setup;
  if (!gathersWeights(setup)) return parameters;
  const stays = setup.weights === 'cpu' ? 0 : parameters / ranks;
  const near = ranks > 1 && nearRanks > 1 ? parameters / nearRanks : 0;
  return stays + near + required(gathersOf(sizes, setup).live[done]);
}

/**
 * Activations that checkpointing keeps, by segment of blocks. Without it, each block keeps its own.
 */
interface Segments {
  /** Segments of the blocks of a rank, and blocks of the largest one. */
  count: number;
  length: number;
  /** Bytes that each keeps for backward. */
  bytes: number;
  /** How many of them are on the device at a time, at most. */
  onDevice: number;
}

/** Segments with their inputs on the device under cpu_checkpointing: see OffloadedInputs. */
const INPUTS_ON_DEVICE = 2;

function segmentsOf({ layers, activations: shape }: ModelSizes, setup: Setup): Segments {
  const { checkpointing, segments, hostCheckpoints } = setup;
  const tokens = setup.microBatch * setup.seq;
  const element = elementBytes(setup);
  // With 1F1B, the first stage has this many micro-batches in flight before its first backward.
  const inFlight = Math.min(setup.stages, setup.accumulation);
  if (!checkpointing) {
    const bytes = tokens * (shape.kept * element + shape.statistics);
    return { count: layers, length: 1, bytes, onDevice: inFlight * layers };
  }
  const count = Math.max(1, Math.min(segments ?? layers, layers));
  return {
    ...{ count, length: Math.ceil(layers / count), bytes: tokens * shape.stream * element },
    onDevice: hostCheckpoints ? INPUTS_ON_DEVICE : inFlight * count,
  };
}

/** Bytes of an element in a message of codes: see BlockCodes. */
const CODE_BYTES = { weights: 1 + 4 / 64, gradients: 1 / 2 + 4 / 64 };

/** Messages of quantized collectives in flight, and the f32 sums of one block's gradients. */
function messagesAt(sizes: ModelSizes, setup: Setup, done: number): number {
  if (setup.ranks === 1 || setup.stage !== 3) return 0;
  const { block } = sizes.trained;
  const gathers = setup.quantizedWeights ? required(gathersOf(sizes, setup).inFlight[done]) : 0;
  const sums = (2 * MASTER * block) / setup.ranks;
  const reduced = Math.min(bucketsOf(block, setup), done * block);
  return (
    gathers * CODE_BYTES.weights +
    (setup.quantizedGradients ? reduced * CODE_BYTES.gradients + sums : 0)
  );
}

function momentsOf(sizes: ModelSizes, setup: Setup): Moment[] {
  const { layers, activations: shape, channels, trained, unpacked, adapters } = sizes;
  const tokens = setup.microBatch * setup.seq;
  const element = elementBytes(setup);
  const stream = tokens * channels * element;
  const block = tokens * (shape.kept * element + shape.statistics);
  const { length, bytes, onDevice } = segmentsOf(sizes, setup);
  const passing = tokens * adapters.perToken + adapters.lengths;
  const ofBlock = setup.checkpointing ? shape.replayed : shape.backward;
  const inBackward = unpacked * element + passing * MASTER + tokens * ofBlock * element;
  const beginning = {
    gradients: Math.min(trained.root, gradientsAt(sizes, setup, 0)),
    weights: weightsAt(sizes, setup, 0),
    activations: onDevice * bytes + 3 * stream,
    head: headElements(sizes, setup),
    messages: messagesAt(sizes, setup, 0),
  };
  const during = (done: number): Moment => {
    // The recomputed segment still holds the activations of the blocks that backward has not
    // passed.
    const [ended, inside] = [Math.floor((done - 1) / length), (done - 1) % length];
    const replayed = setup.checkpointing ? (length - inside) * block : 0;
    const left = setup.hostCheckpoints && setup.checkpointing ? onDevice : onDevice - ended;
    return {
      gradients: gradientsAt(sizes, setup, done),
      weights: weightsAt(sizes, setup, done),
      activations: left * bytes + replayed + inBackward,
      head: 0,
      messages: messagesAt(sizes, setup, done),
    };
  };
  return [beginning, ...Array.from({ length: layers }, (_, done) => during(done + 1))];
}

/** Inputs of segments in host memory. */
function hostCheckpoints(sizes: ModelSizes, setup: Setup): number {
  if (!setup.checkpointing || !setup.hostCheckpoints) return 0;
  const { count, bytes } = segmentsOf(sizes, setup);
  return Math.min(setup.stages, setup.accumulation) * count * bytes;
}

/** Bytes of offloaded state and its buffers, by location. */
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
  // Host threads update weights in host memory in place.
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
  // Device memory per streamed parameter: windows for state, and a gradient unless masters are
  // split (gradientsAt() counts it then). Speculation adds an uncommitted gradient and the upper
  // halves. If weights live in host memory, the device keeps its share of them as well.
  const largestTile = Math.min(STREAMED_TILE, block * share);
  const isJoined = joinsMasters(setup);
  const ofTile = 2 * bytesOfStreamed(setup) + (isJoined ? MASTER : 0);
  const windows = streamed > 0 ? ofTile * largestTile : 0;
  const kept = isJoined ? elementBytes(setup) * (weights === 'cpu' ? 2 : 1) : 0;
  // Updates after the step decision write weights into gradient buffers, or into host weights.
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
 * Bytes per trained parameter for updated weights in transfer. They need their own memory if they
 * are narrower than gradients. Split masters use slots, and f32 weights are sent from their
 * masters.
 */
function weightsBeside({ trained }: ModelSizes, setup: Setup): number {
  const isNarrower = setup.precision !== 'fp32' && setup.wideGradients && trained.count > 0;
  if (!isNarrower || splitsMasters(setup)) return 0;
  return elementBytes(setup) * (1 - trained.own.count / trained.count);
}

/** Bytes of weights that live off the device, by location. */
function livingWeights(
  { root, block, weights, trained }: ModelSizes,
  setup: Setup,
  share: number,
): { host: number; disk: number } {
  if (setup.weights !== 'cpu') return { host: 0, disk: 0 };
  const bytes = meanBytes(weights, setup);
  const living = (weights.count - shareThatStays(setup) * trained.count) * share;
  const { weightsOnDisk } = setup;
  if (!weightsOnDisk) return { host: bytes * living, disk: 0 };
  const { inMemory, slots, slotSize } = weightsOnDisk;
  // Whole units stay in host memory. Units on the disk come in equal parts.
  const unit = block * share;
  const held = inMemory >= living ? living : Math.floor(inMemory / Math.max(unit, 1)) * unit;
  const largest = Math.max(root, block) * share;
  const slot = held < living ? largest / Math.max(1, Math.ceil(largest / slotSize)) : 0;
  return { host: bytes * (held + slots * slot), disk: bytes * (living - held) };
}

/**
 * Predicts the memory of one rank at the peak of backward: at the head, or in one of the blocks.
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
      weights: moment.weights * ofWeight + moment.messages,
      gradients: moment.gradients * ofGradient,
      optimizer: kept + offloaded.device,
      activations: moment.activations,
      head: moment.head * element,
    }),
  );
  const device = moments.reduce((worst, one) => (total(one) > total(worst) ? one : worst));
  const waiting = hostCheckpoints(sizes, setup);
  const living = livingWeights(sizes, setup, share);
  const buffers = offloaded.buffers + living.host + waiting;
  const host = { optimizer: offloaded.optimizer, buffers, processes: PROCESS };
  return { device, host, disk: offloaded.disk + living.disk };
}
