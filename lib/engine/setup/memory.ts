// Fits an engine to the memory of its ranks: chooses "auto" values, decides on speculation, and
// checks the memory before allocation. In the first run of `ds --autotuning`, it also writes a
// description of the model.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import { CausalLM } from '../../models/index.js';
import type { Module } from '../../nn/module.js';
import { canExchange } from '../../optim/exchange.js';
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import { formatChoice, nothingFitsError } from '../../plan/choice-report.js';
import {
  type CandidateSetup,
  chooseSetup,
  countSizes,
  factsOf,
  type JobMesh,
  type ModelInfo,
  type ModelSizes,
  predictSetup,
  ratesNamed,
  setupOfConfig,
  sizesOf,
  usedShare,
  writeResult,
} from '../../plan/index.js';
import { describeCluster, findAvailableMemory, measureRankMemory } from '../../plan/rank-memory.js';
import {
  type CountInputs,
  findShortages,
  findSpeculationShortage,
  formatNeeds,
  measureClaim,
  type Shortage,
  shortageError,
} from '../../plan/shortages.js';
import { notice } from '../../runtime/notice.js';
import { required } from '../../runtime/required.js';
import type { Decisions } from '../engine-parts.js';
import { type ModelAxes, shardCount, shardSizes } from '../ranks.js';
import type { BuildInputs, Planned } from './clients.js';
import { NoOptimizer } from './optimizer.js';
import { exchangeValues } from './setup-world.js';
import { isCutOver } from './tensor-parallel.js';

/** A model before its layers are divided between ranks. */
interface WholeModel {
  sizes: ModelSizes;
  /** Whether the activation memory is known. It is known for language models. */
  knowsActivations: boolean;
  checkpointing: boolean;
  /** Whether the caller has already divided its layers between ranks. */
  isCut: boolean;
}

/** Returns the sizes of `module`, and does not change it. */
export function measureModel(module: Module, job: Distributed): WholeModel {
  const knowsActivations = module instanceof CausalLM;
  return {
    sizes: knowsActivations ? sizesOf(module) : countSizes(module),
    knowsActivations,
    checkpointing: knowsActivations && module.config.activationCheckpointing === true,
    isCut: isCutOver(job, module),
  };
}

/**
 * Returns the configuration that the plan chooses for the rank with the least memory. All ranks
 * choose the same. Throws DS_OUT_OF_MEMORY on every rank if no candidate fits.
 */
export async function chooseConfig(
  job: Distributed,
  decisions: Decisions,
  { configs, sequenceLength }: Planned,
  model: WholeModel,
): Promise<ResolvedConfig> {
  const possible = configs.filter((config) => isPossible(config, decisions, job));
  // If no candidate is possible, building one of them throws an exact error.
  const left = possible.length > 0 ? possible : configs;
  const { best, leanest, context } = await chooseAmong(job, decisions, left, {
    model,
    sequenceLength,
  });
  if (!best) throw nothingFitsError(leanest, context);
  if (job.rank === 0) {
    process.stdout.write(`${formatChoice(best, context)}\n`);
    for (const text of best.config.notices) notice(text);
  }
  return best.config;
}

/**
 * Decides whether updates wait for the end of backward. They do if weights and state are in host
 * memory, `super_offload` is not set, the device lacks memory for speculation, and the plan expects
 * faster steps without it. All ranks decide the same.
 */
export async function chooseUpdates(
  job: Distributed,
  decisions: Decisions,
  measure: () => WholeModel,
): Promise<ResolvedConfig> {
  const { config, optimizer } = decisions;
  const { device } = job.world;
  const { stage, offload_optimizer: state, offload_param: param } = config.zero_optimization;
  const inHost = stage === 3 && param.device === 'cpu' && state.device === 'cpu';
  const isOpen = state.super_offload === null && device.kind !== 'cpu';
  if (!inHost || !isOpen) return config;
  if (!setupOfConfig(config, { optimizer: factsOf(optimizer) }).speculates) return config;
  const waiting = { super_offload: false };
  const choices =
    state.gpu_share === null ? [config, withOffload(config, { gpu_share: 0 })] : [config];
  const candidates = [...choices, ...choices.map((choice) => withOffload(choice, waiting))];
  const facts = { model: measure(), sequenceLength: undefined };
  const { best, firstFits } = await chooseAmong(job, decisions, candidates, facts);
  if (firstFits || !best || best.setup.speculates || best.step === null) return config;
  if (job.rank === 0) {
    notice(
      'initialize: updates wait until backward has ended ("super_offload": false). The plan expects ' +
        'faster steps so, because the device lacks memory for speculation with its share. "super_offload": true enables it.',
    );
  }
  return withOffload(config, waiting);
}

