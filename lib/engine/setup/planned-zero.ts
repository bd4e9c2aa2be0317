// "auto" of stage and offload: what the ranks have, what the plan chooses of it, and the line that
// says so.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { CausalLM } from '../../models/index.js';
import type { Module } from '../../nn/module.js';
import { declaredState } from '../../optim/declared-state.js';
import { canExchange } from '../../optim/exchange.js';
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import {
  type Cluster,
  chooseWay,
  countsOf,
  H200,
  type ModelSizes,
  plannedGpuShare,
  type Setup,
  setupOfConfig,
  sizesOf,
  usedShare,
  type Way,
  weighWay,
} from '../../plan/index.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { numel } from '../../runtime/view.js';
import type { Decisions } from '../engine-parts.js';
import { isCutOver } from './cut-layers.js';
import { speculates } from './master-halves.js';
import { notice, waiting } from './memory-promise.js';
import { choiceLine, refusal } from './planned-report.js';
import { clusterOf, roomOf, standingOf } from './planned-room.js';
import { exchanged } from './setup-world.js';
import { shardSizes } from './shard-sizes.js';
import { NoOptimizer } from './untrained.js';

/** What a configuration leaves to the plan. */
export interface Planned {
  /** Dotted paths of the keys that ask it. */
  readonly keys: ReadonlySet<string>;
  /** All that it may choose from. */
  readonly configs: readonly [ResolvedConfig, ...ResolvedConfig[]];
  /** Tokens of a sample; undefined where nobody says it. */
  readonly sequenceLength: number | undefined;
}

/** A model as it was before its layers were shared out. */
export interface Measured {
  sizes: ModelSizes;
  /** Whether it is a language model, whose activations are known. */
  isKnown: boolean;
  checkpointing: boolean;
  /** Whether each rank has a part of its layers already. */
  isCut: boolean;
}

/** Counts `module`, without touching it. */
export function measured(module: Module, job: Distributed): Measured {
  const isKnown = module instanceof CausalLM;
  return {
    sizes: isKnown ? sizesOf(module) : countsOf(module),
    isKnown,
    checkpointing: isKnown && module.config.activationCheckpointing === true,
    isCut: isCutOver(job, module),
  };
}

/**
 * The configuration that the plan chooses, the same on every rank: what each has is shared, and the
 * least counts. Rank 0 prints it. Throws DS_OUT_OF_MEMORY on every rank alike where none fits;
 * DS_COMM.
 */
export async function choosePlanned(
  job: Distributed,
  asked: Decisions,
  { configs, sequenceLength }: Planned,
  model: Measured,
): Promise<ResolvedConfig> {
  const possible = configs.filter((config) => isPossible(config, asked, job));
  // Where no configuration seems possible, building the chosen one gives the exact error.
  const left = possible.length > 0 ? possible : configs;
  const { best, leanest, context } = await choice(job, asked, left, { model, sequenceLength });
  if (!best) throw refusal(leanest, context);
  if (job.rank === 0) {
    process.stdout.write(`${choiceLine(best, context)}\n`);
    for (const text of best.config.notices) notice(text);
  }
  return best.config;
}

/**
 * The configuration for weights and state in host memory where `super_offload` is left open. Where
 * the device has no room to try updates out with its share of them, and the plan expects faster
 * steps after the step decision, updates wait. The same on every rank; rank 0 gives a notice.
 * Rejects with DS_COMM.
 */
export async function chooseUpdates(
  job: Distributed,
  asked: Decisions,
  measure: () => Measured,
): Promise<ResolvedConfig> {
  const { config, optimizer } = asked;
  const { device } = job.world;
  const { stage, offload_optimizer: state, offload_param: param } = config.zero_optimization;
  const inHost = stage === 3 && param.device === 'cpu' && state.device === 'cpu';
  const isOpen = state.super_offload === null && device.kind !== 'cpu';
  if (!inHost || !isOpen || !speculates({ config, optimizer, device })) return config;
  const tried = state.gpu_share === null ? [config, withoutShare(config)] : [config];
  const ways = [...tried, ...tried.map(waiting)];
  const facts = { model: measure(), sequenceLength: undefined };
  const { best, firstFits } = await choice(job, asked, ways, facts);
  if (firstFits || !best || best.setup.speculates || best.step === null) return config;
  if (job.rank === 0) {
    notice(
      'initialize: updates wait until backward has ended ("super_offload": false), which the plan ' +
        'expects to be faster: the device has no room to try them out with its share of them. "super_offload": true tries them out.',
    );
  }
  return waiting(config);
}

