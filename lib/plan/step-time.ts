// Predicts the duration of a step by formulas over measured rates. The comments of the constants
// state the assumptions.

import { simulateGathers } from './gathered-weights.js';
import { fractionWhere } from './memory.js';
import { castPerToken, type Elements, type ModelSizes } from './model-sizes.js';
import { sizesOfRank } from './part-of-model.js';
import { balancedShare } from './processor-rates.js';
import { attentionRate, hostAdamRate, type Rates } from './rates.js';
import type { Setup } from './setup.js';
import { elementBytes, footprintIn, meanBytes } from './state-parts.js';

/** Machines and devices of a job. */
export interface Cluster {
  /** Number of machines. */
  nodes: number;
  /** Devices per machine. */
  devicesPerNode: number;
  /** Cores per machine. */
  coresPerNode: number;
  /** Network bytes per second of one machine. */
  nodeLink: number;
}

/** Seconds of one step by cause. */
export interface StepTime {
  /** Forward and backward of all micro-batches on the device. */
  compute: number;
  /** Optimizer update on device and host. */
  update: number;
  /** Collectives and weight transfers that do not overlap with compute. */
  exposed: number;
  /** Total seconds of a step. */
  step: number;
}

/** Memory passes of a block over the residual stream: norms, additions and activations. */
const PASSES = 34;
/** Memory passes over one logit. */
const LOGIT_PASSES = 6;
/** Recomputed fraction of a block's forward: the last product and its successors are omitted. */
const REPLAYED = 2 / 3;
/** Bytes that Adam moves per parameter on the device, and on the host during backward. */
const ADAM = 28;
const ADAM_ON_HOST = 30;
/**
 * Bytes per parameter of a host update after the step decision, and its speedup without transfers.
 */
const ADAM_AFTERWARDS = 28;
const UNDISTURBED = 1.3;
/** Bytes of an update that two moments in bf16 save, because an update reads and writes both. */
const SAVED_BY_BF16 = 8;
/**
 * Bytes of an update per parameter; `f32` is the value with f32 moments. The conversion of bf16
 * moments overlaps with their traffic.
 */
const updateBytes = (f32: number, { bf16States }: Setup): number =>
  bf16States ? f32 - SAVED_BY_BF16 : f32;
/** Fraction of a micro-batch's compute that overlaps with a non-speculative host update. */
const FORWARD = { true: 1 / 4, false: 1 / 3 } as const;
/**
 * Fraction of the shorter of device and host time that does not overlap. With several ranks,
 * weights are published after all updates.
 */
const UNHIDDEN = { one: 0.15, several: 0.75 } as const;
/** Slowdown of kernels that run at the same time as collectives. */
const CONTENTION = 1.04;
/** Fraction of collectives that does not overlap, with overlap_comm and without. */
const UNHIDDEN_EXCHANGE = { true: 0.2, false: 1 } as const;
/** Fraction of the shorter of compute and weight transfers that does not overlap. */
const UNHIDDEN_WEIGHTS = 0.4;
/** Tokens of a micro-batch at which products reach half of their full rate. */
const HALF_RATE_TOKENS = 256;
/**
 * Bytes that adapters move per input and output element: two products and the sum, forward and
 * backward. Wide adapters also convert to f32 and back.
 */
const ADAPTER_PASSES = {
  wide: { forward: 13, backward: 18 },
  plain: { forward: 5, backward: 7 },
} as const;
/** Returns the seconds of forward and backward of one micro-batch. */
function computeTime(sizes: ModelSizes, setup: Setup, rates: Rates): number {
  const { parameters, idle, root, layers, attentionWidth, channels, trained, packed } = sizes;
  const { paddedVocabulary, vocabulary } = sizes;
  const tokens = setup.microBatch * setup.seq;
  const slower = setup.precision === 'fp32' ? rates.matmul / rates.matmul32 : 1;
  const filled = tokens / (tokens + HALF_RATE_TOKENS);
  const headWeights = vocabulary * channels;
  const forward = 2 * (parameters - idle - root - packed.elements + packed.count) * tokens;
  const head = 2 * headWeights * tokens;
  const replayed = setup.checkpointing ? REPLAYED * forward : 0;
  // Frozen weights have no gradient products. Trained adapters use f32 products.
  const trainsAll = trained.count >= sizes.weights.count;
  const ofWeights = trainsAll ? forward : 0;
  const ofHead = trained.hasHead ? head : 0;
  const all = 2 * forward + ofWeights + 2 * head + ofHead + replayed;
  const products = all / ((rates.matmul * filled) / slower);
  const adapterSeconds = trainsAll ? 0 : adapterTime(sizes, setup, rates);
  // Causal attention skips half of the scores.
  const scores = 2 * tokens * setup.seq * attentionWidth * layers;
  const forwards = setup.checkpointing && !setup.keepsAttention ? 2 : 1;
  const { forward: forwardRate, backward: backwardRate } = attentionRate(rates, sizes.headDim);
  const attention = slower * scores * (forwards / forwardRate + 2.5 / backwardRate);
  const passes = PASSES * (setup.checkpointing ? 1.25 : 1);
  const streamed = layers * tokens * channels * passes + tokens * paddedVocabulary * LOGIT_PASSES;
  return (
    products + attention + adapterSeconds + (streamed * elementBytes(setup)) / rates.deviceMemory
  );
}