type Offload = ResolvedConfig['zero_optimization']['offload_optimizer'];

/**
 * Returns a copy of the configuration with changed values of offload_optimizer. It is frozen too.
 */
function withOffload(config: ResolvedConfig, changes: Partial<Offload>): ResolvedConfig {
  const zero = config.zero_optimization;
  const offload = Object.freeze({ ...zero.offload_optimizer, ...changes });
  const changed = Object.freeze({ ...zero, offload_optimizer: offload });
  return Object.freeze({ ...config, zero_optimization: changed });
}

/**
 * Returns the mesh for the plan. With `isCut`, the sizes already count one rank's part of the
 * layers.
 */
function jobMesh({ mesh }: Distributed, isCut: boolean): JobMesh {
  return {
    data: mesh.size(AXIS.data),
    tokens: mesh.size(AXIS.sequence),
    layers: isCut ? 1 : mesh.size(AXIS.tensor),
    stages: mesh.size(AXIS.pipeline),
  };
}

/** Returns the plan's choice among `configs`, for the memory of all ranks. */
async function chooseAmong(
  job: Distributed,
  decisions: Decisions,
  configs: readonly ResolvedConfig[],
  { model, sequenceLength }: { model: WholeModel; sequenceLength: number | undefined },
) {
  const { device } = job.world;
  const ownMemory = measureRankMemory(decisions.module, decisions.config, device);
  const rankMemories = await exchangeValues(job, ownMemory);
  const cluster = describeCluster(rankMemories);
  const seq = model.knowsActivations ? (sequenceLength ?? Math.min(1024, model.sizes.maxSeq)) : 1;
  // All ranks must choose the same, so the GPU of rank 0 decides.
  const rates = ratesNamed(rankMemories[0]?.card ?? '');
  const isHost = device.kind === 'cpu';
  const facts = {
    seq,
    isHost,
    hardware: { rates, cluster },
    mesh: jobMesh(job, model.isCut),
    optimizer: factsOf(decisions.optimizer),
    checkpointing: model.checkpointing || decisions.optimizer instanceof NoOptimizer,
  };
  const candidates = configs.map((config): CandidateSetup<ResolvedConfig> => {
    return { config, setup: setupOfConfig(config, facts) };
  });
  const available = findAvailableMemory(rankMemories);
  const sizes = sizesInTraining(decisions.optimizer, model.sizes);
  const { knowsActivations } = model;
  const weights = { sizes, knowsActivations, isHost, cluster, rates, available };
  const { deviceName } = ownMemory;
  const context = { available, isHost, knowsActivations, deviceName, ranks: job.worldSize, rates };
  const first = predictSetup(required(candidates[0]), weights);
  const firstFits = usedShare(first, weights, available.host) <= 1;
  return { ...chooseSetup(candidates, weights), firstFits, context };
}

/**
 * Returns whether the optimizer and the pipeline support the ZeRO stage. requireExchange() and
 * other checks throw the errors.
 */
function isPossible(
  { zero_optimization: { stage } }: ResolvedConfig,
  { optimizer, plan }: Decisions,
  { mesh }: Distributed,
): boolean {
  if (stage === 0) return true;
  if (canExchange(optimizer)) return false;
  if (plan && (stage === 3 || (mesh.size(AXIS.data) > 1 && stage > 1))) return false;
  const wantsWhole = optimizer.groups.some((_, group) => optimizer.needsWholeParameters?.(group));
  if (!wantsWhole || canSum(optimizer) || canGather(optimizer)) return true;
  return mesh.size(AXIS.data, AXIS.sequence) === 1;
}

/** Returns the sizes for this optimizer. Without training, there are no gradients and no state. */
function sizesInTraining(optimizer: Optimizer, sizes: ModelSizes): ModelSizes {
  if (!(optimizer instanceof NoOptimizer)) return sizes;
  const none = {
    count: 0,
    inFixedDtype: { count: 0, bytes: 0 },
    root: 0,
    block: 0,
    hasHead: false,
  };
  return { ...sizes, trained: none };
}

