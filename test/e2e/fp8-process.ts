// One rank that trains a tiny GPT-2 with FP8 products, stage by stage, and reports the losses.
import { initDistributed } from '../../lib/comm/index.js';
import { type DsConfig, type Engine, initialize } from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';
import type { Fp8Recipe } from '../../lib/tensor/ops/fp8-linear.js';
import { tinyConfig, tinyModel, trainTiny } from './tiny-training.js';

export interface Fp8Job {
  device: 'cpu' | 'cuda';
  recipe: Fp8Recipe;
  /** ZeRO stages of runs from the initial weights. */
  stages: number[];
  /** Stage 3 gathers codes. Default: false. */
  allGather?: boolean;
  /** Ranks that share each layer. Default: 1. */
  tensorParallel?: number;
}

export interface Fp8Report {
  /** By stage. */
  losses: number[][];
}

async function main(): Promise<void> {
  const {
    device,
    recipe,
    stages,
    tensorParallel: tp = 1,
    allGather = false,
  } = JSON.parse(process.argv[2] ?? '') as Fp8Job;
  const job = await initDistributed({ mesh: { tp }, ...(device === 'cpu' && { device }) });
  job.world.device.setDeterministic(true);
  const losses: number[][] = [];
  for (const stage of stages) {
    seed(1234);
    const options = { precision: 'bf16', offload: false, fp8: recipe, zero: { stage } } as const;
    const config = {
      ...tinyConfig(options as Parameters<typeof tinyConfig>[0]),
      ...(tp > 1 && { tensor_parallel: { autotp_size: tp } }),
      ...(stage === 3 && { fp8: { enabled: true, recipe, all_gather: allGather } }),
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
