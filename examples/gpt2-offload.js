// Trains a GPT-2 on real text with ZeRO-Offload, saves it, and samples from it; stops at Ctrl-C and
// resumes, alone or on several ranks: node examples/gpt2-offload.js --help, ds --num_procs 2
// examples/gpt2-offload.js
'use strict';
const { writeFileSync } = require('node:fs');
const { dirname, join } = require('node:path');
const { parseArgs } = require('node:util');
const {
  data,
  DsError,
  findLatest,
  initDistributed,
  initialize,
  monitor,
  nn,
  probeGpus,
  readConfig,
  seed,
  version,
} = require('@ds/native');
const { decode, encode } = require('gpt-tokenizer/encoding/r50k_base');
const { writeGpt2Tokenizer } = require('./gpt2-tokenizer.js');

const usage = `node examples/gpt2-offload.js [options]
  --model NAME             tiny (default), 124M, 355M, 774M, 1558M, 10B, 13B or 40B
  --data FILE|DIR          text to train on (default: the TypeScript library's declarations)
  --steps N                optimizer steps in all, those before a resume included (default 400)
  --batch N                micro-batch size (default: the configuration's)
  --seq N                  sequence length (default 128)
  --workers N              threads that make the batches (default 0)
  --deepspeed_config FILE  default: examples/ds_config.json
  --nvme DIR               keep optimizer state in DIR, on a disk, instead of host memory
  --device NAME            cpu, cuda, cuda:N or auto (default: a GPU when there is one)
  --checkpoint             recompute activations in the backward
  --seed N                 default 1234
  --save DIR               write a checkpoint at the end, and when stopped by Ctrl-C or SIGTERM;
                           ds serve DIR and ds chat DIR continue texts with it
  --save_every N           also write one every N steps, beside training
  --resume                 first continue from the latest checkpoint in --save DIR, if there is one
  --trace FILE             write what two steps do when, for Perfetto or chrome://tracing
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
    nvme: { type: 'string' },
    device: { type: 'string', default: 'auto' },
    checkpoint: { type: 'boolean', default: false },
    seed: { type: 'string', default: '1234' },
    save: { type: 'string' },
    save_every: { type: 'string', default: '0' },
    resume: { type: 'boolean', default: false },
    trace: { type: 'string' },
    summary: { type: 'string' },
    sample: { type: 'string', default: '48' },
    help: { type: 'boolean', short: 'h', default: false },
    // `ds` gives it to every rank; initDistributed() knows the rank's place already.
    local_rank: { type: 'string' },
  },
});

/**
 * The configuration file, with the home of optimizer state of the command line when there is one.
 */
function offloaded() {
  const config = readConfig(options.deepspeed_config);
  if (!options.nvme) return config;
  const offload_optimizer = { device: 'nvme', nvme_path: options.nvme };
  const { zero_optimization: zero } = config;
  return { ...config, zero_optimization: { ...zero, offload_optimizer } };
}

/** The same with the micro-batch size of the command line when there is one. */
function configuration() {
  const config = offloaded();
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

const PHASES = ['forward', 'backward', 'step'];

/**
 * A monitor that keeps each step's loss, averaged over all ranks, and the milliseconds of its
 * phases; it is told a step later, so that nobody waits, on rank 0 alone.
 */
class History {
  losses = [];
  phases = Object.fromEntries(PHASES.map((phase) => [phase, []]));

  write(events) {
    for (const { name, value } of events) {
      if (name === 'Train/Samples/train_loss') this.losses.push(value);
      this.phases[name.replace('Train/Samples/elapsed_time_ms_', '')]?.push(value);
    }
  }

  async flush() {}

  close() {}
}

/** What the bar's MFU is counted by; nothing of a device whose peak is not known. */
function utilization({ module, device, worldSize }) {
  const { layers, channels } = nn.models.GPT2.config(options.model);
  const positions = module.transformer.wpe.weight;
  const parameters = module.numParameters() - positions.numel;
  const size = { parameters, layers, width: channels, sequence: Number(options.seq) };
  const peak = monitor.peakFlops(device, positions.dtype);
  return { flopsPerToken: monitor.flopsPerToken(size), peakFlops: peak && peak * worldSize };
}

async function train(engine, loader, { losses }) {
  const run = { milliseconds: [], stopped: false };
  const total = Number(options.steps);
  const tokensPerStep = engine.trainBatchSize() * Number(options.seq);
  const bar =
    engine.globalRank === 0 ? new monitor.ProgressBar({ total, ...utilization(engine) }) : null;
  const saveEvery = options.save ? Number(options.save_every) : 0;
  const show = () =>
    bar?.update({
      step: engine.globalSteps,
      loss: losses.at(-1),
      tokensPerSecond: (tokensPerStep * 1000) / run.milliseconds.at(-1),
      memoryBytes: engine.device.memory.peakInUse,
    });
  // Asking makes Ctrl-C and SIGTERM heard from the first step on.
  run.stopped = engine.stopRequested;
  let start = performance.now();
  for await (const { tokens, targets } of new data.RepeatingLoader(loader)) {
    const { globalSteps: before } = engine;
    if (before >= total) break;
    engine.backward(engine.forward(tokens, targets));
    engine.step();
    tokens.dispose();
    targets.dispose();
    // Gradients of more micro-batches belong to this step.
    if (engine.globalSteps === before) continue;
    run.milliseconds.push(performance.now() - start);
    start = performance.now();
    show();
    if (saveEvery > 0 && engine.globalSteps % saveEvery === 0) {
      await engine.saveCheckpoint(options.save, { asynchronous: true });
    }
    // The same on every rank. A second Ctrl-C ends the process at once.
    run.stopped = engine.stopRequested;
    if (run.stopped) break;
  }
  engine.synchronize(); // The last loss is told.
  if (run.milliseconds.length > 0) show();
  bar?.finish();
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

function summarize(engine, config, { losses, phases }, { milliseconds }) {
  const median = quantile(milliseconds, 0.5);
  return {
    model: options.model,
    params: engine.module.numParameters(),
    device: `${engine.device.name} (${engine.device.info.name})`,
    world: engine.worldSize,
    steps: losses.length,
    loss: losses,
    tokens_per_second: (engine.trainBatchSize() * Number(options.seq) * 1000) / median,
    step_ms: {
      median,
      p90: quantile(milliseconds, 0.9),
      phases: Object.fromEntries(PHASES.map((phase) => [phase, quantile(phases[phase], 0.5)])),
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

function report(engine, config, history, run) {
  const summary = summarize(engine, config, history, run);
  const { losses } = history;
  if (options.summary) writeFileSync(options.summary, `${JSON.stringify(summary, null, 2)}\n`);
  console.log(
    `loss ${losses[0].toFixed(3)} -> ${losses.at(-1).toFixed(3)} in ${summary.steps} steps, ` +
      `${Math.round(summary.tokens_per_second)} tokens/s, peak ${(summary.peak_device_bytes / 2 ** 20).toFixed(0)} MiB ` +
      `device, ${(summary.peak_host_bytes / 2 ** 20).toFixed(0)} MiB host`,
  );
}

async function main() {
  if (options.help) return console.log(usage);
  const job = await initDistributed({ device: options.device });
  const say = (text) => job.rank === 0 && console.log(text);
  seed(Number(options.seed));
  const config = configuration();
  const seq = Number(options.seq);
  const shape = nn.models.GPT2.config(options.model);
  const model = new nn.models.GPT2({
    ...shape,
    maxSeq: Math.max(shape.maxSeq, seq),
    activationCheckpointing: options.checkpoint,
  });
  const history = new History();
  const { engine, trainLoader } = await initialize({
    model,
    config,
    trainingData: dataset(seq),
    numWorkers: Number(options.workers),
    device: options.device,
    monitors: [history],
  });
  say(
    `GPT-2 ${options.model}: ${model.numParameters().toLocaleString('en')} parameters on ${engine.device.info.name}`,
  );
  engine.recordPhases();
  if (options.resume && (await findLatest(options.save))) {
    const { path } = await engine.loadCheckpoint(options.save);
    say(`resumed from ${path} at step ${engine.globalSteps}`);
  }
  // The first steps pay for memory and for choosing matrix algorithms.
  if (options.trace) engine.trace(options.trace, { steps: 2, after: 2 });
  const run = await train(engine, trainLoader, history);
  if (run.stopped) say(`stopped after step ${engine.globalSteps}`);
  if (options.save) {
    say(`saved ${await engine.saveCheckpoint(options.save)}`);
    if (job.rank === 0) writeGpt2Tokenizer(options.save, { maxLength: model.maxSeq });
  } else if (run.stopped)
    say('nothing was saved: --save DIR does, and --resume goes on from there');
  if (Number(options.sample) > 0 && !run.stopped) {
    say(`\nsample: ${sample(model, 'interface ')}\n`);
  }
  if (engine.globalRank === 0 && run.milliseconds.length > 0) {
    report(engine, config, history, run);
  }
  engine.destroy();
  await job.destroy();
}

main().catch((error) => {
  console.error(error instanceof DsError ? `${error.code}: ${error.message}` : error);
  process.exitCode = 1;
});