/**
 * Returns the path of the model description that the first run of autotuning writes. Returns null
 * for other runs.
 */
export function modelInfoPath({ autotuning }: ResolvedConfig): string | null {
  return autotuning.enabled && autotuning.model_info?.profile ? autotuning.model_info_path : null;
}

/**
 * Measures the model before its layers are divided. Returns null if neither the plan nor autotuning
 * needs the sizes.
 */
export function wholeModel({ module, config, job, planned }: BuildInputs): WholeModel | null {
  return planned || modelInfoPath(config) !== null ? measureModel(module, job) : null;
}

/**
 * In the first run of autotuning, rank 0 writes a description of the model, the job and the memory
 * of all ranks. Throws DS_IO if it cannot write the file.
 */
export async function describeModel(
  job: Distributed,
  { module, config, optimizer }: Decisions,
  model: WholeModel | null,
): Promise<void> {
  const file = modelInfoPath(config);
  if (file === null || model === null) return;
  const { sizes: whole, knowsActivations, checkpointing, isCut } = model;
  const { device } = job.world;
  const ownMemory = measureRankMemory(module, config, device);
  const rankMemories = await exchangeValues(job, ownMemory);
  if (job.rank !== 0) return;
  const sizes = sizesInTraining(optimizer, whole);
  const info: ModelInfo = {
    num_params: sizes.parameters,
    trainable_num_params: sizes.trained.count,
    activation_mem_per_gpu: null,
    sequence_length: null,
    sizes,
    knowsActivations,
    checkpointing,
    ...factsOf(optimizer),
    isHost: device.kind === 'cpu',
    deviceName: device.name,
    card: ownMemory.card,
    available: findAvailableMemory(rankMemories),
    cluster: describeCluster(rankMemories),
    mesh: jobMesh(job, isCut),
  };
  writeResult(file, info);
}

/**
 * Returns `decisions` with the final configuration, equal on every rank. `whole` is the result of
 * wholeModel(). Throws DS_OUT_OF_MEMORY on every rank before any allocation, and DS_COMM.
 */
export async function fitMemory(
  { job, planned }: BuildInputs,
  decisions: Decisions,
  { whole, cuts }: { whole: WholeModel | null; cuts: ModelAxes },
): Promise<Decisions> {
  const count = (): WholeModel =>
    cuts.layers && whole ? whole : measureModel(decisions.module, job);
  const config = planned ? await chooseConfig(job, decisions, planned, count()) : decisions.config;
  // The checks below count whole models, but a pipeline divides its model later.
  if (decisions.plan) return { ...decisions, config };
  const chosen = { ...decisions, config };
  const updated = { ...chosen, config: await chooseUpdates(job, chosen, count) };
  const shards = shardCount(job.mesh, cuts, shardSizes(config));
  return { ...updated, config: await requireMemory(job, updated, shards) };
}

/**
 * Throws DS_OUT_OF_MEMORY on every rank if weights, gradients and state need more memory than
 * exists. A virtual machine may get memory as it uses it, so a lack of free memory there is only a
 * notice. Returns the configuration. If memory is too short for speculation and `super_offload` is
 * not set, speculation is off in it.
 */
export async function requireMemory(
  job: Distributed,
  inputs: Omit<CountInputs, 'shards'>,
  shards: number,
): Promise<ResolvedConfig> {
  const { config } = inputs;
  const claims = await exchangeValues(job, measureClaim({ ...inputs, shards }, job.world.device));
  const shortageList = findShortages(claims);
  const certain = shortageList.filter(({ isCertain }) => isCertain);
  if (certain.length > 0) throw shortageError(certain, config);
  const tooMuch = findSpeculationShortage(claims);
  if (job.rank === 0) {
    if (tooMuch) notice(formatShortage(tooMuch));
    for (const shortage of shortageList) {
      const { message } = shortageError([shortage], config);
      notice(`${message} A virtual machine may receive more memory, so training continues.`);
    }
  }
  return tooMuch ? withOffload(config, { super_offload: false }) : config;
}

function formatShortage({ of, parts, there }: Shortage): string {
  return (
    `initialize: updates wait until backward has ended ("super_offload": false). Speculation needs ` +
    `${formatNeeds(of, parts)}, and there is ${there}. "super_offload": true enables them anyway.`
  );
}
