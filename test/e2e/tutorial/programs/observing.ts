// Programs of the pages monitor, flops-profiler, comms-logging, pytorch-profiler, autotuning,
// sparse-attention, model-compression and MoQ-tutorial.
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  comm,
  type DsConfig,
  getModelProfile,
  initCompression,
  initDistributed,
  initialize,
  monitor,
  redundancyClean,
  resolveConfig,
  seed,
  Tensor,
} from '../../../../lib/index.js';
import { tinyModel } from '../../tiny-training.js';
import {
  configFile,
  expectRefusal,
  finish,
  hashOf,
  learn,
  leave,
  model,
  type Place,
  type Program,
  trainStep,
  warningsOf,
} from '../program.js';

const ADAM: DsConfig = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'Adam', params: { lr: 0.003 } },
};

/** The sections of the page, which lack commas between them. */
const MONITORS = (folder: string): string => `{
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": { "type": "Adam", "params": { "lr": 0.003 } },
  "tensorboard": {
    "enabled": true,
    "output_path": ${JSON.stringify(join(folder, 'ds_logs/'))},
    "job_name": "train_bert"
  }
  "wandb": {
    "enabled": true,
    "team": "my_team",
    "group": "my_group",
    "project": "my_project"
  }
  "comet": {
    "enabled": true,
    "project": "my_project",
    "experiment_name": "my_experiment"
  }
  "csv_monitor": {
    "enabled": true,
    "output_path": ${JSON.stringify(join(folder, 'ds_logs/'))},
    "job_name": "train_bert_csv"
  }
}
`;

async function monitorTraining(place: Place): Promise<string> {
  const { device, folder, rank } = place;
  let hash = '';
  const warnings = await warningsOf(async () => {
    const config = configFile(place, MONITORS(folder));
    const { engine } = await initialize({ model: model(), config, device });
    learn(engine);
    await engine.flushMonitors();
    hash = await finish(engine);
  });
  if (rank === 0) {
    for (const words of ['wandb', 'comet', 'commas are missing after tensorboard (4:3), wandb']) {
      const isSaid = warnings.some((text) => text.includes(words));
      assert.ok(isSaid, `${warnings}`);
    }
    assert.ok(readdirSync(join(folder, 'ds_logs', 'train_bert')).length > 0);
    const csv = join(folder, 'ds_logs', 'train_bert_csv');
    const loss = readdirSync(csv).find((name) => name.includes('train_loss')) as string;
    assert.equal(readFileSync(join(csv, loss), 'utf8').trim().split('\n').length, 7);
  }
  return hash;
}

/** The program writes its own events to the engine's monitors. */
async function ownEvents({ device, folder, rank }: Place): Promise<string> {
  const localCsvMonitor = new monitor.CsvMonitor({
    outputPath: join(folder, `own.${rank}`),
    jobName: 'job',
  });
  // The page passes the configuration, but the engine has made its monitors already.
  const section = ADAM as unknown as monitor.Monitor[];
  await expectRefusal(
    () => new monitor.MonitorMaster(section),
    'DS_ARGUMENT',
    'a list of monitors',
  );
  const master = new monitor.MonitorMaster([localCsvMonitor]);
  const { engine } = await initialize({ model: model(), config: ADAM, device });
  for (let i = 0; i < 3; ++i) {
    trainStep(engine);
    master.write([{ name: 'Time per step', value: i, step: engine.globalSamples }]);
  }
  await master.flush();
  master.close();
  return finish(engine);
}

async function profileModel(place: Place): Promise<string> {
  const output_file = join(place.folder, 'profile.txt');
  const { engine } = await initialize({
    model: model(),
    config: configFile(place, {
      ...ADAM,
      flops_profiler: {
        enabled: true,
        profile_step: 1,
        module_depth: -1,
        top_modules: 1,
        detailed: true,
        output_file,
      },
    }),
    device: place.device,
  });
  learn(engine);
  const hash = await finish(engine);
  if (place.rank === 0) {
    const text = readFileSync(output_file, 'utf8');
    for (const word of ['GPT2', 'params', 'MACs', 'fwd latency']) {
      assert.ok(text.includes(word), `${word} in\n${text}`);
    }
  }
  return hash;
}

