// Trains a custom model in plain JavaScript: a classifier that finds the ring of a point.
// Run: node examples/own-model.js
// Shows a validation set, parameter groups, saving the best model, and resuming.
'use strict';
const { join } = require('node:path');
const ds = require('@ds/native');
const { data, nn, noGrad, scope, Tensor } = ds;

const EPOCHS = 8;

const usage = `node examples/own-model.js [folder]
ds --num_procs 2 examples/own-model.js [folder]
  folder  checkpoints are written there, and training resumes from it (default own-classifier)`;

class Classifier extends nn.Module {
  // ZeRO moves each element of a list as one unit.
  layers = [new nn.Linear(2, 32), new nn.Linear(32, 32)];
  head = new nn.Linear(32, 3);
  loss = new nn.CrossEntropyLoss();

  /** Returns logits [B, 3] of points x [B, 2]. */
  logits(x) {
    let out = x;
    for (const layer of this.layers) out = layer.call(out).tanh();
    return this.head.call(out);
  }

  /** Returns the loss of labels [B]; in evaluation mode also the number of correct labels. */
  forward(x, labels) {
    const logits = this.logits(x);
    const loss = this.loss.call(logits, labels);
    return this.training ? loss : { loss, correct: logits.argmax().eq(labels).sum() };
  }
}

/** Returns a dataset of computed points on three rings of radius 1, 2 and 3. */
const ringDataset = (length, first) => ({
  length,
  get(index) {
    const angle = (first + index) * 2.39996;
    const label = (first + index) % 3;
    const radius = 1 + label + 0.3 * Math.sin(index * 7.1);
    const x = Float32Array.of(radius * Math.cos(angle), radius * Math.sin(angle));
    return { x, labels: Int32Array.of(label) };
  },
});

/** Converts labels [B, 1] to [B]. */
const flattenLabels = (labels) => labels.reshape([labels.numel]);

/** Returns the mean loss and the accuracy over the batches of all ranks. */
async function validate(engine, loader) {
  const sums = [0, 0];
  engine.eval();
  for await (const { x, labels } of loader) {
    noGrad(() =>
      scope(() => {
        const { loss, correct } = engine.forward(x, flattenLabels(labels));
        sums[0] += loss.item() / loader.length;
        sums[1] += Number(correct.item()) / labels.numel / loader.length;
      }),
    );
    for (const tensor of [x, labels]) tensor.dispose();
  }
  engine.train();
  return scope(() => {
    const means = Tensor.from(sums, { device: engine.device });
    ds.comm.distributed()?.world.allReduce(means, { op: 'avg' }).synchronize();
    return means.toArray();
  });
}

async function main() {
  if (process.argv.some((word) => word === '--help' || word === '-h')) return console.log(usage);
  const { rank, worldSize } = await ds.initDistributed({ device: 'auto' });
  const printOnRank0 = (text) => rank === 0 && console.log(text);
  ds.seed(1); // The same initial values in every run; ranks start with rank 0's.
  const model = new Classifier();
  const parameters = model.parameters();
  const { engine, trainLoader } = await ds.initialize({
    model,
    modelParameters: [
      { params: parameters.filter(({ ndim }) => ndim > 1) },
      { params: parameters.filter(({ ndim }) => ndim <= 1), weightDecay: 0, lr: 2e-2 },
    ],
    trainingData: ringDataset(960, 0),
    config: {
      train_batch_size: 32,
      optimizer: { type: 'AdamW', params: { lr: 1e-2, weight_decay: 0.01 } },
      zero_optimization: { stage: worldSize > 1 ? 3 : 0 },
    },
  });
  const sampler = new data.DistributedSampler(128, { rank, worldSize, shuffle: false });
  const options = { batchSize: 32, sampler, device: engine.device };
  const validation = new data.DataLoader(ringDataset(128, 5000), options);
  const folder = process.argv.slice(2).find((word) => !word.startsWith('--')) ?? 'own-classifier';
  const lastFolder = join(folder, 'last');
  const bestFolder = join(folder, 'best');
  let lowestLoss = Infinity;
  if (await ds.findLatest(lastFolder)) {
    ({ lowestLoss } = (await engine.loadCheckpoint(lastFolder)).clientState);
    printOnRank0(`resumed after step ${engine.globalSteps}`);
  }
  while (trainLoader.epoch < EPOCHS && !engine.stopRequested) {
    for await (const { x, labels } of trainLoader) {
      engine.backward(engine.forward(x, flattenLabels(labels)));
      engine.step();
      for (const tensor of [x, labels]) tensor.dispose();
      if (engine.stopRequested) break; // Ctrl-C or SIGTERM.
    }
    const [loss, accuracy] = await validate(engine, validation);
    printOnRank0(
      `epoch ${trainLoader.epoch}  validation loss ${loss.toFixed(4)}, ${(100 * accuracy).toFixed(1)} % correct`,
    );
    if (loss < lowestLoss) await engine.saveCheckpoint(bestFolder, { tag: 'best' });
    lowestLoss = Math.min(lowestLoss, loss);
    await engine.saveCheckpoint(lastFolder, { clientState: { lowestLoss }, keepLast: 2 });
  }
  await engine.loadCheckpoint(bestFolder, { loadModuleOnly: true });
  const [loss, accuracy] = await validate(engine, validation);
  printOnRank0(`best validation loss ${loss.toFixed(4)}, ${(100 * accuracy).toFixed(1)} % correct`);
  engine.destroy();
  await ds.comm.distributed()?.destroy();
}

main();
