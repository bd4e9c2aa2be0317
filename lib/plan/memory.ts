// Predicts the device and host memory of a training step by part.
import { dtypeSize } from '../runtime/dtype.js';
import { required } from '../runtime/required.js';
import {
  chunkRowsFor,
  exceedsKeptLogits,
  isEarlyWeight,
} from '../tensor/ops/linear-cross-entropy.js';
import { CODE_BYTES } from '../zero/quantized.js';
import { RUNNING_COPIES } from '../zero/state/placement/host.js';
import type { Footprint } from './footprint.js';
import { simulateGathers } from './gathered-weights.js';
import { castPerToken, type Elements, type ModelSizes } from './model-sizes.js';
import { sizesOfRank } from './part-of-model.js';
import type { Setup } from './setup.js';
import {
  elementBytes,
  largestPart,
  largestUnit,
  meanBytes,
  type StatePart,
  statePartsOf,
  updatedShare,
} from './state-parts.js';

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
  /** Transfer buffers of gradients and weights, and weights in host memory. */
  buffers: number;
  /** Baseline memory of a process. */
  processes: number;
}

/** Predicted memory of one step. */
export interface Memory {
  /** Device memory of each rank. */
  device: DeviceBytes;
  /** Host memory of each rank. */
  host: HostBytes;
  /** Of each rank: master weights and optimizer state on disk. */
  disk: number;
}

/** Returns the sum of the parts. */
export const totalBytes = (parts: DeviceBytes | HostBytes): number =>
  Object.values(parts).reduce((sum: number, bytes: number) => sum + bytes, 0);

/** Host bytes of a process: Node, the addon and the GPU context, measured with an empty model. */
const PROCESS = 0.5 * 2 ** 30;

/** Returns the sum of `of` over the parameters of all parts. */
const sumOver = (
  parts: readonly StatePart[],
  of: (footprint: Footprint, part: StatePart) => number,
): number => parts.reduce((sum, part) => sum + part.count * of(part.footprint, part), 0);

/** Returns the fraction of the trained parameters with a footprint that satisfies `predicate`. */
export function fractionWhere(
  sizes: ModelSizes,
  setup: Setup,
  predicate: (footprint: Footprint) => boolean,
): number {
  const all = sizes.trained.count * updatedShare(setup);
  const matching = sumOver(statePartsOf(sizes, setup), (footprint) =>
    predicate(footprint) ? 1 : 0,
  );
  return all === 0 ? 0 : matching / all;
}

/** Returns the elements of the head: logits of a chunk or of all rows, and its padded weight. */
function countHeadElements(sizes: ModelSizes, setup: Setup): number {
  const { paddedVocabulary: columns, vocabulary, channels, trained } = sizes;
  const rows = setup.microBatch * setup.seq;
  const isLarge = exceedsKeptLogits([rows, columns], elementBytes(setup), trained.hasHead);
  const isChunked = setup.checkpointing || isLarge;
  const liveRows = isChunked ? Math.min(rows, chunkRowsFor(columns, rows)) : rows;
  // The forward computes the gradient of the head's input per chunk if the head is frozen, and also
  // the gradient of its weight if the head is trained and has many rows.
  const isWeightEarly =
    trained.hasHead && isEarlyWeight([rows, columns], setup.precision === 'fp16' ? 'f16' : 'f32');
  const isInputEarly = isWeightEarly || !trained.hasHead;
  const early = isChunked && isInputEarly ? (rows + (isWeightEarly ? columns : 0)) * channels : 0;
  const padded = vocabulary === columns ? 0 : 2 * columns * channels;
  return liveRows * columns + padded + early;
}

/** Memory that changes during backward, at one moment. */
interface BackwardMoment {
  gradients: number;
  weights: number;
  activations: number;
  head: number;
  /** Bytes of messages of quantized collectives. */
  messages: number;
}

/**
 * Returns the elements of block gradients in reduction buckets, pending or in flight. A bucket
 * contains whole blocks. With overlap, one bucket fills during the reduction of the last one.
 */
function countBucketElements(block: number, { optimizer, reduceBucket, overlap }: Setup): number {
  // Offload to the host uses no buckets: see gradientBucket().
  const size = optimizer === 'device' ? reduceBucket : 0;
  const blocks = block === 0 ? 0 : Math.max(1, Math.ceil(size / block));
  return (overlap ? 2 : 1) * blocks * block;
}

