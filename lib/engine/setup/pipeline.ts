// From the configuration and a model's layers to a pipeline: who has which stage, in which order
// they work, and the links.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed, ProcessGroup } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import {
  forwardsOf,
  GPIPE,
  groupOf,
  interleaved,
  isPipelined,
  Links,
  lower,
  ONE_F_ONE_B,
  Pipeline,
  PipelineModule,
  type PipelineOptions,
  type Schedule,
  ZERO_BUBBLE,
} from '../../pipe/index.js';
import { held, Tensor, zeros } from '../../tensor/index.js';
import type { Partition } from '../../zero/partition.js';
import type { WeightUnit } from '../../zero/weight-unit.js';
import { countingAt, type Ranks } from '../ranks.js';
import { allColumns, type Columns, columnsOfStages } from '../step/columns.js';
import { routedLayers } from '../step/token-drop.js';

/** A model that trains in stages. */
export interface PipelinePlan {
  pipeline: Pipeline;
  schedule: Schedule;
  dynamicShape: boolean;
}

/**
 * The plan of a model that is to train as a pipeline: a PipelineModule, or one that can be cut
 * where the configuration names stages; null for all others. Throws DS_CONFIG for what pipelines do
 * not do, DS_ARGUMENT for more stages than layers.
 */
export function planPipeline(
  module: Module,
  config: ResolvedConfig,
  { mesh }: Distributed,
): PipelinePlan | null {
  const { stages } = config.pipeline;
  const isWanted = module instanceof PipelineModule || typeof stages === 'number';
  if (!isWanted) return null;
  if (!isPipelined(module)) throw uncut(module);
  const ranks = mesh.size('pp');
  requireStages(module, config, ranks);
  if (config.progressive_layer_drop?.enabled) throw unrouted('progressive_layer_drop');
  if (routedLayers(config)) throw unrouted('data_efficiency.data_routing.random_ltd');
  const schedule = scheduleOf(config);
  const options = optionsOf(module, config);
  const place = { rank: mesh.place('pp'), ranks };
  const pipeline = new Pipeline(module, place, schedule.stagesPerRank, options);
  const { dynamicShape = false } = options;
  const grows = config.curriculum_learning?.enabled ?? false;
  return { pipeline, schedule, dynamicShape: dynamicShape || grows };
}

/**
 * The options of the model, where it has any; of the configuration where it says something. The
 * best stages are those of a PipelineModule's own method; of a model that knows what its layers
 * compute, those which take as long as each other. Throws DS_CONFIG where both say something, and
 * not the same.
 */
function optionsOf(module: Module, { pipeline }: ResolvedConfig): PipelineOptions {
  const own = module instanceof PipelineModule ? module.pipelineOptions : null;
  const { partition, seed_layers, activation_checkpoint_interval: interval } = pipeline;
  const { partitionMethod: method, seedLayers } = own ?? {};
  const isOne = partition === 'best' || method?.toLowerCase() === partition.toLowerCase();
  if (method !== undefined && !isOne) {
    throw reportedTwice('partition', JSON.stringify(partition), 'partitionMethod', method);
  }
  if (seedLayers === false && seed_layers) {
    throw reportedTwice('seed_layers', 'true', 'seedLayers', seedLayers);
  }
  const best = own ? {} : { partitionMethod: 'flops' as const };
  return {
    ...(partition === 'best' ? best : { partitionMethod: partition as 'uniform' }),
    ...(seed_layers ? { seedLayers: true } : {}),
    ...own,
    ...(interval > 0 ? { activationCheckpointInterval: interval } : {}),
  };
}

function reportedTwice(key: string, got: string, option: string, own: unknown): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `pipeline.${key}`,
    expected: `${JSON.stringify(own)}, the ${option} of the PipelineModule`,
    got,
    hint: `Keep one of them: leave ${key} out, or ${option}.`,
  });
}

function scheduleOf({ pipeline }: ResolvedConfig): Schedule {
  const { schedule, stages_per_rank: stagesPerRank } = pipeline;
  if (schedule === 'gpipe') return GPIPE;
  if (schedule === 'zero-bubble') return ZERO_BUBBLE;
  return schedule === 'interleaved' ? interleaved(stagesPerRank) : ONE_F_ONE_B;
}

/** Links between the ranks of the pipeline, for training and evaluation. Rejects with DS_COMM. */
export function openLinks(
  job: Distributed,
  { pipeline, schedule, dynamicShape }: PipelinePlan,
): Promise<Links> {
  const { ranks } = pipeline.place;
  const evaluation = lower(forwardsOf(schedule), ranks, 1);
  const training = lower(schedule, ranks, 1);
  const lists = training.map((list, rank) => [...list, ...(evaluation[rank] ?? [])]);
  return Links.open(job, lists, dynamicShape);
}

/** Parameters that the same stages of a pipeline have, whose gradients these add up. */
export interface Tie {
  /** Of their unit. */
  name: string;
  /** In the order of the model. */
  parameters: readonly Parameter[];
  /** The data ranks of all these stages. */
  group: ProcessGroup;
}

/**
 * The ties of this rank, in one order on all. Rejects with DS_COMM. Throws DS_CONFIG for what
 * cannot update them.
 */
