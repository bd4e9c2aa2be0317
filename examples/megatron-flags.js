// Converts flags of Megatron-LM's scripts, as in DeepSpeed's tutorials, to sizes of a GPT-2 and to
// keys of a ds_config.json.
'use strict';
const { DsError } = require('@ds/native');

/** Name, placeholder of the value (null for a switch), meaning. */
const FLAGS = [
  ['num-layers', 'N', 'blocks'],
  ['hidden-size', 'N', 'width of the residual stream'],
  ['num-attention-heads', 'N', 'heads of each attention'],
  ['max-position-embeddings', 'N', 'longest sequence of the model'],
  ['seq-length', 'N', '--seq'],
  ['batch-size', 'N', '--batch'],
  ['train-iters', 'N', '--steps'],
  ['train-data', 'FILE|DIR', '--data'],
  ['data-path', 'FILE|DIR', '--data'],
  ['load', 'DIR', 'continue from the latest checkpoint in DIR, if any'],
  ['no-load-optim', null, 'continue without its optimizer state'],
  ['save-interval', 'N', '--save_every'],
  ['checkpoint-activations', null, '--checkpoint'],
  ['deepspeed-activation-checkpointing', null, 'the same'],
  ['model-parallel-size', 'N', 'ranks that share each layer (tensor parallelism)'],
  ['tensor-model-parallel-size', 'N', 'the same'],
  ['pipeline-model-parallel-size', 'N', '1; examples/pipeline.js trains in stages'],
  ['fp16', null, 'train in fp16'],
  ['bf16', null, 'train in bf16'],
  ['lr', 'RATE', 'learning rate'],
  ['min-lr', 'RATE', 'learning rate at the end'],
  ['lr-decay-style', 'NAME', 'constant, linear or cosine'],
  ['lr-decay-iters', 'N', 'steps of the schedule (default: all)'],
  ['warmup', 'SHARE', 'share of these steps for the warm-up'],
  ['weight-decay', 'X', 'of the optimizer'],
  ['clip-grad', 'X', 'gradient_clipping'],
  ['cpu-optimizer', null, 'optimizer state in host memory'],
  ['zero-stage', 'N', 'zero_optimization.stage'],
  ['tokenizer-type', 'NAME', 'GPT2BPETokenizer; --tokenizer DIR names any other'],
];

/** Flags without effect: name, and whether it has a value. Each comment gives the reason. */
const IGNORED = [
  ['resume-dataloader', false], // A checkpoint always keeps the position in the data.
  ['lazy-loader', false], // Text is read once, to tokens in memory.
  ['split', true], // All of the text is trained on.
  ['distributed-backend', true], // The device decides.
  ['log-interval', true], // A bar shows every step.
  ['checkpoint-num-layers', true], // Each block is a segment.
  ['partition-activations', false], // activation_checkpointing of the configuration decides.
  ['checkpoint-in-cpu', false], // The same.
  ['contigious-checkpointing', false], // Memory of the caching allocator does not fragment.
  ['synchronize-each-layer', false], // Streams are ordered by events.
];

const key = (name) => name.replaceAll('-', '_');
const flag = (name) => `--${name.replaceAll('_', '-')}`;

/** The flags in the form of parseArgs(). */
const options = Object.fromEntries(
  [...FLAGS, ...IGNORED].map(([name, value]) => [
    key(name),
    { type: value ? 'string' : 'boolean' },
  ]),
);

const WITHOUT_EFFECT = IGNORED.map(([name]) => flag(name));

const usage = FLAGS.map(([name, value, meaning]) => {
  return `  ${[flag(name), value].filter(Boolean).join(' ').padEnd(36)} ${meaning}`;
}).join('\n');

const argumentError = (op, expected, got, hint = '') =>
  new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });

/** Returns a number of the command line. Throws DS_ARGUMENT for other text. */
function numberOf(name, text, { min = 0, integer = false } = {}) {
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (Number.isFinite(value) && value >= min && (!integer || Number.isSafeInteger(value))) {
    return value;
  }
  throw argumentError(
    name,
    `${integer ? 'an integer' : 'a number'} of at least ${min}`,
    `"${text}"`,
  );
}

const countIn = (values, name) =>
  values[name] === undefined
    ? undefined
    : numberOf(flag(name), values[name], { min: 1, integer: true });

/** Returns the flags in `values` without effect. */
const ignoredOf = (values) =>
  IGNORED.map(([name]) => name)
    .filter((name) => values[key(name)] !== undefined)
    .map(flag);

/** Throws DS_ARGUMENT for flags of Megatron-LM that this program does not support. */
function requireSupported(values) {
  const stages = countIn(values, 'pipeline_model_parallel_size') ?? 1;
  if (stages !== 1) {
    const hint = 'Use examples/pipeline.js to train in stages.';
    throw argumentError('--pipeline-model-parallel-size', '1', `${stages}`, hint);
  }
  const tokenizer = values.tokenizer_type ?? 'GPT2BPETokenizer';
  if (tokenizer !== 'GPT2BPETokenizer') {
    const hint = 'Use --tokenizer DIR for a folder with a tokenizer.json.';
    throw argumentError('--tokenizer-type', 'GPT2BPETokenizer', `"${tokenizer}"`, hint);
  }
  if (values.fp16 && values.bf16)
    throw argumentError('--fp16', 'one precision', '--fp16 and --bf16');
}

