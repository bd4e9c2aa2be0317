// Trains a GPT-2 on text with ZeRO-Offload, saves it, and generates a sample.
// Run: node examples/gpt2-offload.js --steps 50    (--help lists the options)
// Ctrl-C stops the training; --resume continues it, on the same or another number of ranks.
'use strict';
const { writeFileSync } = require('node:fs');
const {
  data,
  DsError,
  findLatest,
  initDistributed,
  initialize,
  monitor,
  nn,
  probeGpus,
  seed,
  version,
} = require('@ds/native');
const { configuration, readOptions, usage } = require('./gpt2-options.js');
const { openText, openTokenizer } = require('./gpt2-text.js');

const PHASES = ['forward', 'backward', 'step'];

/**
 * A monitor that keeps each step's loss, averaged over all ranks, and the milliseconds of its
 * phases. Only rank 0 gets the events of a step, during the next one.
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

/** Returns FLOPs per token, and the peak rate of all devices (null if it is unknown). */
function utilization({ module, device, worldSize }, { seq }) {
  const { layers, channels } = module.config;
  const positions = module.transformer.wpe.weight;
  const parameters = module.numParameters() - positions.numel;
  const size = { parameters, layers, width: channels, sequence: seq };
  const peak = monitor.peakFlops(device, positions.dtype);
  return { flopsPerToken: monitor.flopsPerToken(size), peakFlops: peak && peak * worldSize };
}

async function train(engine, loader, { losses }, options) {
  const run = { milliseconds: [], stopped: false, options };
  const { steps: total } = options;
  const tokensPerStep = engine.trainBatchSize() * options.seq;
  const bar =
    engine.globalRank === 0
      ? new monitor.ProgressBar({ total, ...utilization(engine, options) })
      : null;
  const saveEvery = options.save ? options.save_every : 0;
  const updateBar = () =>
    bar?.update({
      step: engine.globalSteps,
      loss: losses.at(-1),
      tokensPerSecond: (tokensPerStep * 1000) / run.milliseconds.at(-1),
      memoryBytes: engine.device.memory.peakInUse,
    });
  // The first read installs the handlers of Ctrl-C and SIGTERM.
  run.stopped = engine.stopRequested;
  let start = performance.now();
  for await (const { tokens, targets } of new data.RepeatingLoader(loader)) {
    const { globalSteps: before } = engine;
    if (before >= total) break;
    engine.backward(engine.forward(tokens, targets));
    engine.step();
    tokens.dispose();
    targets.dispose();
    // The step needs gradients of further micro-batches.
    if (engine.globalSteps === before) continue;
    run.milliseconds.push(performance.now() - start);
    start = performance.now();
    updateBar();
    if (saveEvery > 0 && engine.globalSteps % saveEvery === 0) {
      await engine.saveCheckpoint(options.save, { asynchronous: true });
    }
    // Equal on every rank. A second Ctrl-C ends the process at once.
    run.stopped = engine.stopRequested;
    if (run.stopped) break;
  }
  engine.synchronize(); // The monitor then has the last loss.
  if (run.milliseconds.length > 0) updateBar();
  bar?.finish();
  return run;
}

function sample(model, { encode, decode }, prompt, options) {
  const ids = [...encode(prompt)];
  const tokens = model.generate(ids, {
    maxNewTokens: Math.min(options.sample, model.maxSeq - ids.length),
    temperature: 0.8,
    topK: 40,
    seed: options.seed,
  });
  return decode(tokens);
}

const quantile = (values, q) => [...values].sort((a, b) => a - b)[Math.floor(q * values.length)];