export async function openTies(
  job: Distributed,
  { pipeline }: PipelinePlan,
  optimizer: Optimizer,
): Promise<Tie[]> {
  const { mesh, rank } = job;
  const byStages = new Map<string, { stages: readonly number[]; parameters: Parameter[] }>();
  for (const [parameter, stages] of pipeline.tied) {
    if (!parameter.requiresGrad) continue;
    const key = stages.join(', ');
    const tie = byStages.get(key) ?? { stages, parameters: [] };
    byStages.set(key, tie);
    tie.parameters.push(parameter);
  }
  if (byStages.size > 0 && (canGather(optimizer) || canSum(optimizer))) throw untiable(optimizer);
  const column = mesh.shape.ranksAlong(rank, 'pp');
  const ties: Tie[] = [];
  for (const [key, { stages, parameters }] of byStages) {
    if (!stages.includes(pipeline.place.rank)) continue;
    const ranks = stages.flatMap((stage) => mesh.shape.ranksAlong(column[stage] as number, 'dp'));
    const name = `tied by stages ${key}`;
    ties.push({ name, parameters, group: await groupOf(job, ranks, name) });
  }
  return ties;
}

/** What a unit is shared by; undefined for one that this rank's stages have alone. */
export function tieOf(
  ties: readonly Tie[],
  { parameters }: Pick<WeightUnit, 'parameters'>,
): Tie | undefined {
  const [first] = parameters;
  return ties.find((tie) => tie.parameters.some((one) => one === first?.parameter));
}

function untiable({ name }: Optimizer): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: 'optimizer.type',
    expected:
      'an optimizer that updates element by element, where stages of a pipeline share weights',
    got: name,
    hint: 'Untie the layers, put them on one stage, or use AdamW.',
  });
}

/** The groups keep what is left of the model on this rank. */
export function keepOwn({ groups }: Optimizer, module: Module): void {
  const own = new Set<Tensor>(module.parameters());
  for (const group of groups as { params: readonly Tensor[] }[]) {
    group.params = group.params.filter((parameter) => own.has(parameter));
  }
}

/**
 * Where the sums of partitions lie in what ranks tell each other: in the order of layers, whoever
 * has them.
 */
export function columnsOf(
  plan: PipelinePlan | null,
  partitions: readonly Partition[],
  { world, counting, layers: cut, mesh }: Ranks,
): Columns {
  if (!plan || plan.pipeline.place.ranks === 1) return allColumns(partitions.length, counting);
  const { pipeline } = plan;
  const { layers, place } = pipeline;
  const counts = held(() => zeros([world.size, layers.length], { device: world.device }));
  const mine = new Array<number>(layers.length).fill(0);
  const own = partitions.map((partition) => firstLayer(pipeline, partition));
  for (const layer of own) mine[layer] = (mine[layer] ?? 0) + 1;
  const row = held(() => Tensor.from(mine, { device: world.device }));
  world.allGather(counts, row, { purpose: 'units of stages' }).wait();
  const all = counts.toArray() as number[];
  counts.release();
  row.release();
  const ofStage = mesh.shape.ranksAlong(world.rank, 'pp');
  const owners = layers.flatMap((_, layer) =>
    ofStage.flatMap((rank, stage) =>
      new Array<number>(all[rank * layers.length + layer] ?? 0).fill(stage),
    ),
  );
  const countingRanks = ofStage.map((rank) => countingAt(mesh, rank, { layers: cut !== null }));
  return columnsOfStages(owners, countingRanks, place.rank);
}

/** The first of this rank's layers that reads the partition's parameters. */
function firstLayer({ layers, starts, ownStages }: Pipeline, { unit }: Partition): number {
  const [first] = unit.parameters;
  const own = ownStages.flatMap((stage) => {
    const [from = 0, to = 0] = starts.slice(stage, stage + 2);
    return Array.from({ length: to - from }, (_, i) => from + i);
  });
  const reads = (layer: number): boolean =>
    layers[layer]?.modules.some((module) =>
      module.parameters().some((parameter) => parameter === first?.parameter),
    ) ?? false;
  return own.find(reads) ?? own[0] ?? 0;
}

function requireStages(module: Module, config: ResolvedConfig, ranks: number): void {
  const { stages } = config.pipeline;
  const named = module instanceof PipelineModule ? module.numStages : null;
  for (const [op, wanted] of [
    ['pipeline.stages', stages],
    ['PipelineModule numStages', named],
  ] as const) {
    if (typeof wanted !== 'number' || wanted === ranks) continue;
    throw new DsError({
      code: 'DS_CONFIG',
      op,
      expected: `${ranks}, the ranks on the mesh's axis pp`,
      got: String(wanted),
      hint: `Give initDistributed() { mesh: { pp: ${wanted} } }, or leave joining to initialize().`,
    });
  }
  const { stage } = config.zero_optimization;
  if (stage <= (ranks === 1 ? 2 : 1)) return;
  const op = 'zero_optimization.stage';
  throw new DsError({
    ...{ code: 'DS_CONFIG', op, got: String(stage) },
    ...(ranks === 1
      ? {
          expected: '0, 1 or 2 for a pipeline of one stage, whose layers find their weights whole',
          hint: 'Set it to 2, or leave pipeline.stages out: engine.forward() gathers weights.',
        }
      : {
          expected:
            '0 or 1 for a pipeline, whose stages keep their gradients until the end of a batch',
          hint: 'Stages 2 and 3 would reduce gradients and gather weights for every micro-batch.',
        }),
  });
}

/** Layers of a stage are called one by one, and none of them knows of the others. */
function unrouted(section: string): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: section,
    expected: 'a model that is no pipeline',
    got: 'one that trains in stages, each of which runs all its layers on all tokens',
    hint: 'Switch the section off, or train without pipeline.stages.',
  });
}

function uncut(module: Module): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: 'pipeline.stages',
    expected: 'a PipelineModule, or a model that knows its layers',
    got: `a ${module.constructor.name}`,
    hint: 'Write it as new PipelineModule({ layers: [...] }).',
  });
}
