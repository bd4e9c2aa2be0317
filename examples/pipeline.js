// Trains GPT-2 in two pipeline stages on two ranks; each stage has half of the blocks.
// Run: ds --num_procs 2 examples/pipeline.js    (--help lists the options)
const { parseArgs } = require('node:util');
const { comm, initDistributed, initialize, nn, Tensor } = require('@ds/native');

const usage = `ds --num_procs 2 examples/pipeline.js [options]    (or --num_gpus 2)
  --size NAME      of GPT-2: tiny (default), 124M, 355M, 774M, 1558M, ...
  --steps N        optimizer steps (default 20)
  --schedule NAME  1f1b (default) or another of docs/pipeline.md
  --device NAME    cpu, cuda or auto (default: a GPU if present)`;

const options = {
  device: { type: 'string', default: 'auto' },
  size: { type: 'string', default: 'tiny' },
  steps: { type: 'string', default: '20' },
  schedule: { type: 'string', default: '1f1b' },
  help: { type: 'boolean', short: 'h', default: false },
  local_rank: { type: 'string' }, // The launcher adds this option.
};
const { values } = parseArgs({ options, allowPositionals: true });

async function main() {
  if (values.help) return console.log(usage);
  const { worldSize } = await initDistributed({ device: values.device, mesh: { pp: 2 } });
  if (worldSize % 2 !== 0)
    throw new Error(`two stages need an even number of ranks, not ${worldSize}`);
  const sizes = nn.models.GPT2.config(values.size);
  const { engine } = await initialize({
    model: new nn.models.GPT2(sizes),
    config: {
      train_micro_batch_size_per_gpu: 2,
      gradient_accumulation_steps: 8, // micro-batches of one update
      gradient_clipping: 1,
      optimizer: { type: 'AdamW', params: { lr: 3e-3 } },
      bf16: { enabled: true },
      pipeline: { stages: 2, schedule: values.schedule },
      seed: 7,
    },
  });

  // Sequences that count up to 97. The first and the last stage create equal batches.
  const length = Math.min(64, sizes.maxSeq);
  function* batches() {
    for (let first = engine.dpRank * 17; ; first += engine.dpWorldSize * 17) {
      const ids = (shift) =>
        Int32Array.from({ length: 2 * length }, (_, i) => (first + i + shift) % 97);
      const tensor = (data) => Tensor.from(data, { shape: [2, length], device: engine.device });
      yield { tokens: tensor(ids(0)), targets: tensor(ids(1)) };
    }
  }

  const data = batches();
  for (let step = 1; step <= Number(values.steps); ++step) {
    const loss = await engine.trainBatch(data);
    if (engine.globalRank === 0) console.log(`step ${step}: loss ${loss.item().toFixed(3)}`);
  }
  const parameters = engine.module.numParameters();
  console.log(`stage ${engine.stageId} of ${engine.numStages}: ${parameters} parameters`);
  engine.destroy();
  await comm.distributed()?.destroy();
}

main();
