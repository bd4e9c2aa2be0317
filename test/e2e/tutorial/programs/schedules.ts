// Programs of the pages one-cycle, lrrt, progressive_layer_dropping, curriculum-learning,
// data-efficiency, onebit-adam, onebit-lamb and zero-one-adam.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import {
  type DsConfig,
  data,
  type Engine,
  initDistributed,
  initialize,
  type Tensor,
} from '../../../../lib/index.js';
import {
  configFile,
  expectRefusal,
  finish,
  learn,
  model,
  type Place,
  type Program,
  trainStep,
} from '../program.js';

const ADAM: DsConfig = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'Adam', params: { lr: 0.00015, betas: [0.9, 0.95] } },
};

const open = async (place: Place, config: DsConfig): Promise<Engine> =>
  (await initialize({ model: model(), config: configFile(place, config), device: place.device }))
    .engine;

const near = (got: number, expected: number, label: string): void =>
  assert.ok(Math.abs(got - expected) < 1e-9, `${label}: ${got}, not ${expected}`);

/** The rate rises, falls and decays; momentum moves the other way. */
async function oneCycle(place: Place): Promise<string> {
  const engine = await open(place, {
    ...ADAM,
    scheduler: {
      type: 'OneCycle',
      params: {
        cycle_first_step_size: 4,
        cycle_first_stair_count: 2,
        cycle_second_step_size: 4,
        cycle_second_stair_count: 2,
        decay_step_size: 4,
        cycle_min_lr: 0.0001,
        cycle_max_lr: 0.001,
        decay_lr_rate: 0.001,
        cycle_min_mom: 0.85,
        cycle_max_mom: 0.99,
        decay_mom_rate: 0.0,
      },
    },
  });
  const rates: number[] = [];
  const momenta: number[] = [];
  for (let step = 0; step < 12; ++step) {
    trainStep(engine);
    rates.push(engine.getLr()[0] as number);
    const { betas } = engine.optimizer.groups[0] as { betas?: readonly [number, number] };
    momenta.push(betas?.[0] ?? Number.NaN);
  }
  assert.ok(Math.max(...rates) <= 0.001 && Math.min(...rates) > 0, `${rates}`);
  const peak = rates.indexOf(Math.max(...rates));
  assert.ok(peak > 0 && peak < 8, `${rates}`);
  assert.ok((rates.at(-1) as number) < (rates[peak] as number) / 2, `${rates}`);
  assert.ok(Math.min(...momenta) >= 0.85 && Math.max(...momenta) <= 0.99, `${momenta}`);
  assert.ok(momenta.indexOf(Math.min(...momenta)) <= peak + 1, `${momenta}`);
  return finish(engine);
}

/** lr = min (1 + rate t / step_size), continuous or in stairs. */
async function rangeTest(place: Place): Promise<string> {
  const hashes: string[] = [];
  for (const staircase of [false, true]) {
    const engine = await open(place, {
      ...ADAM,
      scheduler: {
        type: 'LRRangeTest',
        params: {
          lr_range_test_min_lr: 0.0001,
          lr_range_test_step_size: 2,
          lr_range_test_step_rate: 5,
          lr_range_test_staircase: staircase,
        },
      },
    });
    const rates = Array.from({ length: 5 }, () => {
      trainStep(engine);
      return engine.getLr()[0] as number;
    });
    const [first, last] = [rates[0] as number, rates.at(-1) as number];
    assert.ok(last > 2 * first, `${rates}`);
    const intervals = new Set(rates.map((rate) => rate.toFixed(9))).size;
    assert.equal(intervals, staircase ? 3 : 5, `${rates}`);
    hashes.push(await finish(engine));
  }
  return hashes.join();
}

async function layersDropped(place: Place): Promise<string> {
  const engine = await open(place, {
    train_batch_size: 8,
    train_micro_batch_size_per_gpu: 2,
    steps_per_print: 1000,
    prescale_gradients: true,
    gradient_predivide_factor: 8,
    gradient_clipping: 1.0,
    optimizer: { type: 'Adam', params: { lr: 1e-3, weight_decay: 0.01, bias_correction: false } },
    wall_clock_breakdown: false,
    fp16: { enabled: true, loss_scale: 0, initial_scale_power: 8 },
    progressive_layer_drop: { enabled: true, theta: 0.5, gamma: 0.001 },
  });
  const thetas = Array.from({ length: 4 }, () => {
    trainStep(engine);
    return engine.pldTheta as number;
  });
  near(thetas[3] as number, 0.5 * Math.exp(-0.001 * 3) + 0.5, 'theta of step 5');
  return finish(engine);
}

