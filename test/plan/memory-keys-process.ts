// One rank that trains a GPT-2 under each of several ZeRO sections and reports its peak bytes.
import { initDistributed } from '../../lib/comm/index.js';
import { type DsConfig, initialize, nn, Tensor } from '../../lib/index.js';
import { quiet } from '../support/quiet.js';

/** The one argument, as JSON. */
export interface MemoryKeysJob {
  shape: nn.models.GPT2Config;
  rows: number;
  seq: number;
  runs: { zero: DsConfig['zero_optimization']; accumulation: number }[];
}

const STEPS = 3;

async function main({ shape, rows, seq, runs }: MemoryKeysJob): Promise<void> {
  const job = await initDistributed({ device: 'cpu' });
  const { device } = job.world;
  const ids = Int32Array.from({ length: rows * seq }, (_, i) => (i * 7919) % shape.vocabSize);
  const tokens = Tensor.from(ids, { shape: [rows, seq], device }).keep();
  const peaks: number[] = [];
  for (const { zero, accumulation } of runs) {
    await quiet(() => device.memory.inUse);
    const before = device.memory.inUse;
    const { engine } = await initialize({
      model: new nn.models.GPT2(shape),
      device: 'cpu',
      config: {
        train_micro_batch_size_per_gpu: rows,
        gradient_accumulation_steps: accumulation,
        bf16: { enabled: true },
        optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
        zero_optimization: zero,
      },
    });
    // The first step learns the order of the units.
    for (let step = 0; step < STEPS; step++) {
      if (step === STEPS - 1) device.resetPeaks();
      for (let micro = 0; micro < accumulation; micro++) {
        engine.backward(engine.forward<Tensor>(tokens, tokens));
        engine.step();
      }
    }

    peaks.push(device.memory.peakInUse - before);
    engine.destroy();
  }
  tokens.dispose();
  await job.destroy();
  console.log(JSON.stringify(peaks));
}

void main(JSON.parse(process.argv[2] ?? '') as MemoryKeysJob);
