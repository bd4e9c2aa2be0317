// Trains GPT-2 on two ranks; each rank has half of every layer, or half of every sample.
// Run: ds --num_procs 2 examples/tensor-parallel.js    (--help lists the options)
const { parseArgs } = require('node:util');
const {
  comm,
  initDistributed,
  initialize,
  nn,
  parallel,
  scope,
  seed,
  Tensor,
} = require('@ds/native');

const usage = `ds --num_procs 2 examples/tensor-parallel.js [options]    (or --num_gpus 2)
  --size NAME    of GPT-2: tiny (default), 124M, 355M, 774M, 1558M, ...
  --steps N      optimizer steps (default 20)
  --sequence     tensor parallelism that also splits the tokens between the layers
  --ulysses      split the tokens only, and leave the layers whole
  --device NAME  cpu, cuda or auto (default: a GPU if present)`;

const options = {
  device: { type: 'string', default: 'auto' },
  size: { type: 'string', default: 'tiny' },
  steps: { type: 'string', default: '20' },
  sequence: { type: 'boolean', default: false },
  ulysses: { type: 'boolean', default: false },
  help: { type: 'boolean', short: 'h', default: false },
  local_rank: { type: 'string' }, // The launcher adds this option.
};
const { values } = parseArgs({ options, allowPositionals: true });

async function main() {
  if (values.help) return console.log(usage);
  const { worldSize, rank, mesh } = await initDistributed({
    device: values.device,
    mesh: values.ulysses ? { sp: 2 } : { tp: 2 },
  });
  if (worldSize % 2 !== 0)
    throw new Error(`this program needs an even number of ranks, not ${worldSize}`);
  const sizes = nn.models.GPT2.config(values.size);
  seed(7); // All ranks create the same model, then keep a part of it.
  const model = new nn.models.GPT2(sizes);
  const totalParameters = model.numParameters();
  if (!values.ulysses) {
    const splitting = { sequenceParallel: values.sequence };
    parallel.parallelize(model, await mesh.axis('tp'), null, splitting);
  }
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 4,
      gradient_clipping: 1,
      optimizer: { type: 'AdamW', params: { lr: 3e-3 } },
      bf16: { enabled: true },
      zero_optimization: { stage: 1 },
      sequence_parallel_size: mesh.size('sp'),
      seed: 7,
    },
  });

  // Sequences that count up to 97. Ranks that share layers or tokens have equal batches.
  const length = Math.min(64, sizes.maxSeq);
  const batch = (step) => {
    const first = (step * engine.dpWorldSize + engine.dpRank) * 17;
    const ids = (shift) =>
      Int32Array.from({ length: 4 * length }, (_, i) => (first + i + shift) % 97);
    return [0, 1].map((shift) =>
      Tensor.from(ids(shift), { shape: [4, length], device: engine.device }),
    );
  };
  for (let step = 1; step <= Number(values.steps); ++step) {
    scope(() => {
      const loss = engine.forward(...batch(step));
      engine.backward(loss);
      engine.step();
      if (rank === 0) console.log(`step ${step}: loss ${loss.item().toFixed(3)}`);
    });
  }
  console.log(`rank ${rank}: ${model.numParameters()} of ${totalParameters} parameters`);
  engine.destroy();
  await comm.distributed()?.destroy();
}

main();
