// Consumer of the installed package: five steps of a tiny GPT-2 with its optimizer offloaded to the
// CPU.
const assert = require('node:assert/strict');
const { cpu, initialize, nn, seed, Tensor } = require('@ds/native');

const shape = [2, 16];
const vocabSize = 61;
const config = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
  bf16: { enabled: true },
  zero_optimization: { stage: 1, offload_optimizer: { device: 'cpu' } },
};

async function main() {
  seed(1);
  const device = cpu();
  const model = new nn.models.GPT2({ vocabSize, maxSeq: 16, layers: 1, heads: 2, channels: 32 });
  const { engine } = await initialize({ model, config, device });
  const row = (shift) => Int32Array.from({ length: 32 }, (_, i) => ((i + shift) * 7) % vocabSize);
  const tokens = Tensor.from(row(0), { shape, device });
  const targets = Tensor.from(row(1), { shape, device });
  const losses = [];
  for (let step = 0; step < 5; ++step) {
    const loss = engine.forward(tokens, targets);
    engine.backward(loss);
    engine.step();
    losses.push((await loss.read())[0]);
  }
  assert.ok(losses[4] < losses[0], `loss does not fall: ${losses}`);
  const path = losses.map((loss) => loss.toFixed(4)).join(' ');
  console.log(`Node ${process.versions.node}: loss ${path}`);
}

main();
