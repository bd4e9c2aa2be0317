// Options of each benchmark, printed by --help.
import type { Options } from './main.js';

/** Descriptions of options by name, in print order. */
type OptionTexts = Readonly<Record<string, string>>;

const device = (standard: string): OptionTexts => ({
  device: `cpu, cuda, cuda:N or auto (${standard})`,
});

const model = (standard: string): OptionTexts => ({
  model: `name of a model (${standard})`,
  layers: 'as many layers as these',
  checkpoint: 'blocks are computed again in the backward; "selective", "attention": parts of them',
  lora: 'rank of adapters (16) on all linear layers but the head',
  qlora: 'the same over weights in NF4',
  adapters: 'bf16: adapters are left to the engine; else they are f32',
});

/** By benchmark. */
export const optionTexts: Readonly<Record<string, OptionTexts>> = {
  host: device('auto'),
  adam: {
    rule: 'the optimizer (adamw)',
    ...device('auto'),
    n: 'parameters (2^28; 2^24 on a CPU)',
    threads: 'counts of host threads, with commas (all)',
  },
  checkpoint: {
    mb: 'megabytes of tensors (200)',
    rounds: 'saves and loads (5)',
    dir: 'folder to write into (a temporary one)',
  },
  cpu: {
    only: 'groups with commas: train,decode,matmul,ops (all)',
    peer: 'a Python with PyTorch, which takes turns with ours',
    threads: 'on either side (2)',
    rounds: 'turns (5)',
    seconds: 'of each turn (0.3)',
    dtype: 'f32 or bf16 (both)',
  },
  decode: {
    ...model('llama-8B'),
    ...device('cuda'),
    dtype: 'bf16, fp16 or fp32 (bf16)',
    batch: 'numbers of texts, with commas (1,32,128)',
    prompt: 'tokens of a prompt (128)',
    new: 'tokens that are sampled (128)',
    first: 'prompts whose first token is timed, with commas (128,2048)',
    graph: 'false: no recorded steps',
    bits: 'of weights: 16, 8 or 4 (16)',
    group: 'inputs that share a scale, of 4 bits',
    head: 'bits of the head: 8 or 4 (not quantized)',
    bandwidth: 'bytes a second of the memory (4.27e12)',
    profile: 'where the time of the host goes, in one more run of each',
  },
  grammar: { steps: 'masks of each kind of schema (400)' },
  'fp8-loss': {
    ...model('124M'),
    ...device('auto'),
    text: 'file to train on; 15 MB of it are read (README.md)',
    recipes: 'bf16 and recipes of FP8, with commas (bf16,tensorwise,rowwise)',
    steps: 'of each run (2000)',
    every: 'steps between evaluations (250)',
    batch: 'samples of a micro-batch (16)',
    seq: 'tokens of a sample (1024)',
  },
  train: {
    ...model('124M'),
    ...device("the launcher's, or auto"),
    batch: 'samples of a micro-batch (16)',
    seq: 'tokens of a sample (1024)',
    accumulate: 'micro-batches of a step (1)',
    steps: 'that are timed (10)',
    'warm-up': 'steps before them (4)',
    precision: 'bf16, fp16 or fp32 (bf16)',
    'bf16-moments': 'true: bf16_optimizer_states',
    fp8: 'recipe of FP8 products: tensorwise, rowwise or blockwise (none)',
    clip: 'gradient_clipping (1)',
    stage: 'of ZeRO (0; 2 with --offload)',
    overlap: 'true or false: overlap_comm',
    offload: 'optimizer state in host memory',
    nvme: 'a folder: that state on its disk',
    deferred: 'updates after the step decision: super_offload false',
    ratio: 'share of the state that is away (1)',
    share: 'gpu_share of updates (auto)',
    'offload-param': 'weights in host memory',
    'nvme-weights': 'a folder: weights on its disk',
    'max-in-cpu': 'elements of these that stay in host memory (0)',
    'sub-group': 'sub_group_size',
    live: 'stage3_max_live_parameters',
    tp: 'ranks that share each layer',
    sequence: 'true: these share tokens between layers, too',
    pp: 'stages of a pipeline',
    schedule: 'of the pipeline (1f1b)',
    partition: 'of its layers (best)',
    segments: 'checkpoints of activations that are kept',
    'cpu-checkpointing': 'true: these lie in host memory',
    cap: 'GiB of the device that may be taken',
    'comm-times': 'how long collectives take',
    trace: 'file for a trace of further steps',
    'trace-steps': 'as many (2)',
  },
  serve: {
    ...model('llama-tiny'),
    ...device('cpu'),
    dtype: 'bf16, fp16 or fp32 (bf16)',
    clients: 'at the same time (128)',
    prompt: 'tokens of a prompt (128)',
    tokens: 'that each wants (128)',
    rounds: 'of all clients (5)',
  },
  activations: {
    model: 'name of a GPT-2 (124M)',
    batch: 'samples (4)',
    seq: 'tokens of a sample (1024)',
    segments: 'checkpoints that are kept in that mode (4)',
    precision: 'bf16 or fp32 (bf16)',
    ...device('auto'),
  },
  attention: {
    count: 'launches back to back (20)',
    ...device('cuda'),
    only: 'an expression that names of shapes match (all)',
  },
  kernels: {
    ...device('cuda'),
    count: 'launches back to back (200)',
    only: 'groups, with commas (all)',
    dtypes: 'with commas (bf16,f32)',
  },
  'inference-memory': {
    tokens: 'that are generated in all (1000000)',
    ...device('cpu'),
  },
  loader: {
    batch: 'samples (16)',
    seq: 'tokens of a sample (1024)',
    data: 'a token file (one of random tokens)',
    tokens: 'millions of these (32)',
    ...device('auto'),
    workers: 'numbers of threads, with commas (0,1,2,4)',
    seconds: 'of each (4)',
  },
  dpo: {
    ...model('llama-1B'),
    ...device('cuda'),
    batch: 'pairs of an update (8)',
    seq: 'tokens of a row (1024)',
    prompt: 'of these, tokens of the prompt (a quarter)',
    steps: 'that are timed (6)',
    'warm-up': 'steps before them (3)',
    precision: 'bf16, fp16 or fp32 (bf16)',
  },
  grpo: {
    ...model('llama-1B'),
    ...device('cuda'),
    prompts: 'of an update (64)',
    generations: 'completions of each prompt (8)',
    prompt: 'tokens of a prompt (128)',
    new: 'tokens of a completion (256)',
    batch: 'completions of a micro-batch (32)',
    steps: 'that are timed (1)',
    'warm-up': 'steps before them (1)',
    precision: 'bf16, fp16 or fp32 (bf16)',
    'offload-states': 'true: optimizer state is in host memory while it generates',
    exact: 'true: batch-invariant kernels generate and train',
  },
  preferences: {
    seeds: 'number of seeds (3)',
    steps: 'updates of each run, a multiple of 6 (60)',
  },
  'quantization-quality': { steps: 'of training (400)' },
  rewards: {
    steps: 'updates by rewards (120)',
    seeds: 'of models and samples, with commas (1,2,3)',
    only: 'methods with commas (grpo,dr. grpo,gspo,rloo)',
  },
  adapters: {
    ...model('llama-8B'),
    ...device('cuda'),
    dtype: 'bf16, fp16 or fp32 (bf16)',
    count: 'adapters in a batch (32)',
    rank: 'of each adapter (16)',
    layers: "of the model (the model's)",
    clients: 'requests at a time (128)',
    prompt: 'tokens of a prompt (32)',
    tokens: 'of an answer (256)',
    rounds: 'runs of each row (3)',
  },
  speculation: {
    ...model('llama-8B'),
    ...device('cuda'),
    dtype: 'bf16 or fp32 (bf16)',
    prompt: 'tokens of the prompt (128)',
    new: 'tokens that are sampled (256)',
    steps: 'file with the acceptance of each step (bench/results/speculation-copy.json)',
    accept: 'the same for every step, with commas: accepted/proposed, as 3/7',
    rounds: 'runs (5)',
  },
  onebit: {
    ...device("the launcher's, or auto"),
    optimizers: 'with commas (all)',
    steps: 'of each (2000; 0: no curves)',
    text: 'a folder or file of text (docs)',
    clip: 'gradient_clipping (1)',
    freeze: 'share of steps before compression (0.2)',
    'adam-lr': 'rate of the Adams (2e-3)',
    'lamb-lr': 'of the LAMBs (1e-2)',
    'sgd-lr': 'of SGD (0.3)',
    momentum: 'of SGD (0.9)',
    timed: 'steps that are timed on a larger model (30; 0: none)',
    layers: 'of that model (8)',
    channels: 'of that model (320)',
    model: 'name of a GPT-2 in its place, in bf16',
  },
  parallelism: {
    ...device("the launcher's, or auto"),
    dp: 'ranks that share samples out (1)',
    pp: 'stages of a pipeline (1)',
    tp: 'ranks that share each layer (1)',
    stage: 'of ZeRO (0)',
    sequence: 'true: ranks that share layers share tokens between them, too',
  },
  'zero-memory': {
    ...device("the launcher's, or auto"),
    model: 'name of a GPT-2 (tiny)',
  },
};

/** Whether the command line contains --help. */
export const asksForHelp = (options: Options): boolean =>
  ['help', 'h', '-h'].some((name) => options[name] !== undefined);

/** The options of a benchmark, a line for each. */
export function helpOf(name: string): string {
  const texts = Object.entries(optionTexts[name] ?? {});
  const width = Math.max(...texts.map(([option]) => option.length));
  const lines = texts.map(([option, text]) => `  --${option.padEnd(width)}  ${text}`);
  return [`usage: npm run bench -- ${name} [--option value]`, ...lines].join('\n');
}