function summarize(engine, config, { losses, phases }, { milliseconds, options }) {
  const median = quantile(milliseconds, 0.5);
  return {
    model: nameOf(options, engine.module),
    params: engine.module.numParameters(),
    device: `${engine.device.name} (${engine.device.info.name})`,
    world: engine.worldSize,
    steps: losses.length,
    loss: losses,
    tokens_per_second: (engine.trainBatchSize() * options.seq * 1000) / median,
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
  const { summary: file } = run.options;
  if (file) writeFileSync(file, `${JSON.stringify(summary, null, 2)}\n`);
  console.log(
    `loss ${losses[0].toFixed(3)} -> ${losses.at(-1).toFixed(3)} in ${summary.steps} steps, ` +
      `${Math.round(summary.tokens_per_second)} tokens/s, peak ${(summary.peak_device_bytes / 2 ** 20).toFixed(0)} MiB ` +
      `device, ${(summary.peak_host_bytes / 2 ** 20).toFixed(0)} MiB host`,
  );
}

/** Returns a GPT-2 of the named size; flags and the tokenizer's vocabulary replace some values. */
function makeModel({ model, sizes, seq, checkpoint }, { vocabSize }) {
  const published = nn.models.GPT2.config(model);
  const shape = { ...published, ...(vocabSize && { vocabSize }), ...sizes };
  const maxSeq = Math.max(shape.maxSeq, seq);
  return new nn.models.GPT2({ ...shape, maxSeq, activationCheckpointing: checkpoint });
}

/** Name of the model's sizes, or the sizes given by flags. */
function nameOf({ model, sizes }, { config }) {
  if (Object.keys(sizes).length === 0) return model;
  return `of ${config.layers} layers of ${config.channels}`;
}

async function resume(engine, { load, loadOptimizerStates }, printOnRank0) {
  if (!load || !(await findLatest(load))) return;
  const { path } = await engine.loadCheckpoint(load, { loadOptimizerStates });
  printOnRank0(`resumed from ${path} at step ${engine.globalSteps}`);
}

/** Saves a checkpoint and generates a sample after training. */
async function saveAndSample(engine, options, { run, tokenizer, prompt, printOnRank0 }) {
  const { module: model } = engine;
  if (run.stopped) printOnRank0(`stopped after step ${engine.globalSteps}`);
  if (options.save) {
    printOnRank0(`saved ${await engine.saveCheckpoint(options.save)}`);
    if (engine.globalRank === 0) tokenizer.write(options.save, { maxLength: model.maxSeq });
  } else if (run.stopped) {
    printOnRank0('nothing was saved: use --save DIR to save, and --resume to continue');
  }
  if (options.sample > 0 && !run.stopped) {
    // Ranks that share the layers, or the parameters, compute it together.
    const text = engine.withFullWeights(() => sample(model, tokenizer, prompt, options));
    printOnRank0(`\nsample: ${text}\n`);
  }
}

async function main() {
  const options = readOptions(process.argv.slice(2));
  if (options.help) return console.log(usage);
  const { device, seq, tensorParallel: tp } = options;
  const job = await initDistributed({ device, ...(tp > 1 && { mesh: { tp } }) });
  const printOnRank0 = (text) => job.rank === 0 && console.log(text);
  if (options.ignored.length > 0) printOnRank0(`without effect: ${options.ignored.join(', ')}`);
  seed(options.seed);
  const config = configuration(options);
  const tokenizer = openTokenizer(options.tokenizer);
  const { prompt, ...source } = openText(options.data);
  printOnRank0(`text: ${source.path}, ${tokenizer.title}`);
  const history = new History();
  const { engine, trainLoader } = await initialize({
    model: makeModel(options, tokenizer),
    config,
    trainingData: data.TokenDataset.fromText({ ...source, encode: tokenizer.encode, seq }),
    numWorkers: options.workers,
    device,
    monitors: [history],
  });
  const { module: model } = engine;
  printOnRank0(
    `GPT-2 ${nameOf(options, model)}: ${model.numParameters().toLocaleString('en')} parameters on ${engine.device.info.name}`,
  );
  engine.recordPhases();
  await resume(engine, options, printOnRank0);
  // The first steps are slower: they allocate memory and choose matrix algorithms.
  if (options.trace) engine.trace(options.trace, { steps: 2, after: 2 });
  const run = await train(engine, trainLoader, history, options);
  await saveAndSample(engine, options, { run, tokenizer, prompt, printOnRank0 });
  if (engine.globalRank === 0 && run.milliseconds.length > 0) {
    report(engine, config, history, run);
  }
  engine.destroy();
  await job.destroy();
}

main().catch((error) => {
  const { code = '' } = error;
  const isUserError = error instanceof DsError || code.startsWith('ERR_PARSE_ARGS');
  console.error(isUserError ? `${code}: ${error.message}` : error);
  if (code.startsWith('ERR_PARSE_ARGS')) console.error('--help lists the options.');
  process.exitCode = 1;
});
