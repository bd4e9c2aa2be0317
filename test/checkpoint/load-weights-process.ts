// One rank that loads weights from a file into a custom module, trains it sharded and reports its
// outputs.
import { comm, DsError, initialize, nn } from '../../lib/index.js';
import { Sorter } from './sorter-model.js';

export interface LoadJob {
  path: string;
}

export interface LoadReport {
  /** Outputs of the module before initialize(), and of the engine after it. */
  outputs: number[];
  engineOutputs: number[];
  /** The error of loadWeights after an engine has taken the module. */
  afterwards: string;
}

async function main({ path }: LoadJob): Promise<void> {
  const job = await comm.initDistributed({ device: 'cpu' });
  const model = new Sorter();
  await nn.loadWeights(model, path);
  const outputs = model.evaluate();
  const config = {
    train_micro_batch_size_per_gpu: 1,
    optimizer: { type: 'AdamW' },
    zero_optimization: { stage: 3, stage3_param_persistence_threshold: 0 },
  } as const;
  const { engine } = await initialize({ model, config, distributed: job });
  const engineOutputs = engine.withFullWeights(() => model.evaluate());
  const afterwards = await nn.loadWeights(model, path).then(
    () => '',
    (error: unknown) => (error instanceof DsError ? `${error.code} ${error.message}` : 'other'),
  );
  engine.destroy();
  await job.destroy();
  console.log(JSON.stringify({ outputs, engineOutputs, afterwards } satisfies LoadReport));
}

void main(JSON.parse(process.argv[2] ?? '') as LoadJob);