function withoutShare(config: ResolvedConfig): ResolvedConfig {
  const zero = config.zero_optimization;
  const offload = Object.freeze({ ...zero.offload_optimizer, gpu_share: 0 });
  const settled = Object.freeze({ ...zero, offload_optimizer: offload });
  return Object.freeze({ ...config, zero_optimization: settled });
}

/** What the plan makes of `configs` with what all ranks have. */
async function choice(
  job: Distributed,
  asked: Decisions,
  configs: readonly ResolvedConfig[],
  { model, sequenceLength }: { model: Measured; sequenceLength: number | undefined },
) {
  const { device } = job.world;
  const own = standingOf(asked.module, asked.config, device);
  const standings = await exchanged(job, own);
  const cluster = clusterOf(standings);
  const seq = model.isKnown ? (sequenceLength ?? Math.min(1024, model.sizes.maxSeq)) : 1;
  const facts = { job, asked, model, cluster, seq };
  const ways = configs.map(
    (config): Way<ResolvedConfig> => ({ config, setup: setupOf(config, facts) }),
  );
  const isHost = device.kind === 'cpu';
  const room = roomOf(standings);
  const sizes = trainedBy(asked.optimizer, model.sizes);
  const { isKnown } = model;
  const weights = { sizes, knowsActivations: isKnown, isHost, cluster, rates: H200, room };
  const context = { room, isHost, isKnown, deviceName: own.deviceName, ranks: job.worldSize };
  const first = weighWay(ways[0] as Way<ResolvedConfig>, weights);
  const firstFits = usedShare(first, weights, room.host) <= 1;
  return { ...chooseWay(ways, weights), firstFits, context };
}

/**
 * Whether the optimizer and the model's stages can be trained so; see requireExchange() and others.
 */
function isPossible(
  { zero_optimization: { stage } }: ResolvedConfig,
  { optimizer, plan }: Decisions,
  { mesh }: Distributed,
): boolean {
  if (stage === 0) return true;
  if (canExchange(optimizer)) return false;
  if (plan && (stage === 3 || (mesh.size('dp') > 1 && stage > 1))) return false;
  const wantsWhole = optimizer.groups.some((_, group) => optimizer.needsWholeParameters?.(group));
  return !wantsWhole || canSum(optimizer) || canGather(optimizer) || mesh.size('dp', 'sp') === 1;
}

interface Facts {
  job: Distributed;
  asked: Decisions;
  model: Measured;
  cluster: Cluster;
  seq: number;
}

/** What the plan has to know of a configuration. */
function setupOf(config: ResolvedConfig, { job, asked, model, cluster, seq }: Facts): Setup {
  const { mesh, world } = job;
  const { optimizer } = asked;
  const { offload_optimizer: state } = config.zero_optimization;
  const all = mesh.size('dp', 'sp');
  const ranks = shardSizes(config).copy ?? all;
  const setup = setupOfConfig(config, {
    ...{ ranks, copies: all / ranks },
    tensor: model.isCut ? 1 : mesh.size('tp'),
    stages: mesh.size('pp'),
    speculates: speculates({ config, optimizer, device: world.device }),
    seq: Math.ceil(seq / mesh.size('sp')),
    checkpointing: model.checkpointing || optimizer instanceof NoOptimizer,
    stateBytes: stateBytesOf(optimizer),
  });
  const isMeasured = state.device === 'cpu' && world.device.kind !== 'cpu';
  if (state.gpu_share !== null || !isMeasured) return setup;
  return { ...setup, gpuShare: plannedGpuShare(setup, H200, cluster) };
}

/** Of the optimizer's state: the mean over the parameters that are trained. */
export function stateBytesOf(optimizer: Optimizer): number {
  let [bytes, elements] = [0, 0];
  for (const [group, { params }] of optimizer.groups.entries()) {
    for (const { shape } of params) {
      elements += numel(shape);
      for (const { shape: kept, dtype } of Object.values(declaredState(optimizer, group, shape))) {
        bytes += numel(kept) * dtypeSize(dtype);
      }
    }
  }
  return elements === 0 ? 0 : bytes / elements;
}

/** Where nothing is trained, nothing has gradients or state. */
export function trainedBy(optimizer: Optimizer, sizes: ModelSizes): ModelSizes {
  if (!(optimizer instanceof NoOptimizer)) return sizes;
  const none = { count: 0, own: { count: 0, bytes: 0 }, root: 0, block: 0, hasHead: false };
  return { ...sizes, trained: none };
}
