// Trains a two-layer MLP on the sine function for ten epochs, with optimizer offload.
// Run: node simple-model.js    (compiled from examples/simple-model.ts)
// Ctrl-C saves a checkpoint; a run with the same folder continues from it.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type data, findLatest, initialize, nn, seed, type Tensor } from '@ds/native';

const EPOCHS = 10;

const usage = `node simple-model.js [folder]    (compiled from examples/simple-model.ts)
  folder  a checkpoint is written there, and training resumes from it (default: a new one)`;

class SimpleModel extends nn.Module {
  readonly hidden = new nn.Linear(8, 32);
  readonly output = new nn.Linear(32, 1);
  readonly loss = new nn.MSELoss();

  forward(x: Tensor, y: Tensor): Tensor {
    return this.loss.call(this.output.call(this.hidden.call(x).tanh()), y);
  }
}

/** Samples x of 8 numbers, and y, the sine of their sum. */
const samples: data.Dataset<{ x: Float32Array; y: Float32Array }> = {
  length: 512,
  get(index) {
    const x = Float32Array.from({ length: 8 }, (_, i) => Math.sin(index * 1.7 + i * i));
    return { x, y: Float32Array.of(Math.sin(x.reduce((a, b) => a + b))) };
  },
};

async function main(): Promise<void> {
  if (process.argv.some((word) => word === '--help' || word === '-h')) return console.log(usage);
  seed(1);
  const { engine, trainLoader } = await initialize({
    model: new SimpleModel(),
    trainingData: samples,
    config: {
      train_batch_size: 32,
      optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
      zero_optimization: { stage: 1, offload_optimizer: { device: 'cpu' } },
    },
  });
  // `ds` adds --local_rank=N before the arguments of the program.
  const argument = process.argv.slice(2).find((word) => !word.startsWith('--'));
  const folder = argument ?? mkdtempSync(join(tmpdir(), 'simple-model-'));
  if (await findLatest(folder)) await engine.loadCheckpoint(folder);
  const printOnRank0 = (text: string): void => void (engine.globalRank === 0 && console.log(text));
  while (trainLoader.epoch < EPOCHS && !engine.stopRequested) {
    const epoch = trainLoader.epoch + 1;
    let sum = 0;
    let batches = 0;
    for await (const { x, y } of trainLoader) {
      const loss = engine.forward<Tensor>(x, y);
      engine.backward(loss);
      engine.step();
      sum += loss.item();
      batches++;
      x.dispose();
      y.dispose();
      if (engine.stopRequested) break;
    }
    printOnRank0(`epoch ${epoch}  loss ${(sum / batches).toFixed(4)}`);
  }
  const path = await engine.saveCheckpoint(folder);
  printOnRank0(`saved ${path}`);
  engine.destroy();
}

void main();
