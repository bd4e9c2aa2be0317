// Declares the options of `ds plan`.
import { PRECISIONS } from '../plan/setup.js';
import { boolean, declareOption, integer, number, oneOf, string } from '../runtime/option.js';
import { requireInteger } from '../runtime/require-number.js';
import type { Flags } from './declared-flags.js';

/** Checks the rank of adapters; true means the default rank. */
const readRank = (op: string, value: number | true): number | true =>
  value === true ? value : requireInteger(op, value, 1);

const MODEL = {
  model: string('[GPT-2](models.md) size such as 1558M, folder, or [name](hub.md) on the hub', {
    required: true,
    flag: '--model <model>',
  }),
  revision: string('branch, tag or commit, if the model is a name on the hub', {
    shown: '`main`',
    flag: '--revision <name>',
  }),
  batch: integer('samples of a step on each GPU; `ds plan` tries micro-batches of N, N / 2, ...', {
    min: 1,
    default: 1,
    flag: '--batch <n>',
  }),
  seq: integer('longest sample, in tokens', {
    min: 1,
    shown: "1024, or the model's maximum",
    flag: '--seq <n>',
  }),
  precision: oneOf(PRECISIONS)('dtype of weights', {
    default: 'bf16',
    flag: '--precision <p>',
  }),
  bf16OptimizerStates: boolean(
    "AdamW's [moments in bf16](offload.md#moments-in-bf16): 4 bytes a parameter less, not exact",
    { flag: '--bf16-optimizer-states' },
  ),
};

const MACHINES = {
  gpu: string('name from the [table](#gpus), such as h100 or a100-80g; a wrong name prints all', {
    shown: 'the GPU of this machine, else an H200',
    flag: '--gpu <name>',
  }),
  gpuMemory: integer("memory of each GPU, such as 24GiB, in place of the GPU's own", {
    min: 1,
    shown: "that GPU's",
    flag: '--gpu-memory <size>',
    syntax: 'bytes',
  }),
  hostMemory: integer('memory of each machine, such as 64GiB', {
    min: 1,
    shown: "this machine's",
    flag: '--host-memory <size>',
    syntax: 'bytes',
  }),
  gpus: integer('GPUs of each machine', { min: 1, default: 1, flag: '--gpus <n>' }),
  nodes: integer('number of machines', { min: 1, default: 1, flag: '--nodes <n>' }),
  cores: integer('CPU cores of each machine; they limit the speed of offload', {
    min: 1,
    shown: "this machine's",
    flag: '--cores <n>',
  }),
  /** GB/s. */
  link: number('speed of the network between machines', {
    above: 0,
    default: 50,
    flag: '--link <GB/s>',
  }),
  nvmeSpace: integer(
    'free disk space of each machine; with it, the plan also tries [state on the disk](nvme.md)',
    {
      min: 1,
      flag: '--nvme-space <size>',
      syntax: 'bytes',
    },
  ),
  /** GB/s. */
  nvmeRate: number('speed of the disk while it reads and writes; `ds io` measures it', {
    above: 0,
    default: 2,
    flag: '--nvme-rate <GB/s>',
  }),
};

const PARALLELISM = {
  tp: integer('largest number of [tensor-parallel](tensor-parallel.md) ranks', {
    min: 1,
    default: 1,
    flag: '--tp <n>',
  }),
  pp: integer('largest number of [pipeline](pipeline.md) stages', {
    min: 1,
    default: 1,
    flag: '--pp <n>',
  }),
  lora: declareOption(readRank, 'train [adapters](lora.md) of rank R; without a number, 8', {
    flag: '--lora [r]',
    syntax: 'integer or switch',
  }),
  qlora: declareOption(readRank, 'the same, with the linear layers in 4 bits: less memory', {
    flag: '--qlora [r]',
    syntax: 'integer or switch',
  }),
  loraTargets: string('names of layers with adapters, joined by commas, or all-linear', {
    shown: 'as PEFT',
    flag: '--lora-targets <names>',
  }),
};

const CONFIGURATION = {
  config: string('predict [this ds_config.json](#your-own-configuration) instead of choosing one', {
    flag: '--config <file>',
    conflicts: ['batch', 'precision', 'bf16OptimizerStates', 'tp', 'pp'],
  }),
  checkpointing: boolean('with `--config`: the model has `activationCheckpointing: true`', {
    flag: '--checkpointing',
  }),
};

const OUTPUT = {
  json: boolean('print all combinations as JSON', { flag: '--json' }),
};

export const PLAN = {
  'Model and batch:': MODEL,
  'Machines:': MACHINES,
  'Parallelism and adapters:': PARALLELISM,
  'One configuration:': CONFIGURATION,
  'Output:': OUTPUT,
};

/** Values of the options of `ds plan`; sizes are in bytes. */
export type PlanFlags = Flags<typeof PLAN>;
