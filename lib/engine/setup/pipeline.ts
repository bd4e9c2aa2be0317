// Builds a pipeline from the configuration and the model: stages, schedule, links between stages,
// and shared weights.

import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import type { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import {
  GPIPE,
  interleaved,
  isPipelined,
  Links,
  lower,
  ONE_F_ONE_B,
  openGroup,
  Pipeline,
  PipelineModule,
  type PipelineOptions,
  type Schedule,
  selectForwards,
  ZERO_BUBBLE,
} from '../../pipe/index.js';
import { configError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import type { Tensor } from '../../tensor/index.js';
import { DATA, otherMeshError } from '../ranks.js';
import type { BuildResources } from '../release-stack.js';
import { routedLayers } from '../step/token-drop.js';
import type { OwnGroup } from '../zero-groups.js';
import type { BuildInputs } from './clients.js';

export interface PipelinePlan {
  pipeline: Pipeline;
  schedule: Schedule;
  dynamicShape: boolean;
}

/**
 * Returns the plan of a pipeline, for a PipelineModule or a divisible model with pipeline.stages.
 * Returns null for other models. Throws DS_CONFIG, and DS_ARGUMENT for more stages than layers.
 */
export function planPipeline(inputs: BuildInputs): PipelinePlan | null {
  const { module, config, job } = inputs;
  const { stages } = config.pipeline;
  const isWanted = module instanceof PipelineModule || typeof stages === 'number';
  if (!isWanted) return null;
  if (!isPipelined(module)) {
    throw configError(
      'pipeline.stages',
      'a PipelineModule, or a model with known layers',
      `a ${module.constructor.name}`,
      'Write it as new PipelineModule({ layers: [...] }).',
    );
  }
  const { mesh } = job;
  const ranks = mesh.size(AXIS.pipeline);
  requireStages(inputs);
  if (config.progressive_layer_drop?.enabled) throw unroutedError('progressive_layer_drop');
  if (routedLayers(config)) throw unroutedError('data_efficiency.data_routing.random_ltd');
  const schedule = scheduleOf(config);
  const options = optionsOf(module, config);
  const stage = { rank: mesh.place(AXIS.pipeline), ranks };
  const pipeline = new Pipeline(module, stage, schedule.stagesPerRank, options);
  const { dynamicShape = false } = options;
  const grows = config.curriculum_learning?.enabled ?? false;
  return { pipeline, schedule, dynamicShape: dynamicShape || grows };
}

/**
 * Combines the options of the model and of the configuration. Partition "best" means the own method
 * of a PipelineModule, and stages of equal time for a model with known FLOPs per layer. Throws
 * DS_CONFIG if both set an option differently.
 */
function optionsOf(module: Module, { pipeline }: ResolvedConfig): PipelineOptions {
  const ownOptions = module instanceof PipelineModule ? module.pipelineOptions : null;
  const { partition, seed_layers, activation_checkpoint_interval: interval } = pipeline;
  const { partitionMethod: method, seedLayers } = ownOptions ?? {};
  const isOne = partition === 'best' || method?.toLowerCase() === partition.toLowerCase();
  if (method !== undefined && !isOne) {
    throw conflictError('partition', JSON.stringify(partition), 'partitionMethod', method);
  }
  if (seedLayers === false && seed_layers) {
    throw conflictError('seed_layers', 'true', 'seedLayers', seedLayers);
  }
  const best = ownOptions ? {} : { partitionMethod: 'flops' as const };
  return {
    ...(partition === 'best' ? best : { partitionMethod: partition as 'uniform' }),
    ...(seed_layers ? { seedLayers: true } : {}),
    ...ownOptions,
    ...(interval > 0 ? { activationCheckpointInterval: interval } : {}),
  };
}

function conflictError(key: string, got: string, option: string, own: unknown): DsError {
  return configError(
    `pipeline.${key}`,
    `${JSON.stringify(own)}, the ${option} of the PipelineModule`,
    got,
    `Remove one of them, ${key} or ${option}.`,
  );
}

function scheduleOf({ pipeline }: ResolvedConfig): Schedule {
  const { schedule, stages_per_rank: stagesPerRank } = pipeline;
  if (schedule === 'gpipe') return GPIPE;
  if (schedule === 'zero-bubble') return ZERO_BUBBLE;
  return schedule === 'interleaved' ? interleaved(stagesPerRank) : ONE_F_ONE_B;
}

interface Planned {
  /** Null if the model is no pipeline. */
  plan: PipelinePlan | null;
  optimizer: Optimizer;
}

/** A pipeline that is connected to the other stages. */
export interface OpenPipeline extends PipelinePlan {
  links: Links;
  /**
   * Parameters that several stages share, each with the data ranks of these stages. The order is
   * equal on all ranks.
   */
  ties: readonly OwnGroup[];
}

/**
 * Opens links between stages, and groups for shared parameters. Returns null if there is no
 * pipeline. Rejects with DS_COMM, and with DS_CONFIG if the optimizer cannot update shared
 * parameters.
 */
export async function openPipeline(
  job: Distributed,
  { plan, optimizer }: Planned,
): Promise<OpenPipeline | null> {
  if (!plan) return null;
  const links = await openLinks(job, plan);
  return { ...plan, links, ties: await openTies(job, plan, optimizer) };
}

/** Opens links between the ranks of the pipeline, for training and evaluation. */
function openLinks(
  job: Distributed,
  { pipeline, schedule, dynamicShape }: PipelinePlan,
): Promise<Links> {
  const { ranks } = pipeline.place;
  const evaluation = lower(selectForwards(schedule), ranks, 1);
  const training = lower(schedule, ranks, 1);
  const lists = training.map((list, rank) => [...list, ...(evaluation[rank] ?? [])]);
  return Links.open(job, lists, dynamicShape);
}

async function openTies(
  job: Distributed,
  { pipeline }: PipelinePlan,
  optimizer: Optimizer,
): Promise<OwnGroup[]> {
  const { mesh, rank } = job;
  const byStages = new Map<string, { stages: readonly number[]; parameters: Parameter[] }>();
  for (const [parameter, stages] of pipeline.tied) {
    if (!parameter.requiresGrad) continue;
    const key = stages.join(', ');
    const tie = byStages.get(key) ?? { stages, parameters: [] };
    byStages.set(key, tie);
    tie.parameters.push(parameter);
  }
  if (byStages.size > 0 && (canGather(optimizer) || canSum(optimizer))) {
    throw configError(
      'optimizer.type',
      'an elementwise optimizer for a pipeline with shared weights',
      optimizer.name,
      'Untie the layers, put them on one stage, or use AdamW.',
    );
  }
  const column = mesh.shape.ranksAlong(rank, AXIS.pipeline);
  const ties: OwnGroup[] = [];
  for (const [key, { stages, parameters }] of byStages) {
    if (!stages.includes(pipeline.place.rank)) continue;
    const ranks = stages.flatMap((stage) =>
      mesh.shape.ranksAlong(required(column[stage]), ...DATA),
    );
    const name = `tied by stages ${key}`;
    const group = await openGroup(job, ranks, name);
    const ownGroup = { name, group, source: group, dataRanks: mesh.size(...DATA) };
    ties.push({
      parameters,
      group: { ...ownGroup, replicas: null, secondary: null, spansStages: true },
    });
  }
  return ties;
}

/**
 * Hides the layers of other stages in the model, and removes their parameters from the optimizer.
 */
export function keepStages(
  { module, optimizer, plan }: Planned & { module: Module },
  { undo }: BuildResources,
): void {
  if (!plan) return;
  undo.defer(plan.pipeline.hideOtherStages());
  const ownTensors = new Set<Tensor>(module.parameters());
  for (const group of optimizer.groups as { params: readonly Tensor[] }[]) {
    group.params = group.params.filter((parameter) => ownTensors.has(parameter));
  }
}

function requireStages({ module, config, job }: BuildInputs): void {
  const ranks = job.mesh.size(AXIS.pipeline);
  const { stages } = config.pipeline;
  const named = module instanceof PipelineModule ? module.numStages : null;
  for (const [op, wanted] of [
    ['pipeline.stages', stages],
    ['PipelineModule numStages', named],
  ] as const) {
    if (typeof wanted !== 'number' || wanted === ranks) continue;
    throw otherMeshError(op, AXIS.pipeline, wanted, job);
  }
  const { stage } = config.zero_optimization;
  if (stage <= (ranks === 1 ? 2 : 1)) return;
  const [expected, hint] =
    ranks === 1
      ? [
          '0, 1 or 2 for a pipeline of one stage, because its layers need whole weights',
          'Set it to 2, or remove pipeline.stages: engine.forward() gathers weights.',
        ]
      : [
          '0 or 1 for a pipeline, because stages keep their gradients until the end of a batch',
          'Stages 2 and 3 would reduce gradients and gather weights for every micro-batch.',
        ];
  throw configError('zero_optimization.stage', expected, String(stage), hint);
}

/**
 * Returns the error for token or layer dropping in a pipeline. The layers of a stage run separately
 * and cannot route tokens.
 */
function unroutedError(section: string): DsError {
  return configError(
    section,
    'a model without pipeline stages',
    'a pipeline, which runs all layers of a stage on all tokens',
    'Turn the section off, or train without pipeline.stages.',
  );
}
