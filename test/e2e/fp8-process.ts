// One rank that trains a tiny GPT-2 with FP8 products, leg by leg, and reports the losses.
import { initDistributed } from '../../lib/comm/index.js';
import { type DsConfig, type Engine, initialize } from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';
import type { Fp8Recipe } from '../../lib/tensor/ops/fp8-linear.js';
import { tinyConfig, tinyModel, trainTiny } from './tiny-training.js';

export interface Fp8Job {
  device: 'cpu' | 'cuda';
  recipe: Fp8Recipe;
  /** Runs from the initial weights. */
  legs: { stage: number; tensorParallel?: number }[];
}

export interface Fp8Report {
  /** By leg. */
  losses: number[][];
}

async function main(): Promise<void> {
  const { device, recipe, legs } = JSON.parse(process.argv[2] ?? '') as Fp8Job;
  const job = await initDistributed(device === 'cpu' ? { device } : {});
  job.world.device.setDeterministic(true);
  const losses: number[][] = [];
  for (const { stage, tensorParallel } of legs) {
    seed(1234);
    const options = { precision: 'bf16', offload: false, fp8: recipe, zero: { stage } } as const;
    const config = {
      ...tinyConfig(options as Parameters<typeof tinyConfig>[0]),
      ...(tensorParallel && { tensor_parallel: { autotp_size: tensorParallel } }),
    } as DsConfig;
    const model = tinyModel({ model: { channels: 64, heads: 4 } });
    const { engine }: { engine: Engine } = await initialize({
      model,
      config,
      device: job.world.device,
    });
    losses.push(trainTiny(engine, 0, 8));
    engine.destroy();
  }
  await job.destroy();
  console.log(JSON.stringify({ losses } satisfies Fp8Report));
}

void main();
