// The composition root: turns a resolved configuration into the engine's parts. Nobody else branches on it.
import type { ResolvedConfig } from '../../types/config.js';
import { DsError } from '../errors.js';
import type { Monitor } from '../monitor/index.js';
import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import { AdamW } from '../optim/adamw.js';
import { DynamicLossScaler, type LossScaler, StaticLossScaler } from '../optim/loss-scale.js';
import { canSpeculate, type Optimizer } from '../optim/optimizer.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { OffloadPlacement } from '../zero/offload.js';
import type { Placement } from '../zero/placement.js';
import { ResidentPlacement } from '../zero/resident.js';
import { SpeculativeOffload } from '../zero/speculative-offload.js';
import { Unit, type UnitParameter } from '../zero/unit.js';
import { buildSchedule } from './build-schedule.js';
import { Engine } from './engine.js';
import { buildObservers } from './monitoring.js';
import { EventTimer, untimed } from './phase-timer.js';
import { StepControl } from './step-control.js';

/**
 * Builds the engine for one process; `monitors` are the caller's own. Throws DS_CONFIG when the
 * configuration names no optimizer, DS_IO when a monitor cannot write.
 */
export function buildEngine(
  module: Module,
  config: ResolvedConfig,
  device: Device,
  monitors: readonly Monitor[] = [],
): Engine {
  const optimizer = buildOptimizer(config);
  const observers = buildObservers(config, monitors);
  module.moveBuffers(device);
  const units = buildUnits(module, weightDType(config), device);
  const placement = buildPlacement(config, optimizer, device);
  for (const unit of units) placement.adopt(unit);
  const control = new StepControl(device, units, {
    maxNorm: config.gradient_clipping,
    skipNonfinite: !config.bf16.enabled || config.bf16.check_grad_overflow,
  });
  return new Engine({
    module,
    device,
    units,
    placement,
    optimizer,
    control,
    schedule: buildSchedule(config.scheduler, optimizer.groups[0]?.lr ?? 0),
    scaler: buildScaler(config),
    batch: {
      train: config.train_batch_size,
      microPerDevice: config.train_micro_batch_size_per_gpu,
      accumulationSteps: config.gradient_accumulation_steps,
    },
    timer: config.wall_clock_breakdown ? new EventTimer(device) : untimed,
    observers,
  });
}

/** The dtype of weights, activations and gradients. */
function weightDType(config: ResolvedConfig): DType {
  if (config.fp16.enabled) return 'f16';
  return config.bf16.enabled ? 'bf16' : 'f32';
}

/**
 * Root parameters first (embeddings are read first), then the model's units in forward order. A parameter with several
 * names belongs to the first unit that has it; a frozen one belongs to none: it has no gradient and no state.
 */
function buildUnits(module: Module, dtype: DType, device: Device): Unit[] {
  const taken = new Set<Parameter>();
  const inner = module.units();
  const owned = inner.map((unit) => new Set(unit.module.parameters()));
  const rest: UnitParameter[] = [];
  for (const [name, parameter] of module.namedParameters()) {
    if (!parameter.requiresGrad) parameter.moveTo(device, dtype);
    else if (!owned.some((set) => set.has(parameter))) rest.push({ name, parameter, group: 0 });
  }
  const units = rest.length > 0 ? [new Unit('root', module, rest, dtype, device)] : [];
  for (const { name, module: part } of inner) {
    const parameters: UnitParameter[] = [];
    for (const [inside, parameter] of part.namedParameters()) {
      if (taken.has(parameter) || !parameter.requiresGrad) continue;
      taken.add(parameter);
      parameters.push({ name: `${name}.${inside}`, parameter, group: 0 });
    }
    if (parameters.length > 0) units.push(new Unit(name, part, parameters, dtype, device));
  }
  return units;
}

/** Speculation overlaps host and device: on the CPU alone there is nothing to overlap. */
function buildPlacement(config: ResolvedConfig, optimizer: Optimizer, device: Device): Placement {
  const { device: home, super_offload: wanted } = config.zero_optimization.offload_optimizer;
  if (home !== 'cpu') return new ResidentPlacement(optimizer.stateNames);
  const able = canSpeculate(optimizer);
  if (!(wanted ?? (able && device.kind !== 'cpu')))
    return new OffloadPlacement(device, optimizer.stateNames);
  if (able) return new SpeculativeOffload(device, optimizer);
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'zero_optimization.offload_optimizer.super_offload',
    expected: 'an optimizer whose update can be tried out, such as AdamW',
    got: optimizer.name,
    hint: 'Set super_offload to false, or leave it out.',
  });
}

function buildOptimizer({ optimizer }: ResolvedConfig): Optimizer {
  if (!optimizer) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: 'optimizer',
      expected: 'an optimizer',
      got: 'none',
      hint: 'Add "optimizer": { "type": "AdamW", "params": { "lr": 1e-4 } } to the configuration.',
    });
  }
  const { lr, betas, eps, weight_decay, bias_correction, adam_w_mode } = optimizer.params;
  return new AdamW({
    lr,
    betas: [betas[0] as number, betas[1] as number],
    eps,
    weightDecay: weight_decay,
    biasCorrection: bias_correction,
    decoupled: optimizer.type === 'AdamW' || adam_w_mode,
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
