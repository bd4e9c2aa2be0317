// Tests that keys without a visible effect reach the part of the engine that uses them.

import type { ProcessGroup } from '../../lib/comm/index.js';
import { resolveConfig } from '../../lib/config/index.js';
import { buildStages } from '../../lib/engine/setup/stage.js';
import { ZeroGroups } from '../../lib/engine/zero-groups.js';
import { type DsConfig, initialize } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { getRandomState } from '../../lib/tensor/random.js';
import { AllReduceWire } from '../../lib/zero/wire.js';
import { tinyConfig, tinyModel } from '../e2e/tiny-training.js';

type Zero = Exclude<DsConfig['zero_optimization'], boolean>;

/** The value at a dotted path, private fields included. */
function at(object: unknown, path: string): unknown {
  return path.split('.').reduce((part, key) => (part as Record<string, unknown>)[key], object);
}

const zero = (section: Zero): DsConfig => ({ zero_optimization: section });

const fp16 = (section: DsConfig['fp16']): DsConfig => ({ fp16: { enabled: true, ...section } });

describe('over two ranks', () => {
  const group = { rank: 0, size: 2 } as ProcessGroup;
  const groups = new ZeroGroups({
    name: '',
    group,
    source: group,
    dataRanks: 2,
    replicas: null,
    secondary: null,
    spansStages: false,
  });
  test.each<[config: DsConfig, path: string, value: unknown]>([
    [
      zero({ stage: 0, reduce_bucket_size: 7 }),
      'gradients.route.buckets.options.bucketElements',
      7,
    ],
    [
      zero({ stage: 1, reduce_bucket_size: 7 }),
      'gradients.route.buckets.options.bucketElements',
      7,
    ],
    [zero({ stage: 2, overlap_comm: true }), 'gradients.route.buckets.options.overlap', true],
    [zero({ stage: 2 }), 'gradients.route.buckets.options.overlap', false],
    [zero({ stage: 3 }), 'gradients.route.buckets.options.overlap', true],
    [zero({ stage: 1, overlap_comm: true }), 'weights.buckets.options.overlap', true],
    [zero({ stage: 2, allgather_bucket_size: 8 }), 'weights.buckets.options.bucketElements', 8],
    [
      zero({ stage: 1, reduce_scatter: false }),
      'gradients.route.wire',
      new AllReduceWire(group, group),
    ],
    [zero({ stage: 1 }), 'gradients.route.wire', group],
    [zero({ stage: 3, overlap_comm: false }), 'weights.options.overlap', false],
    [zero({ stage: 3, prefetch_bucket_size: 7 }), 'weights.options.prefetchElements', 7],
    [zero({ stage: 3, max_live_parameters: 7 }), 'weights.options.maxLive', 7],
    [zero({ stage: 3, max_reuse_distance: 7 }), 'weights.options.maxReuseDistance', 7],
    [zero({ stage: 3, param_persistence_threshold: 7 }), 'weights.options.persistenceThreshold', 7],
    [
      zero({ stage: 3, model_persistence_threshold: 7 }),
      'weights.options.modelPersistenceThreshold',
      7,
    ],
    [{ prescale_gradients: true }, 'gradients.route.wire.divisor', 2],
    [{ gradient_predivide_factor: 3 }, 'gradients.route.wire.divisor', 3],
    [{ gradient_allreduce_op: 'sum' }, 'gradients.factor', 1],
    [{ gradient_allreduce_op: 'mean' }, 'gradients.factor', 2],
    [{ communication_data_type: 'bf16' }, 'gradients.route.wire.dtype', 'bf16'],
    [{ communication_data_type: 'fp16' }, 'gradients.route.wire.divisor', 2],
    [fp16({}), 'gradients.route.wire.divisor', 2],
    [fp16({}), 'gradients.factor', 1],
    [{ ...fp16({}), communication_data_type: 'bf16' }, 'gradients.route.wire.inner.dtype', 'bf16'],
    [{ ...fp16({}), communication_data_type: 'fp32' }, 'gradients.route.wire.inner.divisor', 2],
    [{ ...fp16({}), gradient_predivide_factor: 4 }, 'gradients.route.wire.divisor', 4],
    [{ ...fp16({}), data_types: { grad_accum_dtype: 'fp32' as const } }, 'gradients.factor', 2],
    [{ prescale_gradients: true, ...zero({ stage: 3 }) }, 'gradients.route.wire.divisor', 2],
  ])('%j', (extra, path, value) => {
    const config = { train_micro_batch_size_per_gpu: 1, ...extra };
    const resolved = resolveConfig(config, { worldSize: 2 });
    const stages = buildStages(resolved, { trained: [], frozen: [] }, cpu(), { groups });
    expect(at(stages, `stages.0.${path}`)).toEqual(value);
    stages.dispose();
  });
});

const offloadConfig = (section: Zero): DsConfig =>
  zero({ stage: 2, offload_optimizer: { device: 'cpu' }, ...section });
