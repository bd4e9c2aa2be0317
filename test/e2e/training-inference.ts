// Trains a model with one engine and generates with another one, on one rank.
import assert from 'node:assert/strict';
import {
  type DsConfig,
  type Engine,
  type inference,
  initInference,
  initialize,
  type nn,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import {
  type Precision,
  tinyBatch,
  tinyConfig,
  tinyModel,
  trainTiny,
  weightBits,
} from './tiny-training.js';

export interface Trained {
  precision: Precision;
  offload: boolean;
  speculative?: boolean;
  zero: NonNullable<DsConfig['zero_optimization']>;
}

const prompt = Array.from({ length: 18 }, (_, i) => (i * 11) % 131);
/** Requests have a seed. Without it they would advance the generator of dropout. */
const greedy = { maxNewTokens: 8, temperature: 0, ignoreEos: true, seed: 1 };
const settings = { max_out_tokens: 32, kv_cache: { block_size: 16 } };
const STEPS = 4;

async function engineOf(options: Trained, device: Device): Promise<Engine> {
  seed(1234);
  const model = tinyModel({ dropout: 0.1 });
  const { engine } = await initialize({ model, config: tinyConfig(options), device });
  return engine;
}

/**
 * Trains, and generates between steps and between forward and backward. Asserts that texts equal
 * model.generate() with the current weights. Returns the bits of the weights.
 */
export async function trainAndContinue(
  options: Trained,
  device: Device,
  writes: boolean,
): Promise<Map<string, string>> {
  const engine = await engineOf(options, device);
  const model = engine.module as nn.models.GPT2;
  const writer = writes ? await initInference(model, settings) : null;
  for (let step = 0; step < STEPS; ++step) {
    if (writer) await continues(writer, model);
    assert.equal(model.training, true);
    const { tokens, targets } = tinyBatch(step, engine.device);
    const loss = engine.forward(tokens, targets) as ReturnType<typeof model.call>;
    if (writer && step === 2) await continues(writer, model);
    engine.backward(loss);
    engine.step();
    for (const tensor of [tokens, targets]) tensor.dispose();
  }
  if (writer) await continues(writer, model);
  await writer?.destroy();
  trainTiny(engine, STEPS, STEPS + 1);
  const bits = weightBits(engine);
  engine.destroy();
  return bits;
}

async function continues(writer: inference.InferenceEngine, model: nn.models.GPT2): Promise<void> {
  const [one] = await writer.generate({ prompt, ...greedy });
  const expected = model.generate(prompt, { maxNewTokens: 8, temperature: 0 });
  assert.deepEqual([...prompt, ...(one?.tokens ?? [])], expected);
}
