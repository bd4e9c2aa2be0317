// How long a step takes by measured rates: a simulation in closed form, whose assumptions are the
// comments of this file.

import { balancedShare } from '../zero/home/processor-rates.js';
import { gathersOf } from './gathered-weights.js';
import {
  adamWStateBytes,
  bytesOfStreamed,
  elementBytes,
  joinsMasters,
  meanBytes,
  shareThatStays,
} from './memory.js';
import type { Elements, ModelSizes } from './model-sizes.js';
import { partOf } from './part-of-model.js';
import { hostAdamRate, type Rates } from './rates.js';
import type { Setup } from './setup.js';

/** Where ranks are. */
export interface Cluster {
  /** Machines. */
  nodes: number;
  /** Devices of each. */
  devicesPerNode: number;
  /** Cores of each. */
  coresPerNode: number;
  /** Bytes a second from one machine to another, of each. */
  nodeLink: number;
}

/** Seconds of one step, by what takes them. */
export interface StepTime {
  /** Forward and backward of all micro-batches on the device. */
  compute: number;
  /** The update, where it is. */
  update: number;
  /** Exchanges between ranks, and weights on their way from host memory, that nothing hides. */
  exposed: number;
  /** All of it. */
  step: number;
}

/** Reads and writes of one element of the stream by norms, additions and activations of a block. */
const PASSES = 34;
/** The same of one logit. */
const LOGIT_PASSES = 6;
/** The last product of a block is not computed again, nor what follows it: of its forward. */
const REPLAYED = 2 / 3;
/**
 * Bytes of memory that Adam moves for a parameter on the device, and on the host beside backward.
 */
const ADAM = 28;
const ADAM_ON_HOST = 30;
/**
 * Bytes that an update after the step decision moves there, and how much faster while nothing
 * comes.
 */
const ADAM_AFTERWARDS = 28;
const UNDISTURBED = 1.3;
/**
 * Bytes that an update moves for a parameter, of `f32` with moments in f32: those in bf16 are read
 * and written in half. That they are widened and rounded hides behind that.
 */
const updateBytes = (f32: number, { bf16States }: Setup): number =>
  f32 - 2 * (adamWStateBytes(false) - adamWStateBytes(bf16States));
/** Of a micro-batch's compute: what such an update hides behind. */
const FORWARD = { true: 1 / 4, false: 1 / 3 } as const;
/**
 * Of whichever of the device and the host is shorter, what the other does not hide: several ranks
 * publish their weights when all of them have been updated.
 */
const UNHIDDEN = { one: 0.15, several: 0.75 } as const;
/** Kernels beside collectives take longer. */
const CONTENTION = 1.04;
/** The same of collectives with overlap_comm and without. */
const UNHIDDEN_EXCHANGE = { true: 0.2, false: 1 } as const;
/** The same of weights from host memory, beside whichever is shorter: they or the compute. */
const UNHIDDEN_WEIGHTS = 0.4;
/** Tokens of a micro-batch at which products run at half their rate: fewer fill the device less. */
const HALF_RATE_TOKENS = 256;
/**
 * Passes of adapters over inputs and outputs of their layers, bytes of each in all: the two
 * products and the sum, forward and backward, and to f32 and back where they are wide.
 */
const ADAPTER_PASSES = {
  wide: { forward: 13, backward: 18 },
  plain: { forward: 5, backward: 7 },
} as const;
/** FP32 products run in TF32 nowhere: they are that much slower than 16-bit ones. */
const FP32 = 12;

/** Seconds of forward and backward of one micro-batch. */
function computeTime(sizes: ModelSizes, setup: Setup, rates: Rates): number {
  const { parameters, idle, root, layers, attentionWidth, channels, trained, packed } = sizes;
  const { paddedVocabulary, vocabulary } = sizes;
  const tokens = setup.microBatch * setup.seq;
  const slower = setup.precision === 'fp32' ? FP32 : 1;
  const filled = tokens / (tokens + HALF_RATE_TOKENS);
  const headWeights = vocabulary * channels;
  const forward = 2 * (parameters - idle - root - packed.elements + packed.count) * tokens;
  const head = 2 * headWeights * tokens;
  const replayed = setup.checkpointing ? REPLAYED * forward : 0;
  // Frozen weights have no gradient: what learns are adapters, whose products are those of f32.
  const isWhole = trained.count >= sizes.weights.count;
  const ofWeights = isWhole ? forward : 0;
  const ofHead = trained.hasHead ? head : 0;
  const all = 2 * forward + ofWeights + 2 * head + ofHead + replayed;
  const products = all / ((rates.matmul * filled) / slower);
  const beside = isWhole ? 0 : adapterTime(sizes, setup, rates);
  // Half of the scores are above the diagonal.
  const scores = 2 * tokens * setup.seq * attentionWidth * layers;
  const again = setup.checkpointing ? 2 : 1;
  const attention =
    (again * scores) / (rates.attention.forward / slower) +
    (2.5 * scores) / (rates.attention.backward / slower);
  const passes = PASSES * (setup.checkpointing ? 1.25 : 1);
  const streamed = layers * tokens * channels * passes + tokens * paddedVocabulary * LOGIT_PASSES;
  return products + attention + beside + (streamed * elementBytes(setup)) / rates.deviceMemory;
}