/** Returns the model sizes that the flags set, for sequences of `seq` tokens. */
function sizesOf(values, seq) {
  const sizes = {
    layers: countIn(values, 'num_layers'),
    channels: countIn(values, 'hidden_size'),
    heads: countIn(values, 'num_attention_heads'),
    maxSeq: countIn(values, 'max_position_embeddings'),
  };
  if (sizes.maxSeq < seq) {
    throw argumentError(
      '--max-position-embeddings',
      `at least --seq-length, ${seq}`,
      `${sizes.maxSeq}`,
    );
  }
  return Object.fromEntries(Object.entries(sizes).filter(([, value]) => value !== undefined));
}

/** Returns the number of ranks that share each layer. */
const tensorParallel = (values) =>
  countIn(values, 'tensor_model_parallel_size') ?? countIn(values, 'model_parallel_size') ?? 1;

/** Returns the learning rate of an optimizer section. */
const rateOf = ({ params = {} }) => (typeof params.lr === 'number' ? params.lr : undefined);

function optimizerOf(config, values) {
  // In Megatron-LM the program creates the optimizer: the tutorial's configuration has none.
  const { type, params = {} } = config.optimizer ?? {
    type: 'AdamW',
    params: { lr: 1.5e-4, weight_decay: 0.01 },
  };
  const lr = values.lr === undefined ? {} : { lr: numberOf('--lr', values.lr) };
  const decay =
    values.weight_decay === undefined
      ? {}
      : { weight_decay: numberOf('--weight-decay', values.weight_decay) };
  return { type, params: { ...params, ...lr, ...decay } };
}

const STYLES = ['constant', 'linear', 'cosine'];

/** Returns the schedule of --lr-decay-style and --warmup, else of the configuration. */
function schedulerOf(config, values, { optimizer, steps }) {
  const { lr_decay_style: style = 'linear', warmup, scheduler = config.scheduler } = values;
  if (values.lr_decay_style === undefined && warmup === undefined) {
    const peak = scheduler?.params?.warmup_max_lr;
    if (values.lr === undefined || peak === undefined) return scheduler;
    return { ...scheduler, params: { ...scheduler.params, warmup_max_lr: rateOf(optimizer) } };
  }
  if (!STYLES.includes(style)) {
    throw argumentError('--lr-decay-style', STYLES.join(', '), `"${style}"`);
  }
  const total = countIn(values, 'lr_decay_iters') ?? steps;
  const share = warmup === undefined ? 0 : numberOf('--warmup', warmup);
  if (share > 1) throw argumentError('--warmup', 'a fraction from 0 to 1', `${share}`);
  const rate = rateOf(optimizer);
  const end = values.min_lr === undefined ? 0 : numberOf('--min-lr', values.min_lr);
  const warm = { warmup_num_steps: Math.round(share * total), warmup_type: 'linear' };
  const rates = { warmup_min_lr: end, warmup_max_lr: rate };
  if (style === 'constant') return { type: 'WarmupLR', params: { ...rates, ...warm } };
  if (style === 'linear') {
    return { type: 'WarmupDecayLR', params: { ...rates, ...warm, total_num_steps: total } };
  }
  const ratio = rate > 0 ? end / rate : 0;
  const params = { ...warm, total_num_steps: total, warmup_min_ratio: 0, cos_min_ratio: ratio };
  return { type: 'WarmupCosineLR', params };
}

/** Returns the ZeRO section with --zero-stage and --cpu-optimizer. */
function zeroOf(config, values) {
  const { zero_optimization: section = {} } = config;
  if (values.zero_stage === undefined && !values.cpu_optimizer) return section;
  const zero = typeof section === 'object' ? section : { stage: section ? 1 : 0 };
  const stage =
    values.zero_stage === undefined
      ? zero.stage
      : numberOf('--zero-stage', values.zero_stage, { integer: true });
  if (!values.cpu_optimizer) return { ...zero, stage };
  const offload_optimizer = zero.offload_optimizer ?? { device: 'cpu', pin_memory: true };
  // Megatron-LM moves the optimizer without ZeRO as well; here stage 1 does that.
  return { ...zero, stage: Math.max(1, stage ?? 0), offload_optimizer };
}

function precisionOf({ fp16, bf16 }, values) {
  if (values.fp16) return { fp16: { ...fp16, enabled: true } };
  if (values.bf16) return { bf16: { ...bf16, enabled: true } };
  return { ...(fp16 && { fp16 }), ...(bf16 && { bf16 }) };
}

/** Returns `config` with the values of the flags. `steps` is the length of the whole run. */
function configure(config, values, { steps }) {
  const { fp16: _, bf16: __, scheduler: ___, ...rest } = config;
  const optimizer = optimizerOf(config, values);
  const scheduler = schedulerOf(config, values, { optimizer, steps });
  const ranks = tensorParallel(values);
  return {
    ...rest,
    ...precisionOf(config, values),
    optimizer,
    ...(scheduler && { scheduler }),
    zero_optimization: zeroOf(config, values),
    ...(values.clip_grad && { gradient_clipping: numberOf('--clip-grad', values.clip_grad) }),
    ...(ranks > 1 && { tensor_parallel: { autotp_size: ranks } }),
  };
}

module.exports = {
  options,
  usage,
  WITHOUT_EFFECT,
  numberOf,
  ignoredOf,
  requireSupported,
  sizesOf,
  tensorParallel,
  configure,
};
