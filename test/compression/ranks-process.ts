// One of two ranks that train a compressed model at each ZeRO stage on their half of every batch.
import { initDistributed } from '../../lib/comm/index.js';
import { compressModel, everything, train, valuesOf } from './models.js';

export interface RanksJob {
  device: 'cpu' | 'cuda';
}

/** Of each stage. */
export interface RanksReport {
  losses: number[][];
  values: Record<string, number[]>[];
}

async function main(): Promise<void> {
  const { device } = JSON.parse(process.argv[2] ?? '') as RanksJob;
  const job = await initDistributed(device === 'cpu' ? { device } : {});
  const report: RanksReport = { losses: [], values: [] };
  for (const stage of [0, 1, 2, 3] as const) {
    const more = {
      train_micro_batch_size_per_gpu: 2,
      zero_optimization: { stage, stage3_param_persistence_threshold: 0 },
    };
    const engine = await compressModel(everything, more, job.world.device);
    report.losses.push(train(engine, 6));
    report.values.push(valuesOf(engine));
    engine.destroy();
  }
  await job.destroy();
  process.stdout.write(`${JSON.stringify(report)}\n`);
}

void main();