/**
 * Returns the gradient elements after the backward of the head and of `done` blocks. `away`: the
 * fraction of gradients that leaves the memory of backward. `units`: the number of blocks whose
 * gradients are in transfer to the host.
 */
function countGradients(
  sizes: ModelSizes,
  setup: Setup,
  { away, done, units = RUNNING_COPIES }: { away: number; done: number; units?: number },
): number {
  const { count: parameters, root, block } = sizes.trained;
  const computed = root + done * block;
  const waitsForAll = setup.accumulation > 1;
  const sharded = setup.stage >= 2 && setup.ranks > 1;
  const inBuckets = Math.min(root + countBucketElements(block, setup), computed);
  if (sharded) {
    const resident = waitsForAll ? parameters : (1 - away) * computed + away * inBuckets;
    return resident / setup.ranks + inBuckets;
  }
  if (waitsForAll) return parameters;
  if (away === 0) return computed;
  const kept = (1 - away) * computed;
  const sent = setup.ranks > 1 ? inBuckets : Math.min(computed, root + units * block);
  return kept + sent;
}

/** Returns true if weights are gathered for use and released afterwards. */
const gathersWeights = ({ stage, ranks, weights }: Setup): boolean =>
  stage === 3 && (ranks > 1 || weights === 'cpu');

/** Returns the weight elements on the device after the backward of `done` blocks. */
function countWeights(sizes: ModelSizes, setup: Setup, done: number): number {
  const { parameters } = sizes;
  const { ranks, nearRanks } = setup;
  if (!gathersWeights(setup)) return parameters;
  const resident = setup.weights === 'cpu' ? 0 : parameters / ranks;
  const secondary = ranks > 1 && nearRanks > 1 ? parameters / nearRanks : 0;
  return resident + secondary + required(simulateGathers(sizes, setup).live[done]);
}

/**
 * Activations that a rank keeps per segment of blocks. Without checkpointing, a segment is a block.
 */
interface Segments {
  /** Segments of the blocks of a rank, and blocks of the largest one. */
  count: number;
  length: number;
  /** Bytes that each segment keeps for backward. */
  bytes: number;
  /** Bytes of kept results of attention, of one block and of the largest segment; 0 without. */
  attention: { block: number; segment: number };
  /** Maximum number of segments with these bytes on the device at a time. */
  onDevice: number;
}

/** Segments with their inputs on the device under cpu_checkpointing: see OffloadedInputs. */
const INPUTS_ON_DEVICE = 2;

function computeSegments(sizes: ModelSizes, setup: Setup): Segments {
  const { layers, activations: shape } = sizes;
  const { checkpointing, segments, hostCheckpoints } = setup;
  const tokens = setup.microBatch * setup.seq;
  const element = elementBytes(setup);
  // With 1F1B, the first stage has this many micro-batches in flight before its first backward.
  const inFlight = Math.min(setup.stages, setup.accumulation);
  const none = { block: 0, segment: 0 };
  if (!checkpointing) {
    const bytes = tokens * (shape.kept * element + shape.statistics);
    const onDevice = inFlight * layers;
    return { count: layers, length: 1, bytes, attention: none, onDevice };
  }
  const count = Math.max(1, Math.min(segments ?? layers, layers));
  const length = Math.ceil(layers / count);
  const block = setup.keepsAttention ? tokens * attentionBytes(sizes, element) : 0;
  return {
    count,
    length,
    bytes: tokens * shape.stream * element,
    attention: { block, segment: length * block },
    onDevice: hostCheckpoints ? INPUTS_ON_DEVICE : inFlight * count,
  };
}

/** Returns the bytes per token of attention in a block: output and f32 log-sum-exp. */
function attentionBytes({ attentionWidth, headDim }: ModelSizes, element: number): number {
  if (headDim === 0) return 0;
  return attentionWidth * element + (attentionWidth / headDim) * dtypeSize('f32');
}

/** Returns the bytes of quantized messages in flight, and of one block's f32 gradient sums. */
function countMessageBytes(sizes: ModelSizes, setup: Setup, done: number): number {
  if (setup.ranks === 1 || setup.stage !== 3) return 0;
  const { block } = sizes.trained;
  const gathers = setup.quantizedWeights
    ? required(simulateGathers(sizes, setup).inFlight[done])
    : 0;
  const sums = (2 * dtypeSize('f32') * block) / setup.ranks;
  const reduced = Math.min(countBucketElements(block, setup), done * block);
  return (
    gathers * CODE_BYTES.weights +
    (setup.quantizedGradients ? reduced * CODE_BYTES.gradients + sums : 0)
  );
}

