// A plan: every stage and offload that there is, what each needs and takes, and the best that fits.

import type { DsConfig } from '../../types/config.js';
import { DsError } from '../errors.js';
import { adamWStateBytes, type Memory, memoryOf, total } from './memory.js';
import { type ModelSizes, requireLength } from './model-sizes.js';
import type { Rates } from './rates.js';
import { plainSetup, type Setup } from './setup.js';
import {
  type Cluster,
  plannedGpuShare,
  ranksOfMachine,
  type StepTime,
  stepTime,
} from './step-time.js';

/** What there is, and what is to be trained on it. */
export interface PlanRequest {
  sizes: ModelSizes;
  /** Samples of a rank's step: micro-batch times accumulation. */
  batch: number;
  seq: number;
  precision: Setup['precision'];
  cluster: Cluster;
  /** Bytes of one device's memory. */
  deviceMemory: number;
  /** Bytes of one machine's. */
  hostMemory: number;
  /** Bytes of one machine's disk; 0 where none is to be used. */
  diskMemory: number;
  /** At most so many ranks share each layer out, and at most so many stages a model. */
  most: { tensor: number; stages: number };
  rates: Rates;
  /** bf16.bf16_optimizer_states: AdamW's moments are bf16. */
  bf16States: boolean;
}

/** One way to train, weighed. */
export interface Candidate {
  setup: Setup;
  memory: Memory;
  /** Bytes of a rank's device and of a machine's memory, in all. */
  device: number;
  host: number;
  /** Of a machine's disk. */
  disk: number;
  fits: boolean;
  time: StepTime;
  tokensPerSecond: number;
}

/** Ways from the fastest to the slowest of those that fit, and then the others. */
export interface Plan {
  candidates: readonly Candidate[];
  best: Candidate | null;
}

/** The pool keeps blocks of several sizes, and the driver has memory of its own. */
export const DEVICE_SPARE = 1.05;
export const DRIVER = 0.6 * 2 ** 30;
export const HOST_SPARE = 1.05;
/** Ways that take no longer than others by more are as fast. */
export const AS_FAST = 0.98;

/**
 * Ways to share a model out between ranks, each of which leaves a whole number that share a batch.
 */
function axesOf({ cluster, sizes, most }: PlanRequest): Pick<Setup, 'tensor' | 'stages'>[] {
  const all = cluster.nodes * cluster.devicesPerNode;
  const upTo = (limit: number): number[] =>
    Array.from({ length: limit }, (_, i) => i + 1).filter((one) => all % one === 0);
  return upTo(Math.min(most.tensor, cluster.devicesPerNode)).flatMap((tensor) =>
    upTo(Math.min(most.stages, sizes.layers))
      .filter((stages) => all % (tensor * stages) === 0)
      .filter(() => sizes.attentionWidth % tensor === 0)
      .map((stages) => ({ tensor, stages })),
  );
}

/** A candidate for each way to share out, place of state and weights, and of activations. */
function setupsOf(request: PlanRequest): Setup[] {
  const { cluster, rates } = request;
  const found = axesOf(request).flatMap((axes) => setupsOn(axes, request));
  return found.flatMap((one) => {
    if (one.optimizer !== 'cpu') return [one];
    const both = [one, { ...one, gpuShare: plannedGpuShare(one, rates, cluster) }];
    return [...both, ...both.map((way) => ({ ...way, speculates: false }))];
  });
}

/**
 * The batch is that of all ranks together: where they share layers, each of fewer has more of it.
 */