/**
 * Seconds of what adapters compute beside frozen layers in one micro-batch, and of making weights
 * in few bits whole for each of their products.
 */
function adapterTime(
  { trained, packed, adapters }: ModelSizes,
  setup: Setup,
  rates: Rates,
): number {
  const { microBatch, seq, checkpointing, precision } = setup;
  const tokens = microBatch * seq;
  const again = checkpointing ? 2 : 1;
  const isWide = adapters.perToken > 0 || precision === 'fp32';
  const macs = (again + 2) * (trained.count - trained.root) * tokens;
  const products = (2 * macs * (isWide ? FP32 : 1)) / rates.matmul;
  const { forward, backward } = ADAPTER_PASSES[isWide ? 'wide' : 'plain'];
  const passes = tokens * adapters.streamed * (again * forward + backward);
  const made = (again + 1) * (packed.bytes + packed.count * elementBytes(setup));
  return products + (passes + made) / rates.deviceMemory;
}

/** All ranks of one machine, whatever they share. */
export function ranksOfMachine({ ranks, copies, tensor, stages }: Setup, at: Cluster): number {
  return Math.min(ranks * copies * tensor * stages, at.devicesPerNode);
}

/** Bytes a second of a rank's collectives with ranks of other machines, where there are any. */
function slowestLink(setup: Setup, rates: Rates, at: Cluster): number {
  const ofRank = at.nodeLink / ranksOfMachine(setup, at);
  return at.nodes > 1 ? Math.min(rates.link, ofRank) : rates.link;
}

/**
 * Seconds of what ranks that share layers out tell each other in one step, which nothing hides: two
 * all-reduces of a block's output in the forward and two in the backward, and of what is computed
 * again two more (Megatron-LM, section 3); between stages one output for each micro-batch and way.
 * Ranks that share a layer are of one machine where they fit there.
 */
function sharingTime(sizes: ModelSizes, setup: Setup, rates: Rates, at: Cluster): number {
  const { tensor, stages, accumulation } = setup;
  const output = setup.microBatch * setup.seq * sizes.channels * elementBytes(setup);
  const within = tensor <= at.devicesPerNode ? rates.link : slowestLink(setup, rates, at);
  const reductions = (setup.checkpointing ? 6 : 4) * sizes.layers;
  const layers = (reductions * 2 * output * (tensor - 1)) / tensor / within;
  const between = stages > 1 ? (2 * output) / slowestLink(setup, rates, at) : 0;
  return accumulation * (layers + between);
}

/**
 * Seconds of one step in which the device waits for weights that live in host memory: each
 * micro-batch has its rank's part of them come for the forward, and again for the backward but for
 * those that stay.
 */
function arrivalTime(sizes: ModelSizes, setup: Setup, rates: Rates, micro: number): number {
  if (setup.weights === 'device') return 0;
  const { weights, trained } = sizes;
  const count = weights.count - shareThatStays(setup) * trained.count;
  const elements = (count * gathersOf(sizes, setup).perMicroBatch) / sizes.parameters;
  const arriving = (elements * meanBytes(weights, setup)) / setup.ranks / rates.pcie;
  const hidden = Math.min(micro, arriving);
  return setup.accumulation * (arriving - (1 - UNHIDDEN_WEIGHTS) * hidden);
}

