// Resolves "auto" in the ZeRO configuration to the fastest setup that fits.

import { type Memory, memoryOf } from './memory.js';
import type { ModelSizes } from './model-sizes.js';
import { AS_FAST, withMargins } from './plan.js';
import type { Rates } from './rates.js';
import type { Place, Setup } from './setup.js';
import { type Cluster, stepTime } from './step-time.js';

/** A candidate configuration and its setup. */
export interface CandidateSetup<Config> {
  config: Config;
  setup: Setup;
}

/** Available bytes of each memory for one rank: the minimum over all ranks. */
export interface Room {
  /** Device memory; null if only host memory limits the device. */
  device: number | null;
  host: number;
  /** Upper limit beyond the free host memory, since a virtual machine may grow. */
  hostAtMost: number;
  /** Space on the configured disk. */
  disk: number;
}

/** Inputs of the selection. */
export interface Weights {
  sizes: ModelSizes;
  /** True if `sizes` includes the activations of blocks. */
  knowsActivations: boolean;
  /** True if the device is the CPU, which shares host memory. */
  isHost: boolean;
  cluster: Cluster;
  rates: Rates;
  room: Room;
}

/** A candidate with its predicted bytes, including the margins of a plan. */
export interface CandidateMemory<Config> extends CandidateSetup<Config> {
  memory: Memory;
  device: number;
  host: number;
  disk: number;
  /** Seconds of a step; null if the prediction is unavailable. */
  step: number | null;
}

/** Fraction of device memory for weights, gradients and state if activations are unknown. */
const LEFT_TO_ACTIVATIONS = 0.5;

const DISTANCE: Record<Place, number> = { device: 0, cpu: 1, nvme: 2 };

/**
 * Returns the best candidate (or null) and the one with the smallest memory use.
 *
 *   1. A candidate fits if it leaves the margins of `ds plan`. With unknown activations, it may
 *      use half of the device.
 *   2. The fastest fitting candidate wins. Among equally fast ones, it offloads least, then shards
 *      least.
 *   3. Without a time prediction, only offload and sharding count.
 *   4. If no candidate fits with margins, the smallest one is taken if it fits without them.
 */
export function chooseWay<Config>(
  ways: readonly CandidateSetup<Config>[],
  weights: Weights,
): { best: CandidateMemory<Config> | null; leanest: CandidateMemory<Config> } {
  const { room, knowsActivations } = weights;
  const open = weights.isHost ? inPlace(ways) : ways;
  const weighed = open.toSorted(byDistance).map((way) => weighWay(way, weights));
  const share = knowsActivations ? 1 : LEFT_TO_ACTIVATIONS;
  const fitting = weighed.filter((item) => usedShare(item, weights, room.host, share) <= 1);
  const fastest = Math.min(...fitting.map(({ step }) => step ?? 0));
  const best = fitting.find(({ step }) => AS_FAST * (step ?? 0) <= fastest);
  const usedShareOf = (item: CandidateMemory<Config>): number =>
    usedShare(item, weights, room.hostAtMost);
  const leanest = weighed.reduce((min, item) =>
    usedShareOf(item) < usedShareOf(min) ? item : min,
  );
  return { best: best ?? (usedShareOf(leanest) <= 1 ? leanest : null), leanest };
}

/** On the CPU, offload to the CPU changes nothing, so these candidates are dropped. */
function inPlace<Config>(
  ways: readonly CandidateSetup<Config>[],
): readonly CandidateSetup<Config>[] {
  const staying = ways.filter(
    ({ setup: { optimizer, weights } }) => optimizer !== 'cpu' && weights !== 'cpu',
  );
  return staying.length > 0 ? staying : ways;
}

/** Orders candidates by the amount of offload, then of sharding. */
function byDistance(
  { setup: a }: CandidateSetup<unknown>,
  { setup: b }: CandidateSetup<unknown>,
): number {
  return (
    DISTANCE[a.optimizer] - DISTANCE[b.optimizer] ||
    DISTANCE[a.weights] - DISTANCE[b.weights] ||
    a.ratio - b.ratio ||
    a.stage - b.stage ||
    Number(b.speculates) - Number(a.speculates) ||
    b.gpuShare - a.gpuShare
  );
}

/** Predicts the memory of a candidate, and its time if possible. */
export function weighWay<Config>(
  way: CandidateSetup<Config>,
  weights: Weights,
): CandidateMemory<Config> {
  const { sizes, knowsActivations, isHost, cluster, rates } = weights;
  const memory = memoryOf(sizes, way.setup);
  const isPredicted = knowsActivations && !isHost;
  return {
    ...way,
    memory,
    ...withMargins(memory, isHost),
    step: isPredicted ? stepTime(sizes, way.setup, rates, cluster).step : null,
  };
}

/**
 * Returns the used fraction of the scarcest memory; above 1 the candidate does not fit. `share` is
 * the usable fraction of the device.
 */
export function usedShare(
  { device, host, disk }: CandidateMemory<unknown>,
  { room, isHost }: Weights,
  hostRoom: number,
  share = 1,
): number {
  const ofHost = isHost ? device / share + host : host;
  const ofDevice = room.device === null ? 0 : device / share / room.device;
  return Math.max(ofDevice, ofHost / hostRoom, disk > room.disk ? Infinity : 0);
}
