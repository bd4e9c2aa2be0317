// Runs three ZeRO-2 steps with CPU offload and prints the modules that backward and step call.
// scripts/measure-sources.mjs starts it on two ranks.
const { Session } = require('node:inspector');
const { join, sep } = require('node:path');
const dist = join(__dirname, '../../dist');
const { initialize, nn, seed, Tensor } = require(dist);

const session = new Session();
session.connect();
const post = (method, options) =>
  new Promise((resolve, reject) => {
    session.post(method, options, (error, value) => (error ? reject(error) : resolve(value)));
  });

/** Modules of dist, in which a named function ran since the last call. */
async function calledModules() {
  const { result } = await post('Profiler.takePreciseCoverage');
  return result
    .filter(({ url }) => url.startsWith(`file://${dist}${sep}`) || url.startsWith(dist + sep))
    .filter(({ functions }) => functions.some((one) => one.functionName && one.ranges[0].count > 0))
    .map(({ url }) => url.slice(url.indexOf(dist) + dist.length + 1));
}

async function main() {
  seed(1);
  const model = new nn.models.GPT2({
    vocabSize: 64,
    maxSeq: 32,
    layers: 2,
    heads: 2,
    channels: 32,
  });
  const { engine } = await initialize({
    model,
    config: {
      train_batch_size: 2,
      gradient_clipping: 1,
      optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
      zero_optimization: { stage: 2, offload_optimizer: { device: 'cpu' } },
    },
  });
  const tokens = Tensor.from([[...Array(32).keys()]], { dtype: 'i32' });
  await post('Profiler.enable');
  await post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
  const called = new Set();
  for (let step = 0; step < 3; step++) {
    const loss = engine.forward(tokens, tokens);
    await calledModules();
    engine.backward(loss);
    engine.step();
    for (const path of await calledModules()) called.add(path);
  }
  if (process.env.RANK === '0') console.log(JSON.stringify([...called].sort()));
}

main();
