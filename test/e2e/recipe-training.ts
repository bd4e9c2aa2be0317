// Trains the tiny GPT-2 with a recipe of the documentation on one batch, until the loss falls.
import { createHash } from 'node:crypto';
import { type DsConfig, initialize, type Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import { tinyBatch, tinyModel, weightBits } from './tiny-training.js';

/** A configuration of docs/recipes.md. */
export interface Recipe {
  title: string;
  config: DsConfig;
}

/** The result of a recipe on one rank. */
export interface Followed {
  title: string;
  losses: number[];
  updates: number;
  /** Hash of the final weights. */
  hash: string;
}

const UPDATES = 12;

export async function follow({ title, config }: Recipe, device?: Device): Promise<Followed> {
  seed(7);
  const model = tinyModel({ checkpointing: config.activation_checkpointing !== undefined });
  const { engine } = await initialize({ model, config, ...(device ? { device } : {}) });
  const size = engine.trainMicroBatchSizePerGpu();
  const { tokens, targets } = tinyBatch(engine.globalRank, engine.device, size);
  const losses: number[] = [];
  for (let micro = 0; micro < UPDATES * engine.gradientAccumulationSteps(); ++micro) {
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
    losses.push(loss.item());
    loss.dispose();
  }
  const hash = createHash('sha1');
  for (const bits of weightBits(engine).values()) hash.update(bits);
  const updates = engine.globalSteps - engine.skippedSteps;
  for (const tensor of [tokens, targets]) tensor.dispose();
  engine.destroy();
  return { title, losses, updates, hash: hash.digest('hex') };
}
