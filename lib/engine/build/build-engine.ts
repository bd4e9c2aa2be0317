// The composition root: turns a resolved configuration into the engine's parts. Nobody else branches on it.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { Monitor } from '../../monitor/index.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { DynamicLossScaler, type LossScaler, StaticLossScaler } from '../../optim/loss-scale.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup, ParamsOf } from '../../optim/param-groups.js';
import type { LrSchedule } from '../../optim/schedule.js';
import { ScheduleSet } from '../../optim/schedule-set.js';
import type { Device } from '../../runtime/device.js';
import { checkpointing, type Tensor } from '../../tensor/index.js';
import { adoptModel } from '../../zero/adopt.js';
import type { CommTimer } from '../../zero/comm-timer.js';
import type { Stage } from '../../zero/stage.js';
import { Unit, type UnitOptions, type UnitParameter } from '../../zero/unit.js';
import { Engine, type EngineParts } from '../engine.js';
import { managed, unmanaged } from '../step/accumulation.js';
import { StepControl } from '../step/step-control.js';
import { buildObservers } from '../watch/monitoring.js';
import { checkpointWorld } from './checkpoint-world.js';
import { buildCommsLogger } from './comms-logger.js';
import { bufferDType, gradientDType, weightDType } from './dtypes.js';
import { describeState } from './dump-state.js';
import { buildOptimizer } from './optimizer.js';
import { buildPlacement } from './placement.js';
import { buildSchedules } from './schedule.js';
import { buildStage } from './stage.js';
import { buildTimer } from './timer.js';
import { requireWholeParameters } from './whole-parameters.js';

/** What a caller of initialize() brings beside the configuration; each wins over what the file says. */
export interface Clients {
  /** Parameters to train, or groups of them. Default: every parameter of the model that wants a gradient. */
  modelParameters?: ParamsOf<ParamGroup>;
  optimizer?: Optimizer | ((params: ParamsOf<ParamGroup>) => Optimizer);
  /** One schedule for all groups, or a function that gives one, or one per group. */
  lrScheduler?: LrSchedule | ((optimizer: Optimizer) => LrSchedule | readonly LrSchedule[]);
  /** The job whose ranks train together. Default: what initDistributed() has joined, else this process alone. */
  distributed?: Distributed | null;
  /** Times the collectives of training; benchmarks pass one. */
  commTimer?: CommTimer;
  /** Monitors of your own, beside those of the configuration; engine.destroy() closes them. */
  monitors?: readonly Monitor[];
}

/**
 * Builds this rank's engine. Throws DS_CONFIG when nobody names an optimizer, DS_ARGUMENT when its groups are
 * wrong, DS_IO when a monitor cannot write.
 */
export function buildEngine(
  module: Module,
  config: ResolvedConfig,
  device: Device,
  clients: Clients = {},
): Engine {
  checkpointing.configureFromSection(config.activation_checkpointing);
  const optimizer = findOptimizer(module, config, clients);
  const schedules = findSchedules(config, optimizer, clients);
  const job = clients.distributed ?? null;
  const isFirst = !job || job.rank === 0;
  const observers = isFirst ? buildObservers(config, clients.monitors ?? []) : [];
  if (job) job.world.logger = buildCommsLogger(config.comms_logger, isFirst) ?? job.world.logger;
  module.moveBuffers(device, bufferDType(config));
  const units = buildUnits(module, optimizer.groups, {
    dtype: weightDType(config),
    gradDtype: gradientDType(config),
    device,
    shards: job?.worldSize,
  });
  const { stage: zeroStage } = config.zero_optimization;
  requireWholeParameters(optimizer, units, { stage: zeroStage, worldSize: job?.worldSize ?? 1 });
  const stage = buildStage(config, units, device, {
    group: job?.world ?? null,
    timer: clients.commTimer,
  });
  shareUntrained(module, stage);
  const placement = buildPlacement(config, optimizer, stage.partitions, device);
  adoptModel(stage, placement);
  const control = new StepControl(device, stage, {
    maxNorm: config.gradient_clipping,
    skipNonfinite: !config.bf16.enabled || config.bf16.check_grad_overflow,
  });
  const accumulationSteps = config.gradient_accumulation_steps;
  const parts: EngineParts = {
    module,
    config,
    device,
    units,
    stage,
    placement,
    optimizer,
    control,
    schedules,
    scaler: buildScaler(config),
    batch: {
      train: config.train_batch_size,
      microPerDevice: config.train_micro_batch_size_per_gpu,
      accumulationSteps,
    },
    localRank: job?.localRank ?? 0,
    accumulation: config.managed_gradient_accumulation ? managed(accumulationSteps) : unmanaged,
    timer: buildTimer(config, { module, device, stage, placement }, isFirst),
    observers,
    world: checkpointWorld(job),
  };
  if (config.dump_state && isFirst) process.stdout.write(`${describeState(parts)}\n`);
  return new Engine(parts);
}