/** get_model_profile(), outside of training. */
async function modelProfile(): Promise<string> {
  const tokens = Tensor.from(
    Array.from({ length: 32 }, (_, i) => i),
    { shape: [2, 16], dtype: 'i32' },
  );
  const { flops, macs, parameters } = getModelProfile(tinyModel(), [tokens], {
    printProfile: false,
    detailed: true,
    moduleDepth: -1,
    topModules: 1,
    warmUp: 2,
  });
  tokens.dispose();
  assert.ok(flops > macs && macs > 0, `${flops}, ${macs}`);
  assert.equal(parameters, tinyModel().numParameters());
  return `${flops}`;
}

/** The comms logger and its table. */
async function commsLogged(place: Place): Promise<string> {
  await initDistributed({ device: place.device });
  const { engine } = await initialize({
    model: model(),
    config: {
      ...ADAM,
      comms_logger: { enabled: true, verbose: false, prof_all: true, debug: false },
    },
    device: place.device,
  });
  learn(engine, 4);
  const { write } = process.stdout;
  let table = '';
  process.stdout.write = ((text: string) => {
    table += text;
    return true;
  }) as typeof process.stdout.write;
  comm.logSummary({ showStraggler: true });
  process.stdout.write = write;
  if (place.rank === 0 && place.worldSize > 1) assert.match(table, /Count.*Total Straggler\(ms\)/);
  return finish(engine);
}

/** A Chrome trace of two steps, where the page uses torch.profiler. */
async function traceStep({ device, folder, rank }: Place): Promise<string> {
  const { engine } = await initialize({ model: model(), config: ADAM, device });
  const file = engine.trace(join(folder, 'trace.json'), { steps: 2, after: 1 });
  learn(engine, 5);
  const hash = await finish(engine);
  assert.ok(existsSync(file), `${file} of rank ${rank}`);
  assert.ok(JSON.parse(readFileSync(file, 'utf8')).traceEvents.length > 0);
  return hash;
}

/** Reads the file of the page. Without the launcher's flag it trains unchanged. */
async function autotune(): Promise<string> {
  const config = {
    train_micro_batch_size_per_gpu: 'auto',
    optimizer: ADAM.optimizer,
    fp16: { enabled: true },
    autotuning: {
      enabled: true,
      arg_mappings: {
        train_micro_batch_size_per_gpu: '--per_device_train_batch_size',
        'gradient_accumulation_steps ': '--gradient_accumulation_steps', // The page has the blank.
      },
    },
  } as DsConfig;
  const auto = { training: { perDeviceBatchSize: 2 } };
  const resolved = resolveConfig(config, { worldSize: 1, auto });
  assert.equal(resolved.train_micro_batch_size_per_gpu, 2);
  return JSON.stringify(resolved.notices);
}

async function sparse(place: Place): Promise<string> {
  const { engine } = await initialize({
    model: model(),
    config: configFile(place, {
      ...ADAM,
      sparse_attention: {
        mode: 'fixed',
        block: 16,
        different_layout_per_head: true,
        num_local_blocks: 4,
        num_global_blocks: 1,
        attention: 'unidirectional',
        horizontal_global_attention: false,
        num_different_global_patterns: 1,
      },
    }),
    device: place.device,
  });
  learn(engine);
  return finish(engine);
}