/** Returns the seconds of adapters in one micro-batch, and of unpacking quantized weights. */
function adapterTime(
  { trained, packed, adapters }: ModelSizes,
  setup: Setup,
  rates: Rates,
): number {
  const { microBatch, seq, checkpointing, precision } = setup;
  const tokens = microBatch * seq;
  const forwards = checkpointing ? 2 : 1;
  const isWide = castPerToken(adapters, setup) > 0 || precision === 'fp32';
  const macs = (forwards + 2) * (trained.count - trained.root) * tokens;
  const products = (2 * macs) / (isWide ? rates.matmul32 : rates.matmul);
  const { forward, backward } = ADAPTER_PASSES[isWide ? 'wide' : 'plain'];
  const passes = tokens * adapters.streamed * (forwards * forward + backward);
  const unpackedBytes = (forwards + 1) * (packed.bytes + packed.count * elementBytes(setup));
  return products + (passes + unpackedBytes) / rates.deviceMemory;
}

/** Returns the number of ranks on one machine. */
export function countRanksOfMachine(
  { ranks, copies, tensor, stages }: Setup,
  cluster: Cluster,
): number {
  return Math.min(ranks * copies * tensor * stages, cluster.devicesPerNode);
}

/**
 * Returns the bytes per second of a rank's collectives: across machines, or within a single
 * machine.
 */
function slowestLink(setup: Setup, rates: Rates, cluster: Cluster): number {
  const ofRank = cluster.nodeLink / countRanksOfMachine(setup, cluster);
  return cluster.nodes > 1 ? Math.min(rates.link, ofRank) : rates.link;
}

/**
 * Returns the seconds of tensor and pipeline communication in one step, which does not overlap.
 * Each block has two all-reduces of its output in forward, two in backward, and two in
 * recomputation (Megatron-LM, section 3). Each pipeline stage sends one output per micro-batch and
 * direction. Tensor-parallel ranks are on one machine if they fit.
 */
function sharingTime(sizes: ModelSizes, setup: Setup, rates: Rates, cluster: Cluster): number {
  const { tensor, stages, accumulation } = setup;
  const output = setup.microBatch * setup.seq * sizes.channels * elementBytes(setup);
  const within = tensor <= cluster.devicesPerNode ? rates.link : slowestLink(setup, rates, cluster);
  const reductions = (setup.checkpointing ? 6 : 4) * sizes.layers;
  const layers = (reductions * 2 * output * (tensor - 1)) / tensor / within;
  const between = stages > 1 ? (2 * output) / slowestLink(setup, rates, cluster) : 0;
  return accumulation * (layers + between);
}

/**
 * Returns the seconds of one step that the device waits for weights from host memory. Each
 * micro-batch transfers its rank's part for forward and again for backward, except weights that
 * stay on the device.
 */
function arrivalTime(
  sizes: ModelSizes,
  setup: Setup,
  { rates, cluster, micro }: { rates: Rates; cluster: Cluster; micro: number },
): number {
  if (setup.weights === 'device') return 0;
  const { weights, trained } = sizes;
  const kept = fractionWhere(sizes, setup, ({ keepsWeight }) => keepsWeight);
  const count = weights.count - kept * trained.count;
  const elements = (count * simulateGathers(sizes, setup).perMicroBatch) / sizes.parameters;
  const bytes = (elements * meanBytes(weights, setup)) / setup.ranks;
  const { weightsOnDisk } = setup;
  const inMemory = weightsOnDisk ? weightsOnDisk.inMemory / (count / setup.ranks) : 1;
  // All ranks of a machine read from one disk.
  const onDisk = Math.max(0, 1 - inMemory) * bytes * countRanksOfMachine(setup, cluster);
  const arriving = Math.max(bytes / rates.pcie, onDisk / rates.disk);
  const hidden = Math.min(micro, arriving);
  return setup.accumulation * (arriving - (1 - UNHIDDEN_WEIGHTS) * hidden);
}