/** Seconds of exchanges between the ranks in one step, hidden or not. */
function exchangeTime(sizes: ModelSizes, setup: Setup, rates: Rates, at: Cluster): number {
  if (setup.ranks === 1) return 0;
  const slowest = slowestLink(setup, rates, at);
  const of = (elements: Elements): number =>
    (elements.count * meanBytes(elements, setup) * (setup.ranks - 1)) / setup.ranks / slowest;
  const learnt = of(sizes.trained);
  const { stage, accumulation } = setup;
  if (stage < 2) return 2 * learnt;
  if (stage === 2) return (accumulation + 1) * learnt;
  const gathers = gathersOf(sizes, setup).perMicroBatch / sizes.parameters;
  return accumulation * (gathers * of(sizes.weights) + learnt);
}

/**
 * The share of offloaded state that the device updates when both processors are done together, as a
 * run finds it: two decimals.
 */
export function plannedGpuShare(setup: Setup, rates: Rates, at: Cluster): number {
  const ranksHere = ranksOfMachine(setup, at);
  const host = hostAdamRate(rates, at.coresPerNode) / ranksHere / updateBytes(ADAM_ON_HOST, setup);
  const element = elementBytes(setup);
  const gathered = setup.weights === 'device' || joinsMasters(setup) ? 0 : element;
  const crossing = { state: bytesOfStreamed(setup), element, gathered };
  const share = balancedShare({ host, link: rates.pcie }, crossing);
  return Math.round(100 * share) / 100;
}

/** Seconds of one update of `sizes`, the part that a rank has. */
interface UpdateTime {
  /** Of what the device keeps. */
  onDevice: number;
  /** Of what is offloaded, beside what the device computes. */
  onHost: number;
}

function updateTime(sizes: ModelSizes, setup: Setup, rates: Rates, at: Cluster): UpdateTime {
  const { count: trained } = sizes.trained;
  const share = setup.stage === 0 ? 1 : 1 / setup.ranks;
  const away = setup.optimizer === 'device' ? 0 : setup.ratio;
  const onDevice = ((1 - away) * trained * share * updateBytes(ADAM, setup)) / rates.deviceMemory;
  const ranksHere = ranksOfMachine(setup, at);
  const offloaded = away * trained * share;
  const hostAdam = hostAdamRate(rates, at.coresPerNode) / ranksHere;
  const ofThreads = setup.speculates
    ? updateBytes(ADAM_ON_HOST, setup)
    : updateBytes(ADAM_AFTERWARDS, setup) / UNDISTURBED;
  const byThreads = ((1 - setup.gpuShare) * offloaded * ofThreads) / hostAdam;
  const streamed = bytesOfStreamed(setup);
  const crossing = setup.gpuShare * streamed + (1 - setup.gpuShare) * elementBytes(setup);
  // State on a disk comes and goes beside its updates, of all ranks of a machine through one disk.
  const state = offloaded * (setup.stateBytes + 4);
  const byDisk = setup.optimizer === 'nvme' ? (state * ranksHere) / rates.disk : 0;
  return { onDevice, onHost: Math.max(byThreads, byDisk, (offloaded * crossing) / rates.pcie) };
}

/** Seconds of one step of `whole` by `setup`, on devices of `rates`. */
export function stepTime(whole: ModelSizes, setup: Setup, rates: Rates, at: Cluster): StepTime {
  const sizes = partOf(whole, setup);
  const isAlone = setup.ranks * setup.tensor * setup.stages === 1;
  const beside = isAlone ? 1 : CONTENTION;
  // Stages wait for the first and the last micro-batches of the others.
  const micros = setup.accumulation + setup.stages - 1;
  const compute = beside * micros * computeTime(sizes, setup, rates);
  const micro = compute / micros;
  const { onDevice, onHost } = updateTime(sizes, setup, rates, at);
  const unhidden = UNHIDDEN_EXCHANGE[`${setup.overlap}`];
  const shared = sharingTime(sizes, setup, rates, at);
  const arrivals = arrivalTime(sizes, setup, rates, micro);
  const exposed = exchangeTime(sizes, setup, rates, at) * unhidden + shared + arrivals;
  const device = compute + onDevice;
  // All but the last micro-batch of an accumulation have nothing to update.
  const hides = onDevice + (setup.speculates ? micro : FORWARD[`${setup.checkpointing}`] * micro);
  const both =
    Math.max(hides, onHost) + UNHIDDEN[isAlone ? 'one' : 'several'] * Math.min(hides, onHost);
  const step = (onHost === 0 ? device : device - hides + both) + exposed;
  return { compute, update: onDevice + onHost, exposed, step };
}
