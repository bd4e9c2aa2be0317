// Chooses the fastest setup that fits in memory, for "auto" in the ZeRO configuration.

import { type Memory, predictMemory } from './memory.js';
import type { ModelSizes } from './model-sizes.js';
import { addMargins, EQUAL_SPEED } from './plan.js';
import type { Rates } from './rates.js';
import type { MemoryLocation, Setup } from './setup.js';
import { type Cluster, predictStepTime } from './step-time.js';

/** A candidate configuration and its setup. */
export interface CandidateSetup<Config> {
  config: Config;
  setup: Setup;
}

/** Available bytes of each memory for one rank: the minimum over all ranks. */
export interface AvailableMemory {
  /** Device memory; null if only host memory limits the device. */
  device: number | null;
  host: number;
  /** Upper limit of `host`, because a virtual machine may receive more memory. */
  hostAtMost: number;
  /** Space on the configured disk. */
  disk: number;
}

/** Inputs of the selection. */
export interface SelectionInputs {
  sizes: ModelSizes;
  /** Whether `sizes` includes the activations of blocks. */
  knowsActivations: boolean;
  /** Whether the device is the CPU, which shares host memory. */
  isHost: boolean;
  cluster: Cluster;
  rates: Rates;
  available: AvailableMemory;
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
const SHARE_WITHOUT_ACTIVATIONS = 0.5;

const DISTANCE: Record<MemoryLocation, number> = { device: 0, cpu: 1, nvme: 2 };

/**
 * Returns the best candidate (or null), and the candidate that uses the least memory.
 *
 *   1. A candidate fits if it leaves the margins of `ds plan`. With unknown activations, it may
 *      use half of the device.
 *   2. The best candidate is the fastest that fits; of equally fast candidates, the one that
 *      offloads least, then shards least.
 *   3. Without a time prediction, only offload and sharding count.
 *   4. If no candidate fits with margins, the best candidate is the smallest, if it fits without
 *      margins.
 */
export function chooseSetup<Config>(
  ways: readonly CandidateSetup<Config>[],
  inputs: SelectionInputs,
): { best: CandidateMemory<Config> | null; leanest: CandidateMemory<Config> } {
  const { available, knowsActivations } = inputs;
  const candidates = inputs.isHost ? dropCpuOffload(ways) : ways;
  const predicted = candidates.toSorted(compareOffload).map((way) => predictSetup(way, inputs));
  const share = knowsActivations ? 1 : SHARE_WITHOUT_ACTIVATIONS;
  const fitting = predicted.filter((item) => usedShare(item, inputs, available.host, share) <= 1);
  const fastest = Math.min(...fitting.map(({ step }) => step ?? 0));
  const best = fitting.find(({ step }) => EQUAL_SPEED * (step ?? 0) <= fastest);
  const usedShareOf = (item: CandidateMemory<Config>): number =>
    usedShare(item, inputs, available.hostAtMost);
  const leanest = predicted.reduce((min, item) =>
    usedShareOf(item) < usedShareOf(min) ? item : min,
  );
  return { best: best ?? (usedShareOf(leanest) <= 1 ? leanest : null), leanest };
}

/** Returns the candidates without CPU offload, which changes nothing on a CPU device. */
function dropCpuOffload<Config>(
  ways: readonly CandidateSetup<Config>[],
): readonly CandidateSetup<Config>[] {
  const staying = ways.filter(
    ({ setup: { optimizer, weights } }) => optimizer !== 'cpu' && weights !== 'cpu',
  );
  return staying.length > 0 ? staying : ways;
}

/** Compares candidates by the amount of offload, then of sharding. */
function compareOffload(
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

/** Returns a candidate with its predicted memory, and its time if the prediction is possible. */
export function predictSetup<Config>(
  way: CandidateSetup<Config>,
  inputs: SelectionInputs,
): CandidateMemory<Config> {
  const { sizes, knowsActivations, isHost, cluster, rates } = inputs;
  const memory = predictMemory(sizes, way.setup);
  const isPredicted = knowsActivations && !isHost;
  return {
    ...way,
    memory,
    ...addMargins(memory, isHost),
    step: isPredicted ? predictStepTime(sizes, way.setup, rates, cluster).step : null,
  };
}

/**
 * Returns the used fraction of the scarcest memory; above 1 the candidate does not fit. `share` is
 * the usable fraction of the device.
 */
export function usedShare(
  { device, host, disk }: CandidateMemory<unknown>,
  { available, isHost }: SelectionInputs,
  hostLimit: number,
  share = 1,
): number {
  const ofHost = isHost ? device / share + host : host;
  const ofDevice = available.device === null ? 0 : device / share / available.device;
  return Math.max(ofDevice, ofHost / hostLimit, disk > available.disk ? Infinity : 0);
}
