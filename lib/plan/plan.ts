// Enumerates stages and offloads, predicts memory and time, and selects the fastest that fits.

import type { DsConfig } from '../../types/config.js';
import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';
import { type Memory, predictMemory, totalBytes } from './memory.js';
import { type ModelSizes, requireLength } from './model-sizes.js';
import { adamWFacts } from './optimizer-facts.js';
import type { Rates } from './rates.js';
import { plainSetup, type Setup } from './setup.js';
import {
  type Cluster,
  countRanksOfMachine,
  predictGpuShare,
  predictStepTime,
  type StepTime,
} from './step-time.js';

/** The hardware and the training job. */
export interface PlanRequest {
  sizes: ModelSizes;
  /** Samples of a rank per step: micro-batch times accumulation. */
  batch: number;
  seq: number;
  precision: Setup['precision'];
  cluster: Cluster;
  /** Memory of one device in bytes. */
  deviceMemory: number;
  /** Memory of one machine in bytes. */
  hostMemory: number;
  /** Disk space of one machine in bytes; 0 without a disk. */
  diskMemory: number;
  /** Upper limits of tensor-parallel ranks and pipeline stages. */
  max: { tensor: number; stages: number };
  rates: Rates;
  /** A sentence for reports that explains the choice of the GPU. */
  note?: string;
  /** bf16.bf16_optimizer_states: AdamW's moments are bf16. */
  bf16States: boolean;
}

/** A setup with its predicted memory and time. */
export interface Candidate {
  setup: Setup;
  memory: Memory;
  /** Total bytes of a rank's device and of a machine's memory. */
  device: number;
  host: number;
  /** Bytes of a machine's disk. */
  disk: number;
  fits: boolean;
  time: StepTime;
  tokensPerSecond: number;
}

/** Fitting candidates from the fastest to the slowest, then the others. */
export interface Plan {
  candidates: readonly Candidate[];
  best: Candidate | null;
}

/** Margin for the memory pool, which keeps blocks of several sizes, and memory of the driver. */
const DEVICE_SPARE = 1.05;
const DRIVER = 0.6 * 2 ** 30;
const HOST_SPARE = 1.05;

/** Returns the bytes of each memory with its margin. `isHost`: the device is the CPU. */
export const addMargins = ({ device, host, disk }: Memory, isHost = false) => ({
  device: totalBytes(device) * DEVICE_SPARE + (isHost ? 0 : DRIVER),
  host: totalBytes(host) * HOST_SPARE,
  disk,
});

/** Candidates with at least this fraction of the highest speed count as equally fast. */
export const EQUAL_SPEED = 0.98;

/** Returns the pairs of tensor and pipeline sizes that divide the number of ranks. */
function listAxes({ cluster, sizes, max }: PlanRequest): Pick<Setup, 'tensor' | 'stages'>[] {
  const all = cluster.nodes * cluster.devicesPerNode;
  const upTo = (limit: number): number[] =>
    Array.from({ length: limit }, (_, i) => i + 1).filter((value) => all % value === 0);
  return upTo(Math.min(max.tensor, cluster.devicesPerNode)).flatMap((tensor) =>
    upTo(Math.min(max.stages, sizes.layers))
      .filter((stages) => all % (tensor * stages) === 0)
      .filter(() => sizes.attentionWidth % tensor === 0)
      .map((stages) => ({ tensor, stages })),
  );
}

/** Returns the setups for each combination of parallelism, offload and checkpointing. */
function enumerateSetups(request: PlanRequest): Setup[] {
  const { cluster, rates } = request;
  const setups = listAxes(request).flatMap((axes) => enumerateSetupsOn(axes, request));
  return setups.flatMap((setup) => {
    if (setup.optimizer !== 'cpu') return [setup];
    const variants = [setup, { ...setup, gpuShare: predictGpuShare(setup, rates, cluster) }];
    return [...variants, ...variants.map((way) => ({ ...way, speculates: false }))];
  });
}

/**
 * Returns the setups with these parallel sizes. The global batch stays constant: with tensor or
 * pipeline parallelism, each data rank gets more samples.
 */
function enumerateSetupsOn(axes: Pick<Setup, 'tensor' | 'stages'>, request: PlanRequest): Setup[] {
  const { cluster, seq, precision, bf16States, diskMemory } = request;
  const modelRanks = axes.tensor * axes.stages;
  const ranks = (cluster.nodes * cluster.devicesPerNode) / modelRanks;
  const batch = request.batch * modelRanks;
  const { stateBytes, canSplit } = adamWFacts(bf16States);
  const state = { bf16States, stateBytes, canSplit };
  const common = { ...plainSetup, ...axes, ...state, ranks, seq, precision };
  // Pipeline stages keep whole gradients, so ZeRO stages above 1 are unavailable.
  const atMost = axes.stages > 1 ? 1 : 3;
  const upTo = (stages: readonly Setup['stage'][]) => stages.filter((stage) => stage <= atMost);
  const stages = upTo(ranks > 1 ? [0, 1, 2, 3] : [0]);
  const offloading = upTo(ranks > 1 ? [1, 2, 3] : axes.stages > 1 ? [1] : [2]);
  return listHalves(batch).flatMap((microBatch) =>
    [false, true].flatMap((checkpointing): Setup[] => {
      const base = { ...common, microBatch, accumulation: batch / microBatch, checkpointing };
      const offloaded = { ...base, stage: 3, weights: 'cpu', optimizer: 'cpu' } as const;
      return [
        ...stages.map((stage) => ({ ...base, stage })),
        ...offloading.flatMap((stage) => [
          ...[0.25, 0.5, 0.75, 1].map(
            (ratio) => ({ ...base, stage, optimizer: 'cpu', ratio }) as const,
          ),
          ...(diskMemory > 0 ? [{ ...base, stage, optimizer: 'nvme' } as const] : []),
        ]),
        ...(atMost === 3 ? [offloaded] : []),
        ...(atMost === 3 && diskMemory > 0 ? [{ ...offloaded, optimizer: 'nvme' } as const] : []),
      ];
    }),
  );
}

