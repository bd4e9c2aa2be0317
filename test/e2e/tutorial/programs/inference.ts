// Programs of the pages inference-tutorial, automatic-tensor-parallelism and
// mixture-of-experts-inference.
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  DeepSpeedInferenceConfig,
  DeepSpeedMoEConfig,
  DeepSpeedTPConfig,
  InferenceCheckpointConfig,
  initDistributed,
  initInference,
  nn,
  QuantizationConfig,
  seed,
} from '../../../../lib/index.js';
import { packageRoot } from '../../../../lib/runtime/package-root.js';
import { expectRefusal, leave, model, type Place, type Program } from '../program.js';

type Settings = Parameters<typeof initInference>[1];

const PROMPT = [5, 17, 29];

/** Greedy continuation of the prompt; equal on all ranks. */
async function continueText(
  source: nn.models.GPT2 | string,
  settings: Settings,
): Promise<number[]> {
  const engine = await initInference(source, settings);
  const [[one] = []] = await engine.generateBatch([
    { prompt: PROMPT, temperature: 0, maxNewTokens: 6 },
  ]);
  await engine.destroy();
  assert.equal(one?.tokens.length, 6);
  return [...(one?.tokens ?? [])];
}

/** The call of the page: tensor parallel, with kernel injection. */
async function shareModel(place: Place): Promise<number[]> {
  const settings = {
    tensor_parallel: { tp_size: place.worldSize },
    dtype: 'torch.half',
    checkpoint: null,
    replace_with_kernel_inject: true,
    device: place.device,
  } as Settings;
  const tokens = await continueText(model(), settings);
  await leave();
  return tokens;
}

/** mp_size, the older name of the number of ranks, in f32. */
async function mpSize(place: Place): Promise<number[]> {
  const { device } = place;
  const older = { mp_size: place.worldSize, dtype: 'torch.float', device } as Settings;
  const newer = {
    tensor_parallel: { tp_size: place.worldSize },
    dtype: 'float',
    device,
  } as Settings;
  const [first, second] = [await continueText(model(), older), await continueText(model(), newer)];
  assert.deepEqual(first, second);
  await leave();
  return first;
}

/** Weights from checkpoint.json, for a model without initial weights. */
async function listOptions({ rank, worldSize, device, folder: shared }: Place): Promise<number[]> {
  const job = await initDistributed({ device, mesh: { tp: worldSize } });
  const folder = join(shared, 'listed');
  const checkpoint = join(folder, 'checkpoint.json');
  const trained = model();
  if (rank === 0) {
    await nn.saveWeights(trained, folder); // With names of Hugging Face.
    const files = { type: 'ds_model', version: 0.0, checkpoints: ['model.safetensors'] };
    writeFileSync(checkpoint, JSON.stringify(files));
  }
  job.world.barrier().synchronize();
  const settings = { tensor_parallel: { tp_size: worldSize }, dtype: 'float', device };
  seed(99);
  const fresh = new nn.models.GPT2(trained.config);
  const tokens = await continueText(fresh, { ...settings, checkpoint } as Settings);
  assert.deepEqual(tokens, await continueText(trained, settings as Settings));
  await leave();
  return tokens;
}

/** Refuses pickled parts of Megatron, a path as the list, and T5 with its injection policy. */
async function refusals({ device, folder, rank }: Place): Promise<void> {
  const at = join(folder, `refused.${rank}`);
  mkdirSync(at, { recursive: true });
  const checkpoint = join(at, 'checkpoint.json');
  const parts = ['mp_rank_00/model_optim_rng.pt', 'mp_rank_01/model_optim_rng.pt'];
  writeFileSync(checkpoint, JSON.stringify({ type: 'Megatron', version: 0.0, checkpoints: parts }));
  await expectRefusal(
    () => initInference(model(), { device, checkpoint }),
    'DS_CHECKPOINT',
    'Megatron',
  );
  const policy = { T5Block: ['SelfAttention.o', 'EncDecAttention.o', 'DenseReluDense.wo'] };
  await expectRefusal(
    () => initInference(model(), { device, injection_policy: policy } as Settings),
    'DS_CONFIG',
    'injection_policy',
  );
  const t5 = join(at, 't5');
  await nn.saveWeights(model(), t5);
  writeFileSync(join(t5, 'config.json'), JSON.stringify({ model_type: 't5' }));
  await expectRefusal(() => initInference(t5, { device }), 'DS_CHECKPOINT', 't5');
  await expectRefusal(
    () => initInference(model(), { device, quantization_setting: [2, true] } as Settings),
    'DS_CONFIG',
    'quantization_setting',
  );
}