const lamb = (params: object): DsConfig => ({ optimizer: { type: 'Lamb', params } });
const whole = { zero_optimization: { stage: 0 as const } };
const oneBit = (type: 'OneBitAdam' | 'OneBitLamb' | 'OneBitSGD' | 'ZeroOneAdam', params: object) =>
  ({ optimizer: { type, params }, ...whole }) as DsConfig;

describe('on one rank', () => {
  test.each<[config: DsConfig, path: string, value: unknown]>([
    [fp16({ loss_scale: 8 }), 'scaler.scale', 8],
    [fp16({ initial_scale_power: 3 }), 'scaler.scale', 8],
    [fp16({ loss_scale_window: 7 }), 'scaler.window', 7],
    [fp16({ hysteresis: 7 }), 'scaler.hysteresis', 7],
    [fp16({ consecutive_hysteresis: true }), 'scaler.consecutive', true],
    [fp16({ min_loss_scale: 7 }), 'scaler.minScale', 7],
    [{ gradient_accumulation_steps: 3 }, 'batch.accumulationSteps', 3],
    [
      offloadConfig({ sub_group_size: 1 }),
      'state.updateGroups.0.state.placement.storage.options.tile',
      64,
    ],
    [
      offloadConfig({ sub_group_size: 1000 }),
      'state.updateGroups.0.state.placement.storage.options.tile',
      960,
    ],
    [offloadConfig({}), 'state.updateGroups.0.state.placement.storage.options.tile', 1e9],
    // No division without a reduction.
    [
      { gradient_predivide_factor: 4, ...zero({ stage: 3, offload_param: { device: 'cpu' } }) },
      'stage.gradientFactor',
      1,
    ],
    [lamb({ max_coeff: 7 }), 'optimizer.groups.0.maxCoeff', 7],
    [lamb({ min_coeff: 0.5 }), 'optimizer.groups.0.minCoeff', 0.5],
    [lamb({ eps_inside_sqrt: true }), 'optimizer.epsInsideSqrt', true],
    [lamb({ bias_correction: false }), 'optimizer.biasCorrection', false],
    [lamb({ moment_correction: true }), 'optimizer.momentCorrection', true],
    [oneBit('OneBitAdam', { freeze_step: 7 }), 'optimizer.freezeStep', 7],
    [oneBit('OneBitSGD', { freeze_step: 7 }), 'optimizer.freezeStep', 7],
    [oneBit('OneBitLamb', { freeze_step: 7 }), 'optimizer.freezeStep', 7],
    [oneBit('OneBitLamb', { max_coeff: 7 }), 'optimizer.groups.0.maxCoeff', 7],
    [oneBit('OneBitLamb', { coeff_beta: 0.5 }), 'optimizer.coeffBeta', 0.5],
    [oneBit('OneBitLamb', { factor_max: 7 }), 'optimizer.bounds.max', 7],
    [oneBit('OneBitLamb', { factor_min: 0.7 }), 'optimizer.bounds.min', 0.7],
    [oneBit('OneBitLamb', { factor_threshold: 0.7 }), 'optimizer.bounds.threshold', 0.7],
    [oneBit('ZeroOneAdam', { var_freeze_step: 7 }), 'optimizer.intervals.varFreezeStep', 7],
    [oneBit('ZeroOneAdam', { var_update_scaler: 7 }), 'optimizer.intervals.varUpdateScaler', 7],
    [oneBit('ZeroOneAdam', { local_step_scaler: 7 }), 'optimizer.intervals.localStepScaler', 7],
    [oneBit('ZeroOneAdam', { local_step_clipper: 7 }), 'optimizer.intervals.localStepClipper', 7],
    [{ optimizer: { type: 'Muon', params: { muon_lr: 0.5 } } }, 'optimizer.groups.0.lr', 0.5],
    [{ optimizer: { type: 'Lion', params: { lr: 0.5 } } }, 'optimizer.groups.0.lr', 0.5],
  ])('%j', async (extra, path, value) => {
    const config: DsConfig = {
      ...tinyConfig({ precision: 'fp32', offload: false }),
      scheduler: null,
      ...extra,
    };
    const { engine } = await initialize({ model: tinyModel(), config, device: 'cpu' });
    expect(at(engine.parts, path)).toEqual(value);
    engine.destroy();
  });

  test.each([true, false])('bf16.check_grad_overflow: %j', async (check_grad_overflow) => {
    const config: DsConfig = {
      ...tinyConfig({ precision: 'fp32', offload: false }),
      bf16: { enabled: true, check_grad_overflow },
    };
    const { engine } = await initialize({ model: tinyModel(), config, device: 'cpu' });
    expect(at(engine.parts, 'control.options.skipNonfinite')).toBe(check_grad_overflow);
    engine.destroy();
  });

  test('seed: the generator starts from it', async () => {
    const config = { ...tinyConfig({ precision: 'fp32', offload: false }), seed: 77 };
    const { engine } = await initialize({ model: tinyModel(), config, device: 'cpu' });
    expect(getRandomState().seed).toBe(77);
    engine.destroy();
  });
});