/** The configuration of the page; sequences of the tiny model have 17 tokens. */
const curriculum = (schedule: object, max = 16): DsConfig =>
  ({
    train_batch_size: 8,
    gradient_accumulation_steps: 1,
    gradient_clipping: 1.0,
    optimizer: { type: 'Adam', params: { lr: 0.0015, betas: [0.9, 0.95] } },
    fp16: {
      enabled: true,
      loss_scale: 0,
      loss_scale_window: 1000,
      hysteresis: 2,
      consecutive_hysteresis: false,
      min_loss_scale: 1,
      initial_scale_power: 8,
    },
    curriculum_learning: {
      enabled: true,
      curriculum_type: 'seqlen',
      min_difficulty: 8,
      max_difficulty: max,
      ...schedule,
    },
  }) as DsConfig;

async function lengths(place: Place): Promise<string> {
  const linear = { total_curriculum_step: 4, difficulty_step: 8 };
  const schedules: [schedule: object, expected: number[]][] = [
    [{ schedule_type: 'fixed_linear', schedule_config: linear }, [8, 8, 8, 16, 16]],
    [
      { schedule_type: 'fixed_root', schedule_config: { ...linear, root_degree: 2 } },
      [8, 8, 8, 16, 16],
    ],
    [
      {
        schedule_type: 'fixed_discrete',
        schedule_config: { difficulty: [8, 12, 16], max_step: [2, 4] },
      },
      [8, 8, 12, 12, 16],
    ],
  ];
  const hashes: string[] = [];
  for (const [schedule, expected] of schedules) {
    const engine = await open(place, curriculum(schedule));
    const seen = Array.from({ length: 5 }, () => {
      const { curriculumSeqlen } = engine;
      trainStep(engine);
      return curriculumSeqlen as number;
    });
    assert.equal(seen[0], 8);
    assert.equal(seen.at(-1), 16);
    assert.deepEqual(
      [...seen].sort((a, b) => a - b),
      seen,
    );
    if (schedule === schedules[2]?.[0]) assert.deepEqual(seen, expected);
    hashes.push(await finish(engine));
  }
  return hashes.join();
}

/** max_grad_norm is in the optimizer section of the page, where DeepSpeed refuses it too. */
async function withMaxGradNorm(place: Place): Promise<void> {
  const config = curriculum({ schedule_type: 'fixed_linear', schedule_config: {} });
  const params = { lr: 0.00015, max_grad_norm: 1.0, betas: [0.9, 0.95] };
  await expectRefusal(
    () => open(place, { ...config, optimizer: { type: 'Adam', params } } as object),
    'DS_CONFIG',
    'max_grad_norm',
  );
}

async function tokensDropped(place: Place): Promise<string> {
  const engine = await open(place, {
    train_batch_size: 4,
    train_micro_batch_size_per_gpu: 2,
    steps_per_print: 2,
    optimizer: {
      type: 'Adam',
      params: { lr: 0.001, betas: [0.8, 0.999], eps: 1e-8, weight_decay: 3e-7 },
    },
    zero_optimization: { stage: 0 },
    fp16: { enabled: false },
    gradient_clipping: 1.0,
    prescale_gradients: true,
    wall_clock_breakdown: false,
    data_efficiency: {
      enabled: true,
      data_routing: {
        enabled: true,
        random_ltd: {
          enabled: true,
          total_layer_num: 2,
          random_ltd_layer_num: 1,
          random_ltd_layer_id: [1],
          model_mask_name: 'attention_mask',
          model_type: 'decoder',
          hidden_state_order: 'batch_seq_dim',
          random_ltd_schedule: {
            min_value: 8,
            max_value: 17,
            schedule_type: 'fixed_linear',
            schedule_config: { require_steps: 4, seq_per_step: 4 },
          },
        },
      },
    },
  });
  learn(engine);
  return finish(engine);
}

