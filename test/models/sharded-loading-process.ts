// One rank that loads a pretrained model into shards, and reports how much of the files it has
// read.
import fs from 'node:fs';
import {
  nn as all,
  comm,
  type DsConfig,
  initialize,
  type nn,
  noGrad,
  Tensor,
} from '../../lib/index.js';

export interface ShardedJob {
  dir: string;
  /** Number of frozen parameters; they are the first ones. */
  frozen: number;
  zero: DsConfig['zero_optimization'];
  bf16?: boolean;
  /** Ranks that load another folder. */
  others?: Record<number, string>;
}

export interface ShardedReport {
  /** Bytes of the files that fromPretrained() and initialize() have read after the headers. */
  read: number;
  /** Logits of the model with whole weights. */
  logits: number[];
  /** Loss of a step. */
  loss: number;
  failure: string;
}

let read = 0;
const { readSync } = fs;
fs.readSync = ((...args: Parameters<typeof readSync>) => {
  const count = readSync(...args);
  // Modules that the library loads late are read by this function as well.
  if (fs.readlinkSync(`/proc/self/fd/${args[0]}`).endsWith('.safetensors')) read += count;
  return count;
}) as typeof readSync;

async function main({ dir, frozen, zero, bf16 = false, others }: ShardedJob): Promise<void> {
  const job = await comm.initDistributed({ device: 'cpu' });
  read = 0;
  const model = await all.models.fromPretrained(others?.[job.rank] ?? dir);
  for (const parameter of model.parameters().slice(0, frozen)) parameter.requiresGrad = false;
  const config: DsConfig = {
    train_micro_batch_size_per_gpu: 1,
    optimizer: { type: 'AdamW', params: { lr: 0.01 } },
    zero_optimization: zero,
    bf16: { enabled: bf16 },
  };
  const report: ShardedReport = { read: 0, logits: [], loss: 0, failure: '' };
  try {
    const { engine } = await initialize({ model, config, distributed: job });
    report.read = read;
    const row = Tensor.from(Int32Array.from([3, 1, 4, 1, 5, 9]), { shape: [1, 6] });
    report.logits = engine.withFullWeights(() =>
      noGrad(() => (model as nn.models.CausalLM).call(row).contiguous().toArray()),
    );
    const loss = engine.forward<Tensor>(row, row);
    engine.backward(loss);
    engine.step();
    report.loss = engine.forward<Tensor>(row, row).item();
    engine.destroy();
  } catch (error) {
    report.failure = String(error);
  }
  await job.destroy();
  console.log(JSON.stringify(report));
}

void main(JSON.parse(process.argv[2] ?? '') as ShardedJob);
