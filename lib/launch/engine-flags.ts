// Declares the model options of `ds serve` and `ds chat`, and converts them to options of the
// engine.

import { readFileSync } from 'node:fs';
import { formatValue } from '../runtime/format-value.js';
import { isPlainObject } from '../runtime/is-object.js';
import { declareOption, integer, type Options, string } from '../runtime/option.js';
import { errorMessage } from '../runtime/system-error.js';
import type { EngineOptions } from '../serve/index.js';
import { refuse } from './argument-error.js';

/** Options of both commands. */
export const ENGINE = {
  revision: string('branch, tag or commit, if the model is a [name on the hub](hub.md)', {
    shown: '`main`',
    flag: '--revision <name>',
  }),
  device: string('where the model runs: `"cpu"`, `"cuda"` or `"cuda:N"`', {
    shown: 'a GPU if present',
    flag: '--device <name>',
  }),
  dtype: string('number format of the weights: fp32, fp16 or bf16', {
    shown: "the folder's",
    flag: '--dtype <name>',
  }),
  context: integer('most [tokens](serving.md#context-and-memory) of prompt and answer together', {
    min: 2,
    shown: "the model's maximum, or as many as the cache holds",
    flag: '--context <n>',
  }),
  config: string('JSON file with the [engine configuration](inference-configuration.md)', {
    shown: 'none',
    flag: '--config <file>',
  }),
  hostCache: integer(
    'host memory for [prefixes](inference-memory.md#prefixes-in-host-memory) that leave the GPU, such as 16GiB',
    {
      min: 1,
      shown: 'none',
      flag: '--host-cache <size>',
      syntax: 'bytes',
    },
  ),
  speculativeConfig: string(
    'options of [speculative decoding](speculation.md), as JSON: faster for few clients',
    {
      shown: 'none',
      flag: '--speculative-config <json>',
    },
  ),
  kvCacheDtype: string(
    '`fp8`: store [keys and values](serving.md#fp8-keys-and-values) in one byte',
    {
      shown: '`auto`, as the weights',
      flag: '--kv-cache-dtype <name>',
    },
  ),
  schedulingPolicy: string(
    '[order of requests](operating.md#priorities-and-turns): `fair`, `priority` or `fcfs`',
    {
      shown: '`fair`',
      flag: '--scheduling-policy <name>',
    },
  ),
  tokenizer: string('folder or name of the tokenizer', {
    shown: "the model's",
    flag: '--tokenizer <folder>',
  }),
  chatTemplate: string('file with the Jinja template of chats', {
    shown: "the tokenizer's",
    flag: '--chat-template <file>',
  }),
};

/** More options of `ds serve`. */
export const SERVER = {
  apiKeyFile: string(
    'file with the [keys](serving.md#keys-and-access) of clients, one in each line; `DS_API_KEY` has one key',
    {
      shown: 'no key',
      flag: '--api-key-file <file>',
    },
  ),
  /** Number of ranks that share the model. */
  tp: integer(
    '[GPUs that divide the model](serving.md#a-model-on-several-gpus); use it if the model does not fit one',
    {
      min: 1,
      default: 1,
      flag: '--tp <n>',
    },
  ),
  models: declareOption(
    (_, models: Readonly<Record<string, string>>) => models,
    'one of [several models](several-models.md#several-models), instead of the argument; repeatable',
    { shown: 'none', flag: '--model <name=folder>', syntax: 'pairs' },
  ),
  modelsDir: string('folder of [several models](several-models.md#several-models)', {
    shown: 'none',
    flag: '--models-dir <folder>',
  }),
  modelMemory: integer('memory for all loaded [models](several-models.md#several-models)', {
    min: 1,
    shown: '90 % of the GPU, or half of the host memory',
    flag: '--model-memory <size>',
    syntax: 'bytes',
  }),
  modelIdle: integer(
    'seconds without a request after which a model is [unloaded](several-models.md#several-models)',
    {
      min: 1,
      shown: 'never',
      flag: '--model-idle <seconds>',
    },
  ),
  adapters: declareOption(
    (_, adapters: Readonly<Record<string, string>>) => adapters,
    '[adapter](several-models.md#several-adapters) for requests with this model name; repeatable',
    { shown: 'none', flag: '--adapter <name=folder>', syntax: 'pairs' },
  ),
  maxAdapters: integer(
    'maximum number of [adapters](several-models.md#several-adapters) at a time; extra slots load later',
    {
      min: 1,
      shown: 'the number of `--adapter`',
      flag: '--max-loras <n>',
    },
  ),
  maxAdapterRank: integer('largest rank of an adapter, up to 256; a larger one costs memory', {
    min: 1,
    max: 256,
    shown: 'the largest of `--adapter`',
    flag: '--max-lora-rank <n>',
  }),
  seed: integer('seed for requests that have none', {
    min: 0,
    shown: 'random',
    flag: '--seed <n>',
  }),
};