/** Layers in 8 bits, with dtype torch.int8. */
async function eightBits({ device }: Place): Promise<number[]> {
  return continueText(model(), { device, dtype: 'torch.int8' } as Settings);
}

/** The configuration as objects of DeepSpeed's classes, and as plain sections. */
async function classes({ worldSize, device }: Place): Promise<number[]> {
  const config = DeepSpeedInferenceConfig({
    dtype: 'torch.half',
    device,
    replace_with_kernel_inject: true,
    tp: DeepSpeedTPConfig({ tp_size: worldSize }),
    moe: DeepSpeedMoEConfig({ ep_size: 1, num_experts: [1] }),
    ckpt_config: InferenceCheckpointConfig({ base_dir: null }),
  });
  const sections = { dtype: 'fp16', device, tensor_parallel: { tp_size: worldSize } };
  const tokens = await continueText(model(), config);
  assert.deepEqual(tokens, await continueText(model(), sections as Settings));
  await leave();
  return tokens;
}

/** 8-bit weights by QuantizationConfig. Quantized activations throw. */
async function quantizeModel({ device }: Place): Promise<number[]> {
  const weight = { num_bits: 8, q_type: 'symmetric', q_groups: 1 } as const;
  const quant = QuantizationConfig({ enabled: true, weight, activation: { enabled: false } });
  const activation = { num_bits: 8, q_type: 'asymmetric' } as const;
  await expectRefusal(() => QuantizationConfig({ activation }), 'DS_CONFIG', 'quant.activation');
  return continueText(model(), DeepSpeedInferenceConfig({ device, quant }));
}

/** Expert parallelism. */
async function experts(place: Place): Promise<number[]> {
  seed(12);
  const mixtral = new nn.models.Mixtral({
    vocabSize: 131,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    channels: 32,
    hidden: 48,
    maxSeq: 32,
    moe: { experts: 4, perToken: 2 },
  });
  const settings = {
    mp_size: 1,
    dtype: 'torch.half',
    moe_experts: [4],
    replace_with_kernel_inject: true,
    ep_size: Math.min(place.worldSize, 4),
    device: place.device,
  };
  const engine = await initInference(mixtral, settings as Settings);
  const [[one] = []] = await engine.generateBatch([
    { prompt: PROMPT, temperature: 0, maxNewTokens: 4 },
  ]);
  await engine.destroy();
  await leave();
  return [...(one?.tokens ?? [])];
}

/** The pipeline of the page: text in, text out, from a folder. */
async function text({ device, folder, rank, worldSize }: Place): Promise<string> {
  const at = join(folder, `text.${rank}`);
  seed(13);
  await nn.saveWeights(new nn.models.GPT2({ ...model().config, vocabSize: 1007 }), at);
  cpSync(join(packageRoot(), 'examples/tokenizer'), at, { recursive: true });
  const generator = await initInference(at, {
    device,
    tensor_parallel: { tp_size: worldSize },
    dtype: 'float',
    replace_with_kernel_inject: true,
    min_out_tokens: 2,
  } as Settings);
  const [[output] = []] = await generator.generateBatch([
    { prompt: 'DeepSpeed is', seed: 1, maxNewTokens: 5, minTokens: 5 },
  ]);
  await generator.destroy();
  await leave();
  return output?.text ?? '';
}

export const programs: Program[] = [
  { page: 'inference-tutorial', name: 'tensor_parallel, torch.half', run: shareModel },
  { page: 'automatic-tensor-parallelism', name: 'mp_size', run: mpSize },
  { page: 'inference-tutorial', name: 'checkpoint.json', run: listOptions },
  { page: 'inference-tutorial', name: 'what is refused', ranks: [1], run: refusals },
  { page: 'inference-tutorial', name: 'torch.int8', ranks: [1], run: eightBits },
  { page: 'inference-init', name: 'configuration classes', run: classes },
  { page: 'inference-init', name: 'QuantizationConfig', ranks: [1], run: quantizeModel },
  { page: 'mixture-of-experts-inference', name: 'ep_size', run: experts },
  { page: 'inference-tutorial', name: 'text generation', run: text },
];
