// Declares the options of the commands for models: `ds eval`, `export`, `merge`, `pull` and
// `models`.
import type { ExportDType, ExportFormat } from '../checkpoint/index.js';
import type { GgufType } from '../models/index.js';
import { boolean, declareOption, integer, oneOf, string, texts } from '../runtime/option.js';
import type { Flags } from './declared-flags.js';

const precision = oneOf<ExportDType>(['fp32', 'fp16', 'bf16']);

const JSON_OUTPUT = { json: boolean('print JSON', { flag: '--json' }) };

/** Options of `ds eval`. */
export const EVAL = {
  'Rows:': {
    data: texts('file with [rows](#rows) for loss, perplexity and accuracy; may be repeated', {
      flag: '--data <file>',
    }),
    seq: integer('longest sample, in tokens', {
      min: 1,
      shown: "1024, or the model's maximum",
      flag: '--seq <n>',
    }),
    packing: boolean(
      'put several rows into each sample: faster for short rows; rows do not see each other',
      {
        flag: '--packing',
      },
    ),
    overlong: oneOf(['cut', 'split', 'drop'])(
      'treatment of rows longer than `--seq`: cut, split or drop them',
      {
        default: 'cut',
        flag: '--overlong <way>',
      },
    ),
    loss: oneOf(['all', 'completion', 'assistant'])(
      'tokens that count: all, of the completion, or of the assistant',
      {
        shown: 'as `ds train`',
        flag: '--loss <kind>',
      },
    ),
    textKey: string('key of a row that contains its text', {
      shown: '`"text"`; with `--task`, keys of known sets too',
      flag: '--text-key <key>',
    }),
    columns: declareOption(
      (_, columns: Readonly<Record<string, string>>) => columns,
      'new names of [columns](text.md#other-columns), such as `question=prompt`; for `--tasks` too',
      { shown: 'none', flag: '--columns <name=new,...>', syntax: 'pair list' },
    ),
  },
  'Rows with labels:': {
    task: oneOf([
      'sequence-classification',
      'token-classification',
      'question-answering',
      'masked-lm',
    ])('[task](#classifiers) of the rows of `--data`', {
      shown: 'none',
      flag: '--task <task>',
      conflicts: ['packing', 'overlong', 'loss', 'tasks', 'delimiter', 'addBos'],
    }),
    textPairKey: string('key of the second text of a row', {
      shown: 'none',
      flag: '--text-pair-key <key>',
    }),
    labelKey: string('key of the label', {
      shown: '`"label"` or `"labels"`',
      flag: '--label-key <key>',
    }),
  },
  'Multiple-choice questions:': {
    tasks: texts('[rows](#multiple-choice-questions) {context, choices, answer}; may be repeated', {
      flag: '--tasks <file>',
    }),
    delimiter: string('text that is put between a context and a choice', {
      default: ' ',
      shown: 'one space',
      flag: '--delimiter <text>',
    }),
    addBos: boolean("begin each context with the tokenizer's BOS token", { flag: '--add-bos' }),
  },
  'Model:': {
    adapter: string("folder of an adapter in PEFT's format; it stays separate", {
      flag: '--adapter <folder>',
    }),
    tokenizer: string('folder or name of the tokenizer', {
      shown: "the model's",
      flag: '--tokenizer <folder>',
    }),
    device: string('where the model runs: `"cpu"`, `"cuda"` or `"cuda:N"`', {
      shown: 'a GPU if present',
      flag: '--device <name>',
    }),
    dtype: precision('dtype of the weights', { shown: 'as the folder', flag: '--dtype <dtype>' }),
    batch: integer('samples of one forward; lower it if memory is short', {
      min: 1,
      default: 8,
      flag: '--batch <n>',
    }),
  },
  'Output:': JSON_OUTPUT,
};
export type EvalFlags = Flags<typeof EVAL>;

const SHARD_SIZE = {
  maxShardSize: integer('bytes of the largest file, such as 500MB, 5GB or 2GiB', {
    min: 1,
    default: 5e9,
    shown: '5GB',
    flag: '--max-shard-size <size>',
    syntax: 'bytes',
  }),
};

const FORMAT = {
  format: oneOf<ExportFormat>(['hf', 'native'])(
    'names of the weights: `hf` as in transformers, `native` as in this library',
    {
      shown: '`hf` if possible',
      flag: '--format <format>',
    },
  ),
};

const TAG = {
  tag: string('name of the checkpoint, such as checkpoint-500', {
    shown: 'the latest',
    flag: '--tag <tag>',
  }),
};

/** Options of `ds merge`. */
export const MERGE = {
  'Options:': {
    output: string('folder to create', { required: true, flag: '--output <folder>' }),
    ...SHARD_SIZE,
  },
};
export type MergeFlags = Flags<typeof MERGE>;

/** Options of `ds export`. */
export const EXPORT = {
  'Options:': {
    output: string('folder to create, or file of `--gguf`', {
      required: true,
      flag: '--output <folder>',
    }),
    dtype: precision(
      'number format of the weights; fp32 exports the master weights of a checkpoint',
      {
        shown: 'fp32 of a checkpoint, else unchanged',
        flag: '--dtype <dtype>',
      },
    ),
    ...SHARD_SIZE,
    ...FORMAT,
    ...TAG,
    gguf: oneOf<GgufType>(['F32', 'F16', 'Q8_0', 'MXFP4', 'Q4_K_M'])(
      'write one [GGUF file](gguf.md) `--output` for llama.cpp',
      { flag: '--gguf <type>' },
    ),
  },
};
export type ExportFlags = Flags<typeof EXPORT>;

/** Options of `ds consolidate`. */
export const CONSOLIDATE = {
  'Options:': {
    ...TAG,
    dtype: precision('dtype of the weights', { default: 'fp32', flag: '--dtype <dtype>' }),
    ...SHARD_SIZE,
    ...FORMAT,
  },
};
export type ConsolidateFlags = Flags<typeof CONSOLIDATE>;

/** Options of `ds pull`. */
export const PULL = {
  'Options:': {
    revision: string('branch, tag or commit', { default: 'main', flag: '--revision <name>' }),
    include: texts('other files, such as "*.gguf"; never pickles', {
      flag: '--include <pattern...>',
    }),
    quiet: boolean('print no progress', { flag: '--quiet' }),
  },
};
export type PullFlags = Flags<typeof PULL>;

/** Options of `ds models`. */
export const MODELS = { 'Options:': JSON_OUTPUT };
export type ModelsFlags = Flags<typeof MODELS>;

/** Options of `ds models remove`. */
export const REMOVE = {
  'Options:': {
    revision: string('branch, tag or commit', { shown: 'all', flag: '--revision <name>' }),
  },
};
export type RemoveFlags = Flags<typeof REMOVE>;
