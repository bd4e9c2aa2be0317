// Trains a small GPT-2 with ZeRO stage 3 on two ranks, saves it, and resumes at stage 1.
// Run: ds --num_procs 2 examples/zero3-two-ranks.js
'use strict';
const { initDistributed, initialize, nn, scope, seed, Tensor, zero } = require('@ds/native');

const usage = `ds --num_procs 2 examples/zero3-two-ranks.js [folder]    (or --num_gpus 2)
  folder  the checkpoint is written there (default checkpoints)`;

const STEPS = 20;
const SHAPE = [4, 32];
// `ds` adds --local_rank=N before the arguments of the program.
const folder = process.argv.slice(2).find((word) => !word.startsWith('--')) ?? 'checkpoints';

const config = (stage) => ({
  train_micro_batch_size_per_gpu: SHAPE[0],
  bf16: { enabled: true },
  gradient_clipping: 1,
  optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
  zero_optimization: { stage },
});

/** Returns a batch of this rank: sequences that count up. */
function batch(step, { globalRank: rank, device }) {
  const rows = Int32Array.from({ length: SHAPE[0] * SHAPE[1] }, (_, i) => {
    const row = Math.floor(i / SHAPE[1]);
    return (step * 37 + rank * 101 + row * 13 + (i % SHAPE[1])) % 500;
  });
  return Tensor.from(rows, { shape: SHAPE, device });
}

function train(engine, steps) {
  let last = 0;
  for (let i = 0; i < steps; ++i) {
    scope(() => {
      const tokens = batch(engine.globalSteps, engine);
      const inputs = tokens.narrow(1, 0, SHAPE[1] - 1).contiguous();
      const targets = tokens.narrow(1, 1, SHAPE[1] - 1).contiguous();
      const loss = engine.forward(inputs, targets);
      engine.backward(loss);
      engine.step();
      last = loss.item();
    });
  }
  return last;
}

const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

async function main() {
  if (process.argv.some((word) => word === '--help' || word === '-h')) return console.log(usage);
  const job = await initDistributed();
  const printWithRank = (text) => console.log(`rank ${job.rank}: ${text}`);
  seed(1);
  const makeModel = () => zero.Init(() => new nn.models.GPT2(nn.models.GPT2.config('tiny')));

  const sharded = (await initialize({ model: makeModel(), config: config(3) })).engine;
  const totalSize = mebibytes(sharded.module.numParameters() * 16);
  printWithRank(
    `stage 3 holds ${mebibytes(sharded.device.memory.inUse)} of ${totalSize} of model states`,
  );
  const first = train(sharded, 1);
  const loss = train(sharded, STEPS - 1);
  printWithRank(`loss ${first.toFixed(3)} -> ${loss.toFixed(3)} in ${sharded.globalSteps} steps`);
  printWithRank(`peak ${mebibytes(sharded.device.memory.peakInUse)}`);
  const path = await sharded.saveCheckpoint(folder, { tag: 'example' });
  sharded.destroy();

  const resumed = (await initialize({ model: makeModel(), config: config(1) })).engine;
  await resumed.loadCheckpoint(folder, { tag: 'example' });
  printWithRank(`resumed ${path} at stage 1 after step ${resumed.globalSteps}`);
  printWithRank(`loss ${train(resumed, 5).toFixed(3)} after 5 more steps`);
  resumed.destroy();
  await job.destroy();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
