// Command line of gpt2-offload.js: its own options and flags of Megatron-LM's scripts.
'use strict';
const { join } = require('node:path');
const { parseArgs } = require('node:util');
const { readConfig } = require('@ds/native');
const megatron = require('./megatron-flags.js');

/** Joins names with commas, `count` on a line. */
function joinNames(names, count) {
  const rows = [];
  for (let i = 0; i < names.length; i += count) rows.push(names.slice(i, i + count).join(', '));
  return rows.join(',\n    ');
}

const usage = `node examples/gpt2-offload.js [options]
  --model NAME             tiny (default), 124M, 355M, 774M, 1558M, 10B, 13B or 40B
  --data FILE|DIR          text to train on (default: declarations of the package typescript,
                           else the pages of this package)
  --tokenizer DIR          folder with a tokenizer.json (default: GPT-2's tokens from the package
                           gpt-tokenizer, else examples/tokenizer)
  --steps N                total optimizer steps, including steps before a resume (default 400)
  --batch N                micro-batch size (default: the configuration's)
  --seq N                  sequence length (default 128)
  --workers N              threads that make the batches (default 0)
  --deepspeed_config FILE  default: examples/ds_config.json
  --nvme DIR               keep optimizer state in DIR, on a disk, instead of host memory
  --device NAME            cpu, cuda, cuda:N or auto (default: a GPU if present)
  --checkpoint             recompute activations in the backward
  --seed N                 default 1234
  --save DIR               write a checkpoint at the end, and after Ctrl-C or SIGTERM;
                           ds serve DIR and ds chat DIR load it
  --save_every N           also write a checkpoint every N steps, during training
  --resume                 continue from the latest checkpoint in --save DIR, if any
  --trace FILE             write a timeline of two steps, for Perfetto or chrome://tracing
  --summary FILE           write the measurements as JSON
  --sample N               tokens to sample at the end (default 48)

Flags of Megatron-LM, as DeepSpeed's tutorials print them. A flag overrides the configuration.
${megatron.usage}
  Accepted without effect: ${joinNames(megatron.WITHOUT_EFFECT, 4)}`;

const string = { type: 'string' };
const boolean = { type: 'boolean' };

const OPTIONS = {
  model: string,
  data: string,
  tokenizer: string,
  steps: string,
  batch: string,
  seq: string,
  workers: string,
  nvme: string,
  device: string,
  checkpoint: boolean,
  seed: string,
  save: string,
  save_every: string,
  resume: boolean,
  trace: string,
  summary: string,
  sample: string,
  help: { type: 'boolean', short: 'h' },
  // DeepSpeed's options. `ds` passes local_rank, but initDistributed() reads it from the
  // environment.
  deepspeed: boolean,
  deepspeed_config: string,
  local_rank: string,
  ...megatron.options,
};

/** Replaces dashes in names of options by underscores, because scripts use both. */
function normalizeNames(argv) {
  return argv.map((word) => {
    const [, name = '', rest = ''] = /^--([\w-]+)(=.*)?$/s.exec(word) ?? [];
    const key = name.replaceAll('-', '_');
    return Object.hasOwn(OPTIONS, key) ? `--${key}${rest}` : word;
  });
}

/** Returns the options of the program, including Megatron-LM flags with the same meaning. */
function readOptions(argv) {
  const { values } = parseArgs({ args: normalizeNames(argv), options: OPTIONS });
  if (values.help) return { help: true };
  megatron.requireSupported(values);
  const count = (flag, text, min = 1) => megatron.numberOf(flag, text, { min, integer: true });
  const batch = values.batch ?? values.batch_size;
  const seq = count('--seq', values.seq ?? values.seq_length ?? '128');
  return {
    model: values.model ?? 'tiny',
    data: values.data ?? values.train_data ?? values.data_path,
    tokenizer: values.tokenizer,
    steps: count('--steps', values.steps ?? values.train_iters ?? '400', 0),
    batch: batch === undefined ? undefined : count('--batch', batch),
    seq,
    workers: count('--workers', values.workers ?? '0', 0),
    deepspeed_config: values.deepspeed_config ?? join(__dirname, 'ds_config.json'),
    nvme: values.nvme,
    device: values.device ?? 'auto',
    checkpoint: [
      values.checkpoint,
      values.checkpoint_activations,
      values.deepspeed_activation_checkpointing,
    ].some(Boolean),
    seed: count('--seed', values.seed ?? '1234', 0),
    save: values.save,
    save_every: count('--save_every', values.save_every ?? values.save_interval ?? '0', 0),
    load: values.load ?? (values.resume ? values.save : undefined),
    loadOptimizerStates: !values.no_load_optim,
    trace: values.trace,
    summary: values.summary,
    sample: count('--sample', values.sample ?? '48', 0),
    tensorParallel: megatron.tensorParallel(values),
    sizes: megatron.sizesOf(values, seq),
    ignored: megatron.ignoredOf(values),
    flags: values,
  };
}

/** Returns the configuration with optimizer state on a disk if --nvme is set. */
function withNvme(config, { nvme }) {
  if (!nvme) return config;
  const offload_optimizer = { device: 'nvme', nvme_path: nvme };
  const { zero_optimization: section } = config;
  const zero = typeof section === 'object' ? section : { stage: section ? 1 : 0 };
  return { ...config, zero_optimization: { ...zero, offload_optimizer } };
}

/** Returns the configuration file with the values of the command line. */
function configuration(options) {
  const file = readConfig(options.deepspeed_config);
  const config = withNvme(megatron.configure(file, options.flags, options), options);
  if (options.batch === undefined) return config;
  const { train_batch_size: _, ...rest } = config;
  return { ...rest, train_micro_batch_size_per_gpu: options.batch };
}

module.exports = { usage, readOptions, configuration };
