// Programs of the pages zero, zero-offload, zeropp, mixed_precision_zeropp, zenflow and
// universal-checkpointing.
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  consolidate,
  type DsConfig,
  initialize,
  nn,
  parseConfigArguments,
  zero,
} from '../../../../lib/index.js';
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

/** Settings of the page's scripts outside of the ZeRO section. */
const TRAINING: DsConfig = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'Adam', params: { lr: 0.0015, weight_decay: 0.01 } },
  gradient_clipping: 1.0,
};

const STAGE_1: DsConfig['zero_optimization'] = { stage: 1, reduce_bucket_size: 5e8 };

const STAGE_2: DsConfig['zero_optimization'] = {
  stage: 2,
  contiguous_gradients: true,
  overlap_comm: true,
  reduce_scatter: true,
  reduce_bucket_size: 5e8,
  allgather_bucket_size: 5e8,
};

const STAGE_3: DsConfig['zero_optimization'] = {
  stage: 3,
  contiguous_gradients: true,
  stage3_max_live_parameters: 1e9,
  stage3_max_reuse_distance: 1e9,
  stage3_prefetch_bucket_size: 1e7,
  stage3_param_persistence_threshold: 1e5,
  reduce_bucket_size: 1e7,
  sub_group_size: 1e9,
  offload_optimizer: { device: 'cpu' },
  offload_param: { device: 'cpu' },
};

const engineOf = async (place: Place, zero_optimization: DsConfig['zero_optimization']) =>
  (
    await initialize({
      model: zero.Init(() => model()),
      config: configFile(place, { ...TRAINING, zero_optimization }),
      device: place.device,
    })
  ).engine;

/** Each stage with the configuration of the page; all give the same weights. */
async function stages(place: Place): Promise<string> {
  const hashes: string[] = [];
  for (const section of [STAGE_1, STAGE_2, STAGE_3]) {
    const engine = await engineOf(place, section);
    learn(engine);
    hashes.push(await finish(engine));
  }
  assert.equal(new Set(hashes).size, 1);
  return hashes[0] as string;
}

/** One rank writes values into gathered parameters before training. */
async function gatherParameters(place: Place): Promise<string> {
  const engine = await engineOf(place, STAGE_3);
  const { wpe } = (engine.module as nn.models.GPT2).transformer;
  zero.GatheredParameters([wpe.weight], { modifierRank: 0 }, () => {
    if (place.rank === 0) nn.init.normal(0.01)(wpe.weight);
  });
  learn(engine);
  return finish(engine);
}

/** Whole weights from shards: save_16bit_model and zero_to_fp32. */
async function extractWeights(place: Place): Promise<string> {
  const engine = await engineOf(place, {
    ...(STAGE_3 as object),
    stage3_gather_16bit_weights_on_model_save: true,
  });
  trainStep(engine);
  const file = await engine.save16bitModel(place.folder, 'pytorch_model.safetensors');
  const saved = join(place.folder, 'checkpoint');
  await engine.saveCheckpoint(saved);
  const hash = await finish(engine);
  const again = model();
  const { missing, unexpected } = await nn.loadWeights(again, file);
  assert.deepEqual([[...missing], [...unexpected]], [[], []]);
  if (place.rank === 0) await consolidate(saved, join(place.folder, 'whole'));
  return hash;
}

/** The ZeRO-Offload configuration of the page, which lacks a comma and has an extra one. */
const OFFLOAD = `{
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": { "type": "Adam", "params": { "lr": 0.0015 } },
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {
            "device": "cpu",
        }
        "contiguous_gradients": true,
        "overlap_comm": true
    }
}
`;

async function offloadStates(place: Place): Promise<string> {
  const { args } = parseConfigArguments(['--deepspeed_config', configFile(place, OFFLOAD)]);
  const { engine } = await initialize({ model: model(), args, device: place.device });
  const { zero_optimization: read } = engine.config;
  assert.equal(read.stage, 2);
  assert.equal(read.offload_optimizer.device, 'cpu');
  assert.equal(read.contiguous_gradients, true);
  learn(engine);
  return finish(engine);
}

