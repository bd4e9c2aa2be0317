// One rank with an initialize() that may throw on this rank only; reports each attempt in one job.
import {
  type DsConfig,
  type DsError,
  initDistributed,
  initialize,
  nn,
  seed,
} from '../../lib/index.js';

/** Additions to the configuration, by attempt, then by rank. */
export interface RefusedJob {
  attempts: (readonly [object, object])[];
}

async function main({ attempts }: RefusedJob): Promise<void> {
  const job = await initDistributed({ device: 'cpu', timeout: 0.3 });
  const reports: string[] = [];
  for (const localItems of attempts) {
    seed(1);
    const config = {
      train_micro_batch_size_per_gpu: 1,
      optimizer: { type: 'AdamW', params: {} },
      ...localItems[job.rank],
    } as DsConfig;
    try {
      const { engine } = await initialize({ model: new nn.Linear(4, 4), config });
      engine.destroy();
      reports.push('fine');
    } catch (error) {
      const { code, message } = error as DsError;
      reports.push(`${code} ${message}`);
    }
  }
  await job.destroy();
  console.log(JSON.stringify(reports));
}

void main(JSON.parse(process.argv[2] as string) as RefusedJob);