/** Parameters without gradient and buffers are rank 0's everywhere. */
function shareUntrained(module: Module, stage: Stage): void {
  const frozen = module.parameters().filter(({ requiresGrad }) => !requiresGrad);
  const buffers = Array.from(module.namedBuffers(), ([, buffer]) => buffer);
  for (const tensor of [...frozen, ...buffers]) stage.broadcast(tensor);
}

function findOptimizer(
  module: Module,
  { optimizer: section }: ResolvedConfig,
  { optimizer, modelParameters }: Clients,
): Optimizer {
  if (optimizer && typeof optimizer !== 'function') return optimizer;
  const trainable = module.parameters().filter(({ requiresGrad }) => requiresGrad);
  const params = modelParameters ?? trainable;
  return optimizer ? optimizer(params) : buildOptimizer(section, params, module.namedParameters());
}

function findSchedules(
  { scheduler }: ResolvedConfig,
  optimizer: Optimizer,
  { lrScheduler }: Clients,
): ScheduleSet {
  const { groups } = optimizer;
  if (!lrScheduler) return buildSchedules(scheduler, groups);
  const given = typeof lrScheduler === 'function' ? lrScheduler(optimizer) : lrScheduler;
  if (!isList(given)) return new ScheduleSet(groups.map(() => given));
  if (given.length === groups.length) return new ScheduleSet(given);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize lrScheduler',
    expected: `a schedule, or one for each of ${groups.length} groups`,
    got: `${given.length} schedules`,
  });
}

function isList<T>(value: T | readonly T[]): value is readonly T[] {
  return Array.isArray(value);
}

/**
 * Root parameters first (embeddings are read first), then the model's units in forward order. A parameter with several
 * names belongs to the first unit that has it; one that is frozen, or in no group, belongs to none: it gets no gradient
 * and keeps no state.
 */
function buildUnits(module: Module, groups: readonly ParamGroup[], options: UnitOptions): Unit[] {
  const { device, dtype } = options;
  const groupOf = indexGroups(module, groups);
  for (const parameter of module.parameters()) {
    if (parameter.requiresGrad && groupOf.has(parameter)) continue;
    parameter.requiresGrad = false;
    parameter.moveTo(device, dtype);
  }
  const inner = module.units();
  const owned = new Set(inner.flatMap((unit) => unit.module.parameters()));
  const taken = new Set<Parameter>();
  const take = (named: Iterable<[string, Parameter]>, prefix: string): UnitParameter[] => {
    const found: UnitParameter[] = [];
    for (const [name, parameter] of named) {
      if (!parameter.requiresGrad || taken.has(parameter)) continue;
      taken.add(parameter);
      found.push({ name: prefix + name, parameter, group: groupOf.get(parameter) as number });
    }
    return found;
  };
  const root = [...module.namedParameters()].filter(([, parameter]) => !owned.has(parameter));
  const rest = take(root, '');
  const units = rest.length > 0 ? [new Unit('root', module, rest, options)] : [];
  for (const { name, module: part } of inner) {
    const parameters = take(part.namedParameters(), `${name}.`);
    if (parameters.length > 0) units.push(new Unit(name, part, parameters, options));
  }
  return units;
}

/** The group of each parameter. Throws DS_ARGUMENT for one that is not the model's. */
function indexGroups(module: Module, groups: readonly ParamGroup[]): Map<Tensor, number> {
  const own = new Set<Tensor>(module.parameters());
  const groupOf = new Map<Tensor, number>();
  groups.forEach(({ params }, index) => {
    for (const parameter of params) {
      if (!own.has(parameter)) throw foreign(index, parameter);
      groupOf.set(parameter, index);
    }
  });
  return groupOf;
}

function foreign(group: number, { shape }: Tensor): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `initialize, parameter group ${group}`,
    expected: 'parameters of the model',
    got: `a tensor [${shape.join(', ')}] that is none of them`,
  });
}

function buildScaler({ fp16 }: ResolvedConfig): LossScaler {
  if (!fp16.enabled) return new StaticLossScaler(1);
  if (fp16.loss_scale > 0) return new StaticLossScaler(fp16.loss_scale);
  return new DynamicLossScaler({
    initialScalePower: fp16.initial_scale_power,
    window: fp16.loss_scale_window,
    hysteresis: fp16.hysteresis,
    consecutiveHysteresis: fp16.consecutive_hysteresis,
    minScale: fp16.min_loss_scale,
  });
}