/** The techniques of the page for BERT, applied to the layers of a GPT-2. */
const COMPRESSED = {
  train_micro_batch_size_per_gpu: 2,
  steps_per_print: 200,
  optimizer: { type: 'Adam', params: { lr: 0.003 } },
  zero_optimization: { stage: 0 },
  fp16: { enabled: false },
  gradient_clipping: 1.0,
  prescale_gradients: true,
  wall_clock_breakdown: false,
  compression_training: {
    layer_reduction: {
      enabled: true,
      keep_number_layer: 2,
      module_name_prefix: 'transformer.h',
      teacher_layer: [1, 3],
      other_module_name: ['transformer.wte', 'transformer.wpe'],
    },
    weight_quantization: {
      shared_parameters: {
        enabled: true,
        quantizer_kernel: false,
        schedule_offset: 0,
        quantize_groups: 4,
        quantize_verbose: false,
        quantization_type: 'symmetric',
        quantize_weight_in_forward: true,
        rounding: 'nearest',
        fp16_mixed_quantize: { enabled: false, quantize_change_ratio: 0.1 },
      },
      different_groups: {
        wq1: {
          params: { start_bits: 8, target_bits: 8, quantization_period: 0 },
          modules: ['attn'],
        },
      },
    },
    activation_quantization: {
      shared_parameters: {
        enabled: true,
        quantization_type: 'symmetric',
        range_calibration: 'dynamic',
        schedule_offset: 0,
      },
      different_groups: { aq1: { params: { bits: 8 }, modules: ['attn'] } },
    },
    sparse_pruning: {
      shared_parameters: { enabled: true, schedule_offset: 2, method: 'l1' },
      different_groups: { sp1: { params: { dense_ratio: 0.5 }, modules: ['attn.c_attn'] } },
    },
    row_pruning: {
      shared_parameters: { enabled: true, schedule_offset: 2, method: 'topk' },
      different_groups: {
        rp1: {
          params: { dense_ratio: 0.5 },
          modules: ['mlp.c_fc'],
          related_modules: [['mlp.c_proj']],
        },
      },
    },
    head_pruning: {
      shared_parameters: { enabled: true, schedule_offset: 2, method: 'topk', num_heads: 2 },
      different_groups: {
        rp1: {
          params: { dense_ratio: 0.5 },
          // Queries, keys and values are one layer here, so row pruning shrinks no other layer.
          modules: ['attn.c_proj'],
        },
      },
    },
  },
} as unknown as DsConfig;

async function compressModel({ device }: Place): Promise<string> {
  seed(5);
  const teacher = tinyModel({ model: { layers: 4 } });
  const student = model();
  initCompression(student, COMPRESSED, teacher);
  const { engine } = await initialize({ model: student, config: COMPRESSED, device });
  learn(engine, 8);
  const hash = hashOf(engine);
  engine.destroy();
  await leave();
  const before = student.numParameters();
  redundancyClean(student, COMPRESSED);
  assert.ok(student.numParameters() < before);
  return hash;
}

/** Refuses training with a falling number of bits, and pruning by Intel's library. */
async function refusals({ device }: Place): Promise<void> {
  const moq = {
    enabled: true,
    quantize_verbose: true,
    quantizer_kernel: true,
    quantize_groups: 8,
    quantize_algo: { q_type: 'symmetric' },
    quantize_bits: { start_bits: 16, target_bits: 8 },
    quantize_schedule: { quantize_period: 400, schedule_offset: 0 },
  };
  await expectRefusal(
    () =>
      initialize({
        model: model(),
        config: { ...ADAM, quantize_training: moq } as DsConfig,
        device,
      }),
    'DS_CONFIG',
    'quantize_training',
  );
  const snip = {
    shared_parameters: { enabled: true, method: 'snip_momentum', schedule_offset: 2 },
    different_groups: {},
  };
  const config = { ...ADAM, compression_training: { sparse_pruning: snip } } as DsConfig;
  await expectRefusal(() => initCompression(model(), config), 'DS_CONFIG', 'snip_momentum');
  await leave();
}

export const programs: Program[] = [
  { page: 'monitor', name: 'four monitors', run: monitorTraining },
  { page: 'monitor', name: 'events of the program', run: ownEvents },
  { page: 'flops-profiler', name: 'flops_profiler', run: profileModel },
  { page: 'flops-profiler', name: 'get_model_profile', ranks: [1], run: modelProfile },
  { page: 'comms-logging', name: 'comms_logger and its table', run: commsLogged },
  { page: 'pytorch-profiler', name: 'a trace of steps', run: traceStep },
  { page: 'autotuning', name: "the page's file", ranks: [1], run: autotune },
  { page: 'sparse-attention', name: 'sparse_attention', run: sparse },
  { page: 'model-compression', name: 'all techniques', run: compressModel },
  { page: 'MoQ-tutorial', name: 'what is refused', ranks: [1], run: refusals },
];
