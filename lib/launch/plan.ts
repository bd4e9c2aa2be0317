// `ds plan`: predicts memory and time of training a model by stage and offload, and finds the
// fastest configuration.

import { availableParallelism, totalmem } from 'node:os';
import { plannedConfigs, resolveConfig } from '../config/index.js';
import { readParallelSizes } from '../config/source.js';
import { DsError } from '../errors.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import {
  buildConfig,
  type Candidate,
  configuredFacts,
  createPlannedModel,
  formatPlan,
  formatPrediction,
  isGpt2Size,
  makePlan,
  type Plan,
  type PlannedAdapters,
  type PlanRequest,
  predictCandidate,
  rankCandidates,
  requireLength,
  setupOfConfig,
  sizesOf,
} from '../plan/index.js';
import { required } from '../runtime/required.js';
import type { PlanFlags } from './plan-options.js';
import { choosePlannedGpu } from './planned-gpu.js';

/** Default rank of adapters. Source: PEFT. */
const DEFAULT_RANK = 8;

/** Plans as plan() does. Downloads only config.json of a model on the hub. Rejects with DS_HUB. */
export async function planCommand(flags: PlanFlags): Promise<{ fits: boolean; output: string }> {
  const { model, revision } = flags;
  if (isGpt2Size(model) && revision === undefined) return plan(flags);
  const folder = await findOrPullFolder('plan --model', model, { need: 'config', revision });
  return plan({ ...flags, model: folder });
}

/**
 * Returns the plan as text, and whether a configuration fits. Throws DS_ARGUMENT, DS_CHECKPOINT,
 * DS_IO; DS_CONFIG for a ds_config.json with errors.
 */
export function plan(flags: PlanFlags): { fits: boolean; output: string } {
  if (flags.config !== undefined) return predictConfig(flags, flags.config);
  if (flags.checkpointing) {
    const expected =
      '--config with --checkpointing; without --config, a plan compares both settings';
    throw new DsError({ code: 'DS_ARGUMENT', op: 'plan --checkpointing', expected, got: 'none' });
  }
  const request = createRequest(flags, createPlannedModel(flags.model, readAdapters(flags)));
  const result = makePlan(request);
  const fits = result.best !== null;
  if (!flags.json) return { fits, output: formatPlan(result, request) };
  const withConfig = (candidate: Candidate) => ({ ...candidate, config: buildConfig(candidate) });
  return { fits, output: formatJson(result, request, withConfig) };
}

/** Formats a plan as JSON, with its GPU. */
function formatJson(
  { best, candidates }: Plan,
  { rates, deviceMemory }: PlanRequest,
  describe: (one: Candidate) => object,
): string {
  const gpu = { name: rates.name, memory: deviceMemory, estimated: !rates.isMeasured };
  const described = candidates.map(describe);
  return JSON.stringify({ gpu, best: best && describe(best), candidates: described }, null, 2);
}

function createRequest(
  flags: PlanFlags,
  model: ReturnType<typeof createPlannedModel>,
): PlanRequest {
  const sizes = sizesOf(model);
  const { rates, memory, note } = choosePlannedGpu(flags.gpu);
  return {
    sizes,
    batch: flags.batch,
    seq: flags.seq ?? Math.min(1024, sizes.maxSeq),
    precision: flags.precision,
    bf16States: flags.bf16OptimizerStates ?? false,
    rates: { ...rates, disk: flags.nvmeRate * 1e9 },
    note,
    diskMemory: flags.nvmeSpace ?? 0,
    max: { tensor: flags.tp, stages: flags.pp },
    deviceMemory: flags.gpuMemory ?? memory,
    hostMemory: flags.hostMemory ?? totalmem(),
    cluster: {
      nodes: flags.nodes,
      devicesPerNode: flags.gpus,
      coresPerNode: flags.cores ?? availableParallelism(),
      nodeLink: flags.link * 1e9,
    },
  };
}

/** Arguments that change neither memory nor the time of a step; defaults of a Trainer. */
const TRAINING = {
  lr: 5e-5,
  betas: [0.9, 0.999],
  eps: 1e-8,
  weightDecay: 0,
  warmupSteps: 0,
  totalSteps: 1000,
  maxGradNorm: 1,
  accumulationSteps: 1,
} as const;

