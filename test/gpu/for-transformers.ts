// Writes folders of every kind for transformers and PEFT, with this library's logits. Run this with
// DIR [GPT-2's size] [device], then scripts/check-in-transformers.py DIR.
import { readdirSync, rmSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { consolidate } from '../../lib/checkpoint/index.js';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { initialize, nn, noGrad, optim, peft, scope, seed, Tensor } from '../../lib/index.js';

type Model = nn.models.CausalLM;

const [folder = '.', size = '124M', device = 'auto'] = process.argv.slice(2);
const MODELS = resolve('test/golden/transformers/models');
const [ROWS, LENGTH] = [2, 24];

function tokensOf({ vocabSize, computesIn }: Model): Tensor {
  const ids = Int32Array.from({ length: ROWS * LENGTH }, (_, i) => (i * 7919 + 13) % vocabSize);
  return Tensor.from(ids, { shape: [ROWS, LENGTH], device: computesIn.device });
}

async function writeLogits(dir: string, model: Model): Promise<void> {
  model.eval();
  const tokens = tokensOf(model);
  const logits = noGrad(() => scope(() => model.call(tokens).to('f32').contiguous()));
  await writeSafetensors(join(dir, 'logits.safetensors'), [
    { name: 'tokens', dtype: 'i32', shape: tokens.shape, values: tokens },
    { name: 'logits', dtype: 'f32', shape: logits.shape, values: logits },
  ]);
  console.log(dir);
}

/** Trains a few steps, so that all parameters change. */
function train(model: Model): void {
  const parameters = model.parameters().filter(({ requiresGrad }) => requiresGrad);
  const optimizer = new optim.AdamW(parameters, { lr: 1e-3 });
  model.train();
  for (let step = 0; step < 3; step++) {
    scope(() => {
      const tokens = tokensOf(model);
      model.call(tokens, tokens).backward();
      optimizer.step();
      optimizer.zeroGrad();
    });
  }
}

async function saveModel(name: string): Promise<void> {
  const model = await nn.models.fromPretrained(join(MODELS, name));
  train(model);
  await model.save(join(folder, name, 'model'));
  await writeLogits(join(folder, name), model);
}

async function saveAdapter(name: string, options: peft.LoraOptions): Promise<void> {
  const dir = join(folder, `${name}-adapter`);
  const model = await nn.models.fromPretrained(join(MODELS, name));
  await model.save(join(dir, 'model'));
  peft.addLora(model, options);
  train(model);
  await peft.saveAdapter(model, join(dir, 'adapter'));
  await writeLogits(dir, model);
}

/** Runs `ds consolidate` on a checkpoint, into one file and into many. */
async function consolidateCheckpoint(): Promise<void> {
  seed(1234);
  const model = new nn.models.GPT2(nn.models.GPT2.config(size));
  const config = { train_batch_size: 1, optimizer: { type: 'AdamW' } } as const;
  const { engine } = await initialize({ model, config, device });
  const checkpoints = join(folder, 'checkpoints');
  await engine.saveCheckpoint(checkpoints);
  for (const [name, maxShardBytes] of [
    ['consolidated', 5e9],
    ['consolidated-sharded', 2e7],
  ] as const) {
    await consolidate(checkpoints, join(folder, name, 'model'), { maxShardBytes });
    await writeLogits(join(folder, name), model);
  }
  rmSync(checkpoints, { recursive: true });
  engine.destroy();
}

async function main(): Promise<void> {
  for (const name of readdirSync(MODELS).filter((text) => text !== 'ropes')) await saveModel(name);
  await saveAdapter('llama', { r: 4, loraAlpha: 16, targetModules: 'all-linear' });
  await saveAdapter('qwen3', { r: 6, useRslora: true, targetModules: ['q_proj', 'down_proj'] });
  await saveAdapter('gpt2', { r: 4, loraAlpha: 8, bias: 'all' });
  await consolidateCheckpoint();
}

void main();
