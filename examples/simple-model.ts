// The classic two-layer MLP with MSE: a DataLoader, ten epochs and a checkpoint. Run: node build/js/examples/simple-model.js
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type data, initialize, nn, seed, type Tensor } from '@ds/native';

class SimpleModel extends nn.Module {
  readonly hidden = new nn.Linear(8, 32);
  readonly output = new nn.Linear(32, 1);
  readonly loss = new nn.MSELoss();

  forward(x: Tensor, y: Tensor): Tensor {
    return this.loss.call(this.output.call(this.hidden.call(x).tanh()), y);
  }
}

/** y = the sine of the sum of x. */
const samples: data.Dataset<{ x: Float32Array; y: Float32Array }> = {
  length: 512,
  get(index) {
    const x = Float32Array.from({ length: 8 }, (_, i) => Math.sin(index * 1.7 + i * i));
    return { x, y: Float32Array.of(Math.sin(x.reduce((a, b) => a + b))) };
  },
};

async function main(): Promise<void> {
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
  for (let epoch = 1; epoch <= 10; ++epoch) {
    let sum = 0;
    for (const { x, y } of trainLoader ?? []) {
      const loss = engine.forward<Tensor>(x, y);
      engine.backward(loss);
      engine.step();
      sum += loss.item();
      x.dispose();
      y.dispose();
    }
    console.log(`epoch ${epoch}  loss ${(sum / (trainLoader?.length ?? 1)).toFixed(4)}`);
  }
  const folder = process.argv[2] ?? mkdtempSync(join(tmpdir(), 'simple-model-'));
  console.log(`saved ${await engine.saveCheckpoint(folder)}`);
  engine.destroy();
}

void main();