/** Returns values for "auto" keys that the arguments of a training fill. */
const fillTraining = ({ batch, precision }: PlanFlags) => ({
  ...TRAINING,
  perDeviceBatchSize: batch,
  bf16: precision === 'bf16',
  fp16: precision === 'fp16',
});

/** Predicts memory and time of each choice in a ds_config.json: one, or several with "auto". */
function predictConfig(options: PlanFlags, file: string): { fits: boolean; output: string } {
  const { stages, layers: tensor, tokens } = readParallelSizes(file);
  const axes = { tensor, stages: stages ?? 1 };
  const flags = { ...options, tp: tensor, pp: axes.stages };
  const model = createPlannedModel(flags.model, readAdapters(flags));
  const request = createRequest(flags, model);
  const { sizes, seq, cluster, rates } = request;
  requireLength('plan', seq, sizes);
  const worldSize = countDataRanks(flags, tensor * axes.stages * tokens);
  const auto = { model: { hiddenSize: model.hiddenSize }, training: fillTraining(options) };
  const environment = { worldSize, auto };
  const configs = plannedConfigs(file, environment)?.configs ?? [resolveConfig(file, environment)];
  const mesh = { data: worldSize, tokens, layers: tensor, stages: axes.stages };
  const facts = { mesh, seq, checkpointing: !!flags.checkpointing, hardware: { rates, cluster } };
  const predicted = configs.map((config) => {
    requireStages(config.zero_optimization.stage, axes.stages, sizes.layers);
    return predictCandidate(
      request,
      setupOfConfig(config, { ...facts, optimizer: configuredFacts(config) }),
    );
  });
  const { candidates, best } = rankCandidates(predicted);
  const fits = best !== null;
  if (!flags.json) return { fits, output: formatPrediction(candidates, request) };
  return { fits, output: formatJson({ best, candidates }, request, (candidate) => candidate) };
}

/** Throws DS_CONFIG for stages that the model's pipeline rejects, as initialize() does. */
function requireStages(zero: number, stages: number, layers: number): void {
  const refusedError = (op: string, expected: string, got: number): DsError =>
    new DsError({ code: 'DS_CONFIG', op: `plan --config, ${op}`, expected, got: String(got) });
  if (stages > layers)
    throw refusedError('pipeline.stages', `at most ${layers}, the number of layers`, stages);
  if (stages === 1 || zero < 2) return;
  throw refusedError('zero_optimization.stage', '0 or 1 with pipeline.stages', zero);
}

/**
 * Returns the number of data ranks if `sharing` ranks hold one model. Throws DS_ARGUMENT if the
 * GPUs are no multiple of that number.
 */
function countDataRanks({ gpus, nodes }: PlanFlags, sharing: number): number {
  const ranks = (gpus * nodes) / sharing;
  if (Number.isInteger(ranks)) return ranks;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'plan --gpus',
    expected: `a multiple of ${sharing}, the ranks that share the model by the configuration`,
    got: `${gpus * nodes}`,
  });
}

/** Returns the adapters of the options. Throws DS_ARGUMENT for options that exclude each other. */
function readAdapters({ lora, qlora, loraTargets, tp, pp }: PlanFlags): PlannedAdapters | null {
  const refusedError = (op: string, expected: string, got: string) =>
    new DsError({ code: 'DS_ARGUMENT', op: `plan ${op}`, expected, got });
  if (lora !== undefined && qlora !== undefined)
    throw refusedError('--qlora', 'either --lora or --qlora', 'both');
  const rank = qlora ?? lora;
  if (rank === undefined) {
    if (loraTargets === undefined) return null;
    throw refusedError('--lora-targets', '--lora or --qlora together with it', 'neither');
  }
  if (tp > 1 || pp > 1)
    throw refusedError(
      '--lora',
      '--tp 1 and --pp 1: adapters are not cut',
      `--tp ${tp} --pp ${pp}`,
    );
  const names = loraTargets?.split(',');
  const targetModules = names?.length === 1 ? required(names[0]) : (names ?? null);
  return {
    r: rank === true ? DEFAULT_RANK : rank,
    targetModules,
    isQuantized: qlora !== undefined,
  };
}
