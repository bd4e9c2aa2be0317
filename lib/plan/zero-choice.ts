// What "auto" becomes: of the configurations that are left open, the fastest that fits.

import { type Memory, memoryOf, total } from './memory.js';
import type { ModelSizes } from './model-sizes.js';
import { AS_FAST, DEVICE_SPARE, DRIVER, HOST_SPARE } from './plan.js';
import type { Rates } from './rates.js';
import type { Place, Setup } from './setup.js';
import { type Cluster, stepTime } from './step-time.js';

/** A configuration that may be chosen, and what it says of a step. */
export interface Way<Config> {
  config: Config;
  setup: Setup;
}

/**
 * Bytes of each memory that one rank may have: the same for all ranks, those of the one with least.
 */
export interface Room {
  /** Of its device; null where that has no limit but the host's. */
  device: number | null;
  host: number;
  /** What the host may be given beyond what is free: a virtual machine's has no end. */
  hostAtMost: number;
  /** Of the disk that the configuration names. */
  disk: number;
}

/** What ways are weighed by. */
export interface Weights {
  sizes: ModelSizes;
  /** Whether what its blocks keep is known; `sizes` has none of it otherwise. */
  knowsActivations: boolean;
  /** Whether the device is the host's processors, whose memory it shares. */
  isHost: boolean;
  cluster: Cluster;
  rates: Rates;
  room: Room;
}

/** A way, and what it needs of a rank's memories, with the margins of a plan. */
export interface Weighed<Config> extends Way<Config> {
  memory: Memory;
  device: number;
  host: number;
  disk: number;
  /** Seconds of a step; null where nothing foretells them. */
  step: number | null;
}

/**
 * Without knowing activations, the share of a device that weights, gradients and state may take.
 */
const LEFT_TO_ACTIVATIONS = 0.5;

const DISTANCE: Record<Place, number> = { device: 0, cpu: 1, nvme: 2 };

/**
 * The best of `ways`, or none, and the one that needs least. Ways that fit leave the margins of
 * `ds plan`, and where activations are unknown half of the device. The fastest of them is taken, of
 * those that are as fast the one that moves least away from the device, and then shares least out;
 * where no time can be foretold, that one alone. Where none fits so, the one that needs least is
 * taken if it fits at all: activations may be small, and a virtual machine be given more.
 */
export function chooseWay<Config>(
  ways: readonly Way<Config>[],
  weights: Weights,
): { best: Weighed<Config> | null; leanest: Weighed<Config> } {
  const { room, knowsActivations } = weights;
  const open = weights.isHost ? inPlace(ways) : ways;
  const weighed = open.toSorted(byDistance).map((way) => weighWay(way, weights));
  const share = knowsActivations ? 1 : LEFT_TO_ACTIVATIONS;
  const fitting = weighed.filter((one) => usedShare(one, weights, room.host, share) <= 1);
  const fastest = Math.min(...fitting.map(({ step }) => step ?? 0));
  const best = fitting.find(({ step }) => AS_FAST * (step ?? 0) <= fastest);
  const used = (one: Weighed<Config>): number => usedShare(one, weights, room.hostAtMost);
  const leanest = weighed.reduce((least, one) => (used(one) < used(least) ? one : least));
  return { best: best ?? (used(leanest) <= 1 ? leanest : null), leanest };
}

/** What is moved to the host is there already where the host computes, but for a disk. */
function inPlace<Config>(ways: readonly Way<Config>[]): readonly Way<Config>[] {
  const staying = ways.filter(
    ({ setup: { optimizer, weights } }) => optimizer !== 'cpu' && weights !== 'cpu',
  );
  return staying.length > 0 ? staying : ways;
}

/** The less is moved the nearer, and then the less is shared out. */
function byDistance({ setup: a }: Way<unknown>, { setup: b }: Way<unknown>): number {
  return (
    DISTANCE[a.optimizer] - DISTANCE[b.optimizer] ||
    DISTANCE[a.weights] - DISTANCE[b.weights] ||
    a.ratio - b.ratio ||
    a.stage - b.stage ||
    Number(b.speculates) - Number(a.speculates) ||
    b.gpuShare - a.gpuShare
  );
}

/** What a way needs, and how long its step takes where that is foretold. */
export function weighWay<Config>(way: Way<Config>, weights: Weights): Weighed<Config> {
  const { sizes, knowsActivations, isHost, cluster, rates } = weights;
  const memory = memoryOf(sizes, way.setup);
  const isForetold = knowsActivations && !isHost;
  return {
    ...way,
    memory,
    device: total(memory.device) * DEVICE_SPARE + (isHost ? 0 : DRIVER),
    host: total(memory.host) * HOST_SPARE,
    disk: memory.disk,
    step: isForetold ? stepTime(sizes, way.setup, rates, cluster).step : null,
  };
}

/**
 * Of the memory that is scarcest, the share that a way needs; above 1 it does not fit. `share`:
 * what of a device it may take.
 */
export function usedShare(
  { device, host, disk }: Weighed<unknown>,
  { room, isHost }: Weights,
  hostRoom: number,
  share = 1,
): number {
  const ofHost = isHost ? device / share + host : host;
  const ofDevice = room.device === null ? 0 : device / share / room.device;
  return Math.max(ofDevice, ofHost / hostRoom, disk > room.disk ? Infinity : 0);
}
