// A custom model in plain JavaScript: an MLP predicts the ring of a point, one of three. The
// program has a validation set, parameter groups, the best model and resume.
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

  /** x [B, 2]: logits [B, 3]. */
  logits(x) {
    let out = x;
    for (const layer of this.layers) out = layer.call(out).tanh();
    return this.head.call(out);
  }

  /** The loss of a batch; in evaluation also the number of correct labels [B]. */
  forward(x, labels) {
    const logits = this.logits(x);
    const loss = this.loss.call(logits, labels);
    return this.training ? loss : { loss, hits: logits.argmax().eq(labels).sum() };
  }
}

/** Points on rings of radius 1, 2 and 3, made on the spot. */
const rings = (length, first) => ({
  length,
  get(index) {
    const angle = (first + index) * 2.39996;
    const label = (first + index) % 3;
    const radius = 1 + label + 0.3 * Math.sin(index * 7.1);
    const x = Float32Array.of(radius * Math.cos(angle), radius * Math.sin(angle));
    return { x, labels: Int32Array.of(label) };
  },
});

/** Samples of one label each come as [B, 1]. */
const flat = (labels) => labels.reshape([labels.numel]);

/** The mean loss, and the share of hits, over the batches of all ranks. */
async function validate(engine, loader) {
  const sums = [0, 0];
  engine.eval();
  for await (const { x, labels } of loader) {
    noGrad(() =>
      scope(() => {
        const { loss, hits } = engine.forward(x, flat(labels));
        sums[0] += loss.item() / loader.length;
        sums[1] += Number(hits.item()) / labels.numel / loader.length;
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
  const say = (text) => rank === 0 && console.log(text);
  ds.seed(1); // The same initial values in every run; ranks start with rank 0's.
  const model = new Classifier();
  const all = model.parameters();
  const { engine, trainLoader } = await ds.initialize({
    model,
    modelParameters: [
      { params: all.filter(({ ndim }) => ndim > 1) },
      { params: all.filter(({ ndim }) => ndim <= 1), weightDecay: 0, lr: 2e-2 },
    ],
    trainingData: rings(960, 0),
    config: {
      train_batch_size: 32,
      optimizer: { type: 'AdamW', params: { lr: 1e-2, weight_decay: 0.01 } },
      zero_optimization: { stage: worldSize > 1 ? 3 : 0 },
    },
  });
  const sampler = new data.DistributedSampler(128, { rank, worldSize, shuffle: false });
  const options = { batchSize: 32, sampler, device: engine.device };
  const validation = new data.DataLoader(rings(128, 5000), options);
  const folder = process.argv.slice(2).find((word) => !word.startsWith('--')) ?? 'own-classifier';
  const [last, best] = [join(folder, 'last'), join(folder, 'best')];
  let lowest = Infinity;
  if (await ds.findLatest(last)) {
    ({ lowest } = (await engine.loadCheckpoint(last)).clientState);
    say(`resumed after step ${engine.globalSteps}`);
  }
  while (trainLoader.epoch < EPOCHS && !engine.stopRequested) {
    for await (const { x, labels } of trainLoader) {
      engine.backward(engine.forward(x, flat(labels)));
      engine.step();
      for (const tensor of [x, labels]) tensor.dispose();
      if (engine.stopRequested) break; // Ctrl-C or SIGTERM.
    }
    const [loss, hits] = await validate(engine, validation);
    say(
      `epoch ${trainLoader.epoch}  validation loss ${loss.toFixed(4)}, ${(100 * hits).toFixed(1)} % right`,
    );
    if (loss < lowest) await engine.saveCheckpoint(best, { tag: 'best' });
    lowest = Math.min(lowest, loss);
    await engine.saveCheckpoint(last, { clientState: { lowest }, keepLast: 2 });
  }
  await engine.loadCheckpoint(best, { loadModuleOnly: true });
  const [loss, hits] = await validate(engine, validation);
  say(`best validation loss ${loss.toFixed(4)}, ${(100 * hits).toFixed(1)} % right`);
  engine.destroy();
  await ds.comm.distributed()?.destroy();
}

main();