/** Returns the seconds of all collectives in one step, whether they overlap with compute or not. */
function exchangeTime(sizes: ModelSizes, setup: Setup, rates: Rates, cluster: Cluster): number {
  if (setup.ranks === 1) return 0;
  const slowest = slowestLink(setup, rates, cluster);
  const transferTime = (elements: Elements): number =>
    (elements.count * meanBytes(elements, setup) * (setup.ranks - 1)) / setup.ranks / slowest;
  const gradientTime = transferTime(sizes.trained);
  const { stage, accumulation } = setup;
  if (stage < 2) return 2 * gradientTime;
  if (stage === 2) return (accumulation + 1) * gradientTime;
  const gathers = simulateGathers(sizes, setup).perMicroBatch / sizes.parameters;
  return accumulation * (gathers * transferTime(sizes.weights) + gradientTime);
}

/**
 * Returns the fraction of offloaded state that the device updates, so that device and host finish
 * at the same time. It is rounded to two decimals, as in a run.
 */
export function predictGpuShare(setup: Setup, rates: Rates, cluster: Cluster): number {
  const ranksHere = countRanksOfMachine(setup, cluster);
  const host =
    hostAdamRate(rates, cluster.coresPerNode) / ranksHere / updateBytes(ADAM_ON_HOST, setup);
  const { crossing } = footprintIn('streamed', setup);
  const element = elementBytes(setup);
  const share = balancedShare({ host, link: rates.pcie }, { ...crossing, element });
  return Math.round(100 * share) / 100;
}

/** Seconds of an update of one rank's part of the state. */
interface UpdateTime {
  /** State on the device. */
  onDevice: number;
  /** Offloaded state, during device compute. */
  onHost: number;
}

function updateTime(sizes: ModelSizes, setup: Setup, rates: Rates, cluster: Cluster): UpdateTime {
  const { count: trained } = sizes.trained;
  const share = setup.stage === 0 ? 1 : 1 / setup.ranks;
  const away = setup.optimizer === 'device' ? 0 : setup.ratio;
  const onDevice = ((1 - away) * trained * share * updateBytes(ADAM, setup)) / rates.deviceMemory;
  const ranksHere = countRanksOfMachine(setup, cluster);
  const offloaded = away * trained * share;
  const hostAdam = hostAdamRate(rates, cluster.coresPerNode) / ranksHere;
  const ofThreads = setup.speculates
    ? updateBytes(ADAM_ON_HOST, setup)
    : updateBytes(ADAM_AFTERWARDS, setup) / UNDISTURBED;
  const byThreads = ((1 - setup.gpuShare) * offloaded * ofThreads) / hostAdam;
  const streamed = footprintIn('streamed', setup).crossing.state;
  const crossing = setup.gpuShare * streamed + (1 - setup.gpuShare) * elementBytes(setup);
  // Disk state is read and written during updates. All ranks of a machine share one disk.
  const state = offloaded * (setup.stateBytes + 4);
  const byDisk = setup.optimizer === 'nvme' ? (state * ranksHere) / rates.disk : 0;
  return { onDevice, onHost: Math.max(byThreads, byDisk, (offloaded * crossing) / rates.pcie) };
}

/** Returns the predicted seconds of one step, by cause. */
export function predictStepTime(
  modelSizes: ModelSizes,
  setup: Setup,
  rates: Rates,
  cluster: Cluster,
): StepTime {
  const sizes = sizesOfRank(modelSizes, setup);
  const isAlone = setup.ranks * setup.tensor * setup.stages === 1;
  const contention = isAlone ? 1 : CONTENTION;
  // Pipeline stages wait during the first and last micro-batches of other stages.
  const micros = setup.accumulation + setup.stages - 1;
  const compute = contention * micros * computeTime(sizes, setup, rates);
  const micro = compute / micros;
  const { onDevice, onHost } = updateTime(sizes, setup, rates, cluster);
  const unhidden = UNHIDDEN_EXCHANGE[`${setup.overlap}`];
  const shared = sharingTime(sizes, setup, rates, cluster);
  const arrivals = arrivalTime(sizes, setup, { rates, cluster, micro });
  const exposed = exchangeTime(sizes, setup, rates, cluster) * unhidden + shared + arrivals;
  const device = compute + onDevice;
  // Only the last micro-batch of an accumulation overlaps with the update.
  const hides = onDevice + (setup.speculates ? micro : FORWARD[`${setup.checkpointing}`] * micro);
  const overlapped =
    Math.max(hides, onHost) + UNHIDDEN[isAlone ? 'one' : 'several'] * Math.min(hides, onHost);
  const step = (onHost === 0 ? device : device - hides + overlapped) + exposed;
  return { compute, update: onDevice + onHost, exposed, step };
}