function predictMoments(sizes: ModelSizes, setup: Setup): BackwardMoment[] {
  const away = fractionWhere(sizes, setup, ({ movesGradients }) => movesGradients);
  const { layers, activations: shape, channels, trained, unpacked, adapters } = sizes;
  const tokens = setup.microBatch * setup.seq;
  const element = elementBytes(setup);
  const stream = tokens * channels * element;
  const block = tokens * (shape.kept * element + shape.statistics);
  const { length, bytes, attention, onDevice } = computeSegments(sizes, setup);
  // Results in host memory come back when the backward has passed the largest moment.
  const kept = setup.hostCheckpoints ? 0 : attention.segment;
  const passing = tokens * castPerToken(adapters, setup) + adapters.lengths;
  const ofBlock = setup.checkpointing ? shape.replayed : shape.backward;
  const inBackward = unpacked * element + passing * dtypeSize('f32') + tokens * ofBlock * element;
  const beginning = {
    gradients: Math.min(trained.root, countGradients(sizes, setup, { away, done: 0 })),
    weights: countWeights(sizes, setup, 0),
    activations: onDevice * (bytes + kept) + 3 * stream,
    head: countHeadElements(sizes, setup),
    messages: countMessageBytes(sizes, setup, 0),
  };
  const momentDuring = (done: number): BackwardMoment => {
    // The recomputed segment still holds the activations of the blocks that backward has not
    // passed.
    const [ended, inside] = [Math.floor((done - 1) / length), (done - 1) % length];
    const replayed = setup.checkpointing ? (length - inside) * block : 0;
    const left = setup.hostCheckpoints && setup.checkpointing ? onDevice : onDevice - ended;
    // The replayed blocks hold the results of their own segment.
    const others = (left - 1) * kept + (kept > 0 ? inside * attention.block : 0);
    return {
      gradients: countGradients(sizes, setup, { away, done }),
      weights: countWeights(sizes, setup, done),
      activations: left * bytes + others + replayed + inBackward,
      head: 0,
      messages: countMessageBytes(sizes, setup, done),
    };
  };
  /**
   * Returns the moment after a block's backward: its gradient is complete, and its activations are
   * freed.
   */
  const momentAtEnd = (done: number): BackwardMoment => {
    const { activations, ...rest } = momentDuring(done);
    const gradients = countGradients(sizes, setup, { away, done, units: RUNNING_COPIES + 1 });
    return { ...rest, gradients, activations: activations - inBackward - block };
  };
  const blocks = Array.from({ length: layers }, (_, done) => done + 1);
  return [beginning, ...blocks.flatMap((done) => [momentDuring(done), momentAtEnd(done)])];
}

/** Returns the host bytes of segment inputs and of kept results of attention. */
function hostCheckpointBytes(sizes: ModelSizes, setup: Setup): number {
  if (!setup.checkpointing || !setup.hostCheckpoints) return 0;
  const { count, bytes, attention } = computeSegments(sizes, setup);
  const kept = count * bytes + sizes.layers * attention.block;
  return Math.min(setup.stages, setup.accumulation) * kept;
}

/** Returns the bytes of weights that are stored in host memory and on a disk. */
function offloadedWeightBytes(sizes: ModelSizes, setup: Setup): { host: number; disk: number } {
  if (setup.weights !== 'cpu') return { host: 0, disk: 0 };
  const { block, weights, trained } = sizes;
  const share = updatedShare(setup);
  const bytes = meanBytes(weights, setup);
  const kept = fractionWhere(sizes, setup, ({ keepsWeight }) => keepsWeight);
  const offloaded = (weights.count - kept * trained.count) * share;
  const { weightsOnDisk } = setup;
  if (!weightsOnDisk) return { host: bytes * offloaded, disk: 0 };
  const { inMemory, slots, slotSize } = weightsOnDisk;
  // Whole units stay in host memory. Units on the disk come in equal parts.
  const unit = block * share;
  const inHost =
    inMemory >= offloaded ? offloaded : Math.floor(inMemory / Math.max(unit, 1)) * unit;
  const slot = inHost < offloaded ? largestPart(largestUnit(sizes, setup), slotSize) : 0;
  return { host: bytes * (inHost + slots * slot), disk: bytes * (offloaded - inHost) };
}