/** Values of both commands' options, as commander reads them. */
export interface EngineFlags extends Options<typeof ENGINE> {
  tp?: number;
  seed?: number;
  adapter?: Readonly<Record<string, string>>;
  maxLoras?: number;
  maxLoraRank?: number;
  /** Folders by name, from --model. */
  model?: Readonly<Record<string, string>>;
  /** Whether to record steps as graphs where possible; false with --no-graphs. */
  graphs: boolean;
}

/** The options of `ds serve`. fromFlags() selects the options of the server. */
export interface ServeFlags extends EngineFlags, Options<typeof SERVER> {}

/**
 * Converts the flags to options of the engine. Throws DS_ARGUMENT for a file that cannot be read.
 */
export function readEngineOptions(flags: EngineFlags): EngineOptions {
  const { device, dtype, context, config, tokenizer, tp = 1, seed, graphs, revision } = flags;
  const fromFlags = {
    speculative: parseSpeculative(flags.speculativeConfig),
    device,
    dtype,
    max_out_tokens: context,
    tensor_parallel: tp > 1 ? { tp_size: tp } : undefined,
    enable_cuda_graph: graphs ? undefined : false,
  };
  const givenValues = Object.entries(fromFlags).filter(([, value]) => value !== undefined);
  const defaults = { enable_cuda_graph: 'auto' as const };
  const merged: Config = {
    ...defaults,
    ...readConfigFile(config),
    ...Object.fromEntries(givenValues),
  };
  const { kvCacheDtype } = flags;
  if (kvCacheDtype !== undefined) {
    merged.kv_cache = { ...merged.kv_cache, dtype: kvCacheDtype as 'fp8' };
  }
  const { schedulingPolicy: policy } = flags;
  if (policy !== undefined) merged.scheduling = { ...merged.scheduling, policy: policy as 'fair' };
  const { hostCache } = flags;
  if (hostCache !== undefined) merged.kv_cache = { ...merged.kv_cache, host_memory: hostCache };
  const { adapter: adapters, maxLoras: maxAdapters, maxLoraRank: maxAdapterRank } = flags;
  const adapterEntries = Object.entries({ adapters, maxAdapters, maxAdapterRank });
  const adapterOptions = Object.fromEntries(
    adapterEntries.filter(([, value]) => value !== undefined),
  );
  return { config: merged, tokenizer, seed, revision, ...adapterOptions };
}

/**
 * Returns the text of a template file; undefined without a file. Throws DS_ARGUMENT if it cannot be
 * read.
 */
export function readTemplate(file: string | undefined): string | undefined {
  if (file === undefined) return undefined;
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    refuse('--chat-template', 'a readable file', errorMessage(cause));
  }
}

type Config = NonNullable<EngineOptions['config']>;

function parseSpeculative(json: string | undefined): Config['speculative'] {
  if (json === undefined) return undefined;
  try {
    const parsed: unknown = JSON.parse(json);
    if (isPlainObject(parsed)) return parsed;
  } catch {}
  refuse('--speculative-config', 'a JSON object', formatValue(json));
}

function readConfigFile(file: string | undefined): Config {
  if (file === undefined) return {};
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    refuse('--config', 'a readable JSON file', errorMessage(cause));
  }
}