function setupsOn(axes: Pick<Setup, 'tensor' | 'stages'>, request: PlanRequest): Setup[] {
  const { cluster, seq, precision, bf16States, diskMemory } = request;
  const sharing = axes.tensor * axes.stages;
  const ranks = (cluster.nodes * cluster.devicesPerNode) / sharing;
  const batch = request.batch * sharing;
  const state = { bf16States, stateBytes: adamWStateBytes(bf16States) };
  const common = { ...plainSetup, ...axes, ...state, ranks, seq, precision };
  // Gradients of stages wait in whole: see pipelines.
  const atMost = axes.stages > 1 ? 1 : 3;
  const upTo = (stages: readonly Setup['stage'][]) => stages.filter((stage) => stage <= atMost);
  const stages = upTo(ranks > 1 ? [0, 1, 2, 3] : [0]);
  const offloading = upTo(ranks > 1 ? [1, 2, 3] : axes.stages > 1 ? [1] : [2]);
  return halvesOf(batch).flatMap((microBatch) =>
    [false, true].flatMap((checkpointing): Setup[] => {
      const one = { ...common, microBatch, accumulation: batch / microBatch, checkpointing };
      const whole = { ...one, stage: 3, weights: 'cpu', optimizer: 'cpu' } as const;
      return [
        ...stages.map((stage) => ({ ...one, stage })),
        ...offloading.flatMap((stage) => [
          ...[0.25, 0.5, 0.75, 1].map(
            (ratio) => ({ ...one, stage, optimizer: 'cpu', ratio }) as const,
          ),
          ...(diskMemory > 0 ? [{ ...one, stage, optimizer: 'nvme' } as const] : []),
        ]),
        ...(atMost === 3 ? [whole] : []),
        ...(atMost === 3 && diskMemory > 0 ? [{ ...whole, optimizer: 'nvme' } as const] : []),
      ];
    }),
  );
}

/** `batch`, and its halves as long as they are whole. */
function halvesOf(batch: number): number[] {
  const out = [batch];
  while ((out.at(-1) as number) % 2 === 0) out.push((out.at(-1) as number) / 2);
  return out;
}

/** Weighs one way. */
export function weigh(request: Omit<PlanRequest, 'batch' | 'seq'>, setup: Setup): Candidate {
  const { sizes, cluster, rates } = request;
  const memory = memoryOf(sizes, setup);
  const device = total(memory.device) * DEVICE_SPARE + DRIVER;
  const here = ranksOfMachine(setup, cluster);
  const host = total(memory.host) * HOST_SPARE * here;
  const disk = memory.disk * here;
  const time = stepTime(sizes, setup, rates, cluster);
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
 * All ways to train, best first. Of ways that are as fast, within 2 %, the one that moves and
 * shares out least comes first. Throws DS_ARGUMENT for a batch, a length or memory that is none.
 */
export function makePlan(request: PlanRequest): Plan {
  requireWhole('batch', request.batch);
  requireWhole('seq', request.seq);
  requireWhole('gpus', request.cluster.devicesPerNode);
  requireWhole('nodes', request.cluster.nodes);
  requireLength('plan', request.seq, request.sizes);
  const candidates = setupsOf(request).map((setup) => weigh(request, setup));
  return inOrder(candidates);
}

/** The best of what was weighed comes first. */
export function inOrder(candidates: readonly Candidate[]): Plan {
  const fitting = candidates.filter(({ fits }) => fits);
  const fastest = Math.max(0, ...fitting.map(({ tokensPerSecond }) => tokensPerSecond));
  const best = fitting.find(({ tokensPerSecond }) => tokensPerSecond > AS_FAST * fastest) ?? null;
  const rank = (one: Candidate): number =>
    one === best ? Infinity : one.fits ? one.tokensPerSecond : -one.device;
  return { candidates: candidates.toSorted((a, b) => rank(b) - rank(a)), best };
}

function requireWhole(name: string, value: number): void {
  if (Number.isSafeInteger(value) && value > 0) return;
  const expected = 'a positive whole number';
  throw new DsError({ code: 'DS_ARGUMENT', op: `plan ${name}`, expected, got: `${value}` });
}

/** A folder that a person replaces by one on a disk. */
const NVME_PATH = '/nvme';

/** The ds_config.json of a way; what checkpoints a model's blocks is the model's own option. */
export function configOf({ setup }: Candidate): DsConfig {
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
          ...{ ...pinned, ...(ratio < 1 && { ratio }), gpu_share },
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