/** Returns `batch` and its integer halves. */
function listHalves(batch: number): number[] {
  const halves = [batch];
  while (required(halves.at(-1)) % 2 === 0) halves.push(required(halves.at(-1)) / 2);
  return halves;
}

/** Returns a setup with its predicted memory and time. */
export function predictCandidate(
  request: Omit<PlanRequest, 'batch' | 'seq'>,
  setup: Setup,
): Candidate {
  const { sizes, cluster, rates } = request;
  const memory = predictMemory(sizes, setup);
  const { device, ...ofRank } = addMargins(memory);
  const ranksHere = countRanksOfMachine(setup, cluster);
  const [host, disk] = [ofRank.host * ranksHere, ofRank.disk * ranksHere];
  const time = predictStepTime(sizes, setup, rates, cluster);
  const samples = setup.ranks * setup.copies * setup.microBatch * setup.accumulation;
  const isInMemory = device <= request.deviceMemory && host <= request.hostMemory;
  const fits = isInMemory && disk <= request.diskMemory;
  return {
    setup,
    memory,
    device,
    host,
    disk,
    fits,
    time,
    tokensPerSecond: (samples * setup.seq) / time.step,
  };
}

/**
 * Returns all candidates in order. Among candidates within 2 % of the fastest, the first in the
 * enumeration is the best: it offloads and shards the least. Throws DS_ARGUMENT for an invalid
 * batch, length or device count.
 */
export function makePlan(request: PlanRequest): Plan {
  requirePositive('batch', request.batch);
  requirePositive('seq', request.seq);
  requirePositive('gpus', request.cluster.devicesPerNode);
  requirePositive('nodes', request.cluster.nodes);
  requireLength('plan', request.seq, request.sizes);
  const candidates = enumerateSetups(request).map((setup) => predictCandidate(request, setup));
  return rankCandidates(candidates);
}

/** Sorts candidates and selects the best: it may be up to 2 % slower than the first. */
export function rankCandidates(candidates: readonly Candidate[]): Plan {
  const fitting = candidates.filter(({ fits }) => fits);
  const fastest = Math.max(0, ...fitting.map(({ tokensPerSecond }) => tokensPerSecond));
  const best =
    fitting.find(({ tokensPerSecond }) => tokensPerSecond > EQUAL_SPEED * fastest) ?? null;
  const rank = (candidate: Candidate): number =>
    candidate.fits ? candidate.tokensPerSecond : -candidate.device;
  return { candidates: candidates.toSorted((a, b) => rank(b) - rank(a)), best };
}

function requirePositive(name: string, value: number): void {
  if (Number.isSafeInteger(value) && value > 0) return;
  const expected = 'a positive whole number';
  throw new DsError({ code: 'DS_ARGUMENT', op: `plan ${name}`, expected, got: `${value}` });
}

/** Placeholder for a folder on a local disk. */
const NVME_PATH = '/nvme';

/** Returns the ds_config.json of a candidate. Checkpointing is an option of the model instead. */
export function buildConfig({ setup }: Candidate): DsConfig {
  const { stage, optimizer, weights, ratio, precision, microBatch, accumulation, overlap } = setup;
  const { gpuShare: gpu_share, speculates, tensor, stages, ranks, bf16States } = setup;
  const sections = {
    ...(precision !== 'fp32' && { [precision]: { enabled: true } }),
    ...(bf16States && { bf16: { enabled: precision === 'bf16', bf16_optimizer_states: true } }),
  };
  const pinned = { device: 'cpu', pin_memory: true } as const;
  return {
    train_micro_batch_size_per_gpu: microBatch,
    gradient_accumulation_steps: accumulation,
    optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
    gradient_clipping: 1,
    ...(tensor > 1 && { tensor_parallel: { autotp_size: tensor } }),
    ...(stages > 1 && { pipeline: { stages } }),
    ...sections,
    zero_optimization: {
      stage,
      ...((stage > 0 || ranks > 1) && { overlap_comm: overlap }),
      ...(optimizer === 'cpu' && {
        offload_optimizer: {
          ...pinned,
          ...(ratio < 1 && { ratio }),
          gpu_share,
          ...(!speculates && { super_offload: false }),
        },
      }),
      ...(optimizer === 'nvme' && {
        offload_optimizer: { device: 'nvme', nvme_path: NVME_PATH },
      }),
      ...(weights === 'cpu' && { offload_param: pinned }),
    },
  } as DsConfig;
}
