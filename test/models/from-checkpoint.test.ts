// Tests that a training checkpoint of any engine loads as a model.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn, noGrad, scope, Tensor } from '../../lib/index.js';
import { Linear } from '../../lib/nn/index.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-from-checkpoint-'));
afterAll(() => rmSync(folder, { recursive: true }));

const llama = {
  model_type: 'llama',
  vocab_size: 40,
  hidden_size: 32,
  intermediate_size: 48,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  rms_norm_eps: 1e-6,
  max_position_embeddings: 32,
  rope_theta: 500,
  hidden_act: 'silu',
  eos_token_id: 3,
};
const models = {
  gpt2: () => new nn.models.GPT2({ vocabSize: 40, maxSeq: 32, layers: 2, heads: 4, channels: 32 }),
  llama: () => nn.models.fromConfig(llama),
};

async function save(dir: string, model: nn.Module, config: object = {}): Promise<void> {
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 1,
      optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
      ...config,
    },
    device: 'cpu',
  });
  await engine.saveCheckpoint(dir);
  engine.destroy();
}

const logitsOf = (model: nn.models.CausalLM): number[] =>
  noGrad(() =>
    scope(() => {
      const tokens = Tensor.from([[1, 5, 9, 2]], { dtype: 'i32' });
      return model.call(tokens).to('f32').toArray() as number[];
    }),
  );

test.each(Object.entries(models))('%s computes the same as the saved model', async (name, make) => {
  const dir = join(folder, name);
  const model = make();
  const before = logitsOf(model);
  await save(dir, model);
  const again = await nn.models.fromPretrained(dir);
  expect(again.constructor).toBe(model.constructor);
  expect(logitsOf(again)).toEqual(before);
  expect(again.describe()).toEqual(make().describe());
  const half = await nn.models.fromPretrained(dir, { dtype: 'bf16' });
  expect(half.parameters().every(({ dtype }) => dtype === 'bf16')).toBe(true);
  expect(Math.abs((logitsOf(half)[0] as number) - (before[0] as number))).toBeLessThan(0.05);
});

test('weights of 16-bit training are the 16-bit weights', async () => {
  const dir = join(folder, 'bf16');
  await save(dir, models.gpt2(), { bf16: { enabled: true }, zero_optimization: { stage: 2 } });
  const again = await nn.models.fromPretrained(dir);
  expect(again.parameters().every(({ dtype }) => dtype === 'bf16')).toBe(true);
});

test('folders without a checkpoint of a described model are refused', async () => {
  const dir = join(folder, 'linear');
  await save(dir, new Linear(2, 2));
  await expect(nn.models.fromPretrained(dir)).rejects.toThrow(
    /a model with a description for transformers, got a checkpoint without it/,
  );
  const empty = join(folder, 'gone');
  writeFileSync(join(folder, 'latest'), 'global_step9');
  await expect(nn.models.fromPretrained(folder)).rejects.toThrow(/a checkpoint "global_step9"/);
  await expect(nn.models.fromPretrained(empty)).rejects.toThrow(/nothing of this name/);
});