/** Samples with few words first, from the files of an analysis. */
async function easyFirst(place: Place): Promise<string> {
  const trainingData = {
    length: 128,
    get(index: number) {
      const words = 4 + (index % 60);
      const text = Int32Array.from({ length: 17 }, (_, t) => (index + 3 * t) % words);
      return { tokens: text.slice(0, 16), targets: text.slice(1) };
    },
  };
  const job = await initDistributed({ device: place.device });
  const folder = join(place.folder, 'index');
  const metrics = { vocabularyrarity: 'vocab_rarity' } as const;
  if (place.rank === 0) await data.analyze(trainingData, { metrics, folder });
  job.world.barrier().synchronize(); // run_reduce on the page.
  const analyzed = join(folder, 'vocabularyrarity', 'vocabularyrarity_index_to');
  const { engine, trainLoader } = await initialize({
    model: model(),
    trainingData,
    device: place.device,
    config: {
      ...ADAM,
      data_efficiency: {
        enabled: true,
        data_sampling: {
          enabled: true,
          curriculum_learning: {
            enabled: true,
            curriculum_metrics: {
              vocabularyrarity: {
                index_to_sample_path: `${analyzed}_sample`,
                index_to_metric_path: `${analyzed}_metric`,
                difficulty_type: 'percentile',
                clustering_type: 'schedule_based',
                min_difficulty: 10,
                max_difficulty: 100,
                schedule_type: 'fixed_root',
                schedule_config: {
                  total_curriculum_step: 8,
                  difficulty_step: 1,
                  root_degree: 2,
                },
              },
            },
          },
        },
      },
    },
  });
  let [early, steps] = [0, 0];
  for (const { tokens, targets } of trainLoader) {
    if (++steps <= 2) early = Math.max(early, ...tokens.toArray().flat().map(Number));
    engine.backward(engine.forward<Tensor>(tokens, targets));
    engine.step();
    for (const tensor of [tokens, targets]) tensor.dispose();
    if (steps === 6) break;
  }
  assert.ok(early < 40, `a token ${early} among the easiest samples`);
  return finish(engine);
}

const HALF = { enabled: true, loss_scale: 0, initial_scale_power: 8 };

/** The 1-bit optimizers with the keys of their pages. */
const ONE_BIT: Record<string, DsConfig['optimizer']> = {
  OneBitAdam: {
    type: 'OneBitAdam',
    params: {
      lr: 4e-4,
      weight_decay: 0.01,
      bias_correction: false,
      freeze_step: 3,
      cuda_aware: false,
      comm_backend_name: 'nccl',
    },
  },
  OneBitLamb: {
    type: 'OneBitLamb',
    params: {
      lr: 11e-3,
      max_coeff: 0.3,
      min_coeff: 0.01,
      freeze_step: 3,
      cuda_aware: false,
      comm_backend_name: 'nccl',
      coeff_beta: 0.9,
      factor_max: 4.0,
      factor_min: 0.5,
      factor_threshold: 0.1,
    },
  },
  ZeroOneAdam: {
    type: 'ZeroOneAdam',
    params: {
      lr: 1e-3,
      weight_decay: 0.01,
      bias_correction: false,
      var_freeze_step: 3,
      var_update_scaler: 16,
      local_step_scaler: 1000,
      local_step_clipper: 16,
      cuda_aware: false,
      comm_backend_name: 'nccl',
    },
  },
};

const oneBit =
  (type: string) =>
  async (place: Place): Promise<string> => {
    const engine = await open(place, {
      train_batch_size: 8,
      train_micro_batch_size_per_gpu: 2,
      steps_per_print: 100,
      prescale_gradients: false,
      gradient_clipping: 1.0,
      optimizer: ONE_BIT[type],
      fp16: HALF,
    });
    learn(engine, 8);
    return finish(engine);
  };

export const programs: Program[] = [
  { page: 'one-cycle', name: 'OneCycle', run: oneCycle },
  { page: 'lrrt', name: 'LRRangeTest', run: rangeTest },
  { page: 'progressive_layer_dropping', name: 'progressive_layer_drop', run: layersDropped },
  { page: 'curriculum-learning', name: 'curriculum_learning', run: lengths },
  {
    page: 'curriculum-learning',
    name: 'max_grad_norm is refused',
    ranks: [1],
    run: withMaxGradNorm,
  },
  { page: 'data-efficiency', name: 'random_ltd', run: tokensDropped },
  { page: 'data-efficiency', name: 'data_sampling', run: easyFirst },
  { page: 'onebit-adam', name: 'OneBitAdam', run: oneBit('OneBitAdam') },
  { page: 'onebit-lamb', name: 'OneBitLamb', run: oneBit('OneBitLamb') },
  { page: 'zero-one-adam', name: 'ZeroOneAdam', run: oneBit('ZeroOneAdam') },
];
