// Trains a GPT-2 on real text with ZeRO-Offload, then samples from it: node examples/gpt2-offload.js --help
'use strict';
const { writeFileSync } = require('node:fs');
const { dirname, join } = require('node:path');
const { parseArgs } = require('node:util');
const {
  data,
  DsError,
  initialize,
  monitor,
  nn,
  probeGpus,
  readConfig,
  seed,
  version,
} = require('@ds/native');
const { decode, encode } = require('gpt-tokenizer/encoding/r50k_base');

const usage = `node examples/gpt2-offload.js [options]
  --model NAME             tiny (default), 124M, 355M, 774M, 1558M or 10B
  --data FILE|DIR          text to train on (default: the TypeScript library's declarations)
  --steps N                optimizer steps (default 400)
  --batch N                micro-batch size (default: the configuration's)
  --seq N                  sequence length (default 128)
  --workers N              threads that make the batches (default 0)
  --deepspeed_config FILE  default: examples/ds_config.json
  --device NAME            cpu, cuda, cuda:N or auto (default: a GPU when there is one)
  --checkpoint             recompute activations in the backward
  --seed N                 default 1234
  --save DIR               write a checkpoint at the end
  --resume                 first continue from the latest checkpoint in --save DIR
  --summary FILE           write what was measured as JSON
  --sample N               tokens to sample at the end (default 48)`;

const { values: options } = parseArgs({
  options: {
    model: { type: 'string', default: 'tiny' },
    data: { type: 'string' },
    steps: { type: 'string', default: '400' },
    batch: { type: 'string' },
    seq: { type: 'string', default: '128' },
    workers: { type: 'string', default: '0' },
    deepspeed_config: { type: 'string', default: join(__dirname, 'ds_config.json') },
    device: { type: 'string', default: 'auto' },
    checkpoint: { type: 'boolean', default: false },
    seed: { type: 'string', default: '1234' },
    save: { type: 'string' },
    resume: { type: 'boolean', default: false },
    summary: { type: 'string' },
    sample: { type: 'string', default: '48' },
    help: { type: 'boolean', short: 'h', default: false },
  },
});

/** The configuration file, with the micro-batch size of the command line when there is one. */
function configuration() {
  const config = readConfig(options.deepspeed_config);
  if (!options.batch) return config;
  const { train_batch_size: _, ...rest } = config;
  return { ...rest, train_micro_batch_size_per_gpu: Number(options.batch) };
}

/** The text to train on, as GPT-2 tokens in windows of one sequence. */
function dataset(seq) {
  const declarations = join(dirname(require.resolve('typescript')), '.');
  const source = options.data
    ? { path: options.data }
    : { path: declarations, match: /^lib\..*\.d\.ts$/ };
  return data.TokenDataset.fromText({ ...source, encode, seq });
}

async function train(engine, loader, steps) {
  const run = { losses: [], milliseconds: [], phases: [] };
  const tokensPerStep = engine.trainBatchSize() * Number(options.seq);
  const progress = new monitor.Progress({ total: steps });
  const batches = new data.RepeatingLoader(loader);
  for (let step = 0; step < steps; ++step) {
    const start = performance.now();
    let sum = 0;
    for (let micro = 0; micro < engine.gradientAccumulationSteps(); ++micro) {
      const { tokens, targets } = batches.next().value;
      const loss = engine.forward(tokens, targets);
      engine.backward(loss);
      engine.step();
      sum += (await loss.read())[0];
      tokens.dispose();
      targets.dispose();
    }
    run.losses.push(sum / engine.gradientAccumulationSteps());
    run.milliseconds.push(performance.now() - start);
    run.phases.push(engine.phaseTimes());
    progress.update({
      step: step + 1,
      loss: run.losses.at(-1),
      lr: engine.getLr()[0],
      tokensPerSecond: (tokensPerStep * 1000) / run.milliseconds.at(-1),
      memoryBytes: engine.device.memory.peakInUse,
    });
  }
  progress.finish();
  engine.synchronize();
  return run;
}

function sample(model, prompt) {
  const tokens = model.generate(encode(prompt), {
    maxNewTokens: Number(options.sample),
    temperature: 0.8,
    topK: 40,
    seed: Number(options.seed),
  });
  return decode(tokens);
}

const quantile = (values, q) => [...values].sort((a, b) => a - b)[Math.floor(q * values.length)];

function summarize(engine, config, run) {
  const { losses, milliseconds, phases } = run;
  const median = quantile(milliseconds, 0.5);
  const phase = (name) =>
    quantile(
      phases.map((p) => p[name]),
      0.5,
    );
  return {
    model: options.model,
    params: engine.module.numParameters(),
    device: `${engine.device.name} (${engine.device.info.name})`,
    world: 1,
    steps: losses.length,
    loss: losses,
    tokens_per_second: (engine.trainBatchSize() * Number(options.seq) * 1000) / median,
    step_ms: {
      median,
      p90: quantile(milliseconds, 0.9),
      phases: { forward: phase('forward'), backward: phase('backward'), step: phase('step') },
    },
    peak_device_bytes: engine.device.memory.peakInUse,
    peak_host_bytes: process.resourceUsage().maxRSS * 1024,
    config,
    versions: {
      '@ds/native': version,
      node: process.versions.node,
      driver: probeGpus().driverVersion,
    },
  };
}

async function main() {
  if (options.help) return console.log(usage);
  seed(Number(options.seed));
  const config = configuration();
  const seq = Number(options.seq);
  const shape = nn.models.GPT2.config(options.model);
  const model = new nn.models.GPT2({
    ...shape,
    maxSeq: Math.max(shape.maxSeq, seq),
    activationCheckpointing: options.checkpoint,
  });
  const { engine, trainLoader } = await initialize({
    model,
    config,
    trainingData: dataset(seq),
    numWorkers: Number(options.workers),
    device: options.device,
  });
  console.log(
    `GPT-2 ${options.model}: ${model.numParameters().toLocaleString('en')} parameters on ${engine.device.info.name}`,
  );
  engine.recordPhases();
  if (options.resume) {
    const { path } = await engine.loadCheckpoint(options.save);
    console.log(`resumed from ${path} at step ${engine.globalSteps}`);
  }
  const run = await train(engine, trainLoader, Number(options.steps));
  if (options.save) {
    const path = await engine.saveCheckpoint(options.save);
    console.log(`saved ${path}`);
  }
  if (Number(options.sample) > 0) console.log(`\nsample: ${sample(model, 'interface ')}\n`);
  const summary = summarize(engine, config, run);
  if (options.summary) writeFileSync(options.summary, `${JSON.stringify(summary, null, 2)}\n`);
  console.log(
    `loss ${run.losses[0].toFixed(3)} -> ${run.losses.at(-1).toFixed(3)} in ${summary.steps} steps, ` +
      `${Math.round(summary.tokens_per_second)} tokens/s, peak ${(summary.peak_device_bytes / 2 ** 20).toFixed(0)} MiB ` +
      `device, ${(summary.peak_host_bytes / 2 ** 20).toFixed(0)} MiB host`,
  );
  engine.destroy();
}

main().catch((error) => {
  console.error(error instanceof DsError ? `${error.code}: ${error.message}` : error);
  process.exitCode = 1;
});