/** The deprecated key in the script that the page starts. */
async function deprecatedOffload(place: Place): Promise<string> {
  const config = {
    ...TRAINING,
    zero_optimization: { stage: 2, cpu_offload: true, reduce_bucket_size: 50000000 },
    zero_allow_untested_optimizer: true,
    fp16: {
      enabled: true,
      loss_scale: 4096,
      loss_scale_window: 1000,
      hysteresis: 2,
      min_loss_scale: 1,
    },
    activation_checkpointing: {
      partition_activations: true,
      contiguous_memory_optimization: true,
      cpu_checkpointing: true,
    },
    wall_clock_breakdown: true,
  } as DsConfig;
  let hash = '';
  const warnings = await warningsOf(async () => {
    const { engine } = await initialize({ model: model(), config, device: place.device });
    assert.equal(engine.config.zero_optimization.offload_optimizer.device, 'cpu');
    learn(engine);
    hash = await finish(engine);
  });
  if (place.rank === 0) assert.ok(warnings.some((text) => text.includes('cpu_offload')));
  return hash;
}

async function plusPlus(place: Place): Promise<string> {
  const engine = await engineOf(place, {
    stage: 3,
    reduce_bucket_size: 10000000,
    reduce_scatter: true,
    zero_quantized_weights: true,
    zero_hpz_partition_size: place.worldSize,
    zero_quantized_gradients: true,
    contiguous_gradients: true,
    overlap_comm: true,
  });
  learn(engine);
  return finish(engine);
}

/** Keys for missing features throw with their names. */
async function refusedKeys(place: Place): Promise<void> {
  const cpu = { offload_optimizer: { device: 'cpu', pin_memory: true } } as const;
  const zenflow = {
    topk_ratio: 0.05,
    select_strategy: 'auto',
    select_interval: 'auto',
    update_interval: 4,
    full_warm_up_rounds: 0,
    overlap_step: true,
  };
  const sections: Record<string, object> = {
    zero_quantized_nontrainable_weights: { stage: 3, zero_quantized_nontrainable_weights: true },
    zenflow: { stage: 2, ...cpu, zenflow },
  };
  for (const [key, section] of Object.entries(sections)) {
    const config = { ...TRAINING, zero_optimization: section } as DsConfig;
    await expectRefusal(
      () => initialize({ model: model(), config, device: place.device }),
      'DS_CONFIG',
      `zero_optimization.${key}`,
    );
  }
  const nebula = { ...TRAINING, datastates_ckpt: { host_cache_size: 16 } } as DsConfig;
  await expectRefusal(
    () => initialize({ model: model(), config: nebula, device: place.device }),
    'DS_CONFIG',
    'datastates_ckpt',
  );
  await leave();
}

/** A checkpoint of one stage loads in another, with the key of the page and without conversion. */
async function universal(place: Place): Promise<string> {
  const dir = join(place.folder, 'universal');
  const saved = await engineOf(place, STAGE_2);
  learn(saved);
  await saved.saveCheckpoint(dir, { tag: 'global_step6' });
  const hash = hashOf(saved);
  saved.destroy();
  const { engine } = await initialize({
    model: model(),
    config: { ...TRAINING, zero_optimization: STAGE_1, checkpoint: { load_universal: true } },
    device: place.device,
  });
  await engine.loadCheckpoint(dir, { tag: 'global_step6' });
  assert.equal(hashOf(engine), hash);
  // A folder from DeepSpeed's ds_to_universal.py holds pickled tensors.
  const pickled = join(place.folder, `pickled.${place.rank}`);
  mkdirSync(join(pickled, 'global_step6_universal', 'zero'), { recursive: true });
  writeFileSync(join(pickled, 'latest_universal'), 'global_step6_universal');
  await expectRefusal(
    () => engine.loadCheckpoint(pickled, { tag: 'global_step6_universal' }),
    'DS_CHECKPOINT',
    'global_step6_universal',
  );
  trainStep(engine);
  return finish(engine);
}

export const programs: Program[] = [
  { page: 'zero', name: 'stages 1, 2 and 3', run: stages },
  { page: 'zero', name: 'GatheredParameters', run: gatherParameters },
  { page: 'zero', name: 'weights out of shards', run: extractWeights },
  { page: 'zero-offload', name: 'the configuration as printed', run: offloadStates },
  { page: 'zero-offload', name: "the script's configuration", run: deprecatedOffload },
  { page: 'zeropp', name: 'quantized weights and gradients', run: plusPlus },
  { page: 'zenflow', name: 'keys of what is not there', run: refusedKeys },
  { page: 'universal-checkpointing', name: 'another stage', run: universal },
];