/** Returns the memory of one rank at the peak of backward: at the head, or in one of the blocks. */
export function predictMemory(modelSizes: ModelSizes, setup: Setup): Memory {
  const sizes = sizesOfRank(modelSizes, setup);
  const element = elementBytes(setup);
  const parts = statePartsOf(sizes, setup);
  const ofWeight = meanBytes(sizes.weights, setup);
  const all = sizes.trained.count * updatedShare(setup);
  const ofGradient = all === 0 ? 0 : sumOver(parts, (_, { gradient }) => gradient) / all;
  /** Returns the bytes of gradients and weights in transfer, and of open tiles. */
  const passing = (place: 'device' | 'host'): number =>
    parts.reduce(
      (sum, { count, tile, footprint: { gradients, weights, tile: open } }) =>
        sum + count * (gradients[place] + weights[place]) + tile * open[place],
      0,
    );
  const optimizer = sumOver(parts, ({ state }) => state.device) + passing('device');
  const moments = predictMoments(sizes, setup).map(
    (moment): DeviceBytes => ({
      weights: moment.weights * ofWeight + moment.messages,
      gradients: moment.gradients * ofGradient,
      optimizer,
      activations: moment.activations,
      head: moment.head * element,
    }),
  );
  const device = moments.reduce((worst, moment) =>
    totalBytes(moment) > totalBytes(worst) ? moment : worst,
  );
  const living = offloadedWeightBytes(sizes, setup);
  return {
    device,
    host: {
      optimizer: sumOver(parts, ({ state }) => state.host),
      buffers: passing('host') + living.host + hostCheckpointBytes(sizes, setup),
      processes: PROCESS,
    },
    disk: sumOver(parts, ({ state }) => state.disk) + living.disk,
  };
}

/** Bytes by purpose. Errors contain the names. */
export type Parts = Readonly<Record<string, number>>;

/** Bytes that a rank needs for any batch. If the device is the CPU, it has the bytes of both. */
export interface MinimumBytes {
  device: Parts;
  host: Parts;
  disk: { state: number; weights: number };
}

const STATE = 'master weights and optimizer state';

/**
 * Returns a lower bound of the memory of a run: without padding, buckets, open tiles and
 * activations, for any division of units by offload_optimizer.ratio and offload_param.max_in_cpu.
 */
export function predictMinimum(sizes: ModelSizes, setup: Setup): MinimumBytes {
  const { weights, trained } = sizes;
  const slack = trained.count === 0 ? 1 : Math.max(trained.root, trained.block) / trained.count;
  const parts = statePartsOf(sizes, setup, slack);
  const share = setup.stage === 3 ? 1 / setup.ranks : 1;
  const bytes = weights.count * meanBytes(weights, setup) * share;
  const isAway = setup.weights === 'cpu';
  const onDisk = isAway ? setup.weightsOnDisk : null;
  const [narrowest, widest] = dtypeWidths(weights, setup);
  const inHost = onDisk
    ? Math.max(0, onDisk.inMemory - largestUnit(sizes, setup)) * narrowest
    : bytes;
  const isTwice = setup.optimizer === 'cpu' && setup.speculates;
  const inBackward = (part: StatePart): number => (part.placement === 'device' ? part.gradient : 0);
  return {
    device: {
      weights: isAway ? 0 : bytes,
      gradients: sumOver(parts, (_, part) => inBackward(part)),
      [STATE]: sumOver(parts, ({ state }) => state.device),
    },
    host: {
      [STATE]: sumOver(parts, ({ state }) => state.host),
      [isTwice ? 'gradients of two steps' : 'gradients on their way']: sumOver(
        parts,
        ({ gradients }) => gradients.host,
      ),
      weights: isAway ? Math.min(bytes, inHost) : 0,
    },
    disk: {
      state: sumOver(parts, ({ state }) => state.disk),
      weights: onDisk ? Math.max(0, bytes - onDisk.inMemory * widest) : 0,
    },
  };
}

/** Returns the bytes of an element in the narrowest and in the widest dtype of weights. */
function dtypeWidths(
  { count, inFixedDtype }: Elements,
  setup: Setup,
): [narrowest: number, widest: number] {
  const [element, fixed] = [elementBytes(setup), inFixedDtype.bytes / inFixedDtype.count];
  if (inFixedDtype.count === 0) return [element, element];
  if (inFixedDtype.count === count) return [fixed, fixed];
  return [Math.min(element, fixed), Math.max(element, fixed)];
}
