// Creates the models of the benchmarks by name: published sizes of GPT-2, and Llama's shapes with
// random weights.
import { DsError } from '../lib/errors.js';
import * as models from '../lib/models/index.js';
import * as peft from '../lib/peft/index.js';
import type { Options } from './main.js';

type LlamaShape = Omit<models.LlamaConfig, 'maxSeq'>;

const LLAMA_3 = { vocabSize: 128_256, kvHeads: 8, ropeTheta: 500_000, eps: 1e-5 };

/** Source: the config.json of Llama 3.2 1B and Llama 3.1 8B; tiny is for a dry run. */
const llamas: Readonly<Record<string, LlamaShape>> = {
  'llama-tiny': {
    vocabSize: 1024,
    layers: 2,
    channels: 64,
    heads: 4,
    kvHeads: 2,
    hidden: 160,
    tied: true,
  },
  'llama-1B': {
    ...LLAMA_3,
    layers: 16,
    channels: 2048,
    heads: 32,
    hidden: 8192,
    tied: true,
  },
  'llama-8B': { ...LLAMA_3, layers: 32, channels: 4096, heads: 32, hidden: 14_336 },
};

type MixtureShape = Omit<models.Qwen3MoeConfig, 'maxSeq'>;

/** Source: the config.json of Qwen3-30B-A3B; 4B has 6 of its 48 layers, tiny is for a dry run. */
const QWEN3_MOE = {
  vocabSize: 151_936,
  channels: 2048,
  heads: 32,
  kvHeads: 4,
  headDim: 128,
  hidden: 6144,
  ropeTheta: 1e6,
  moe: { experts: 128, perToken: 8, hidden: 768 },
};
const mixtures: Readonly<Record<string, MixtureShape>> = {
  'qwen3-moe-tiny': {
    vocabSize: 1024,
    layers: 2,
    channels: 64,
    heads: 4,
    kvHeads: 2,
    hidden: 160,
    moe: { experts: 8, perToken: 2, hidden: 48 },
  },
  'qwen3-moe-4B': { ...QWEN3_MOE, layers: 6 },
  'qwen3-moe-30B': { ...QWEN3_MOE, layers: 48 },
};

type GptOssShape = Omit<models.GptOssConfig, 'maxSeq'>;

/** Windows of 128 tokens in every second layer, from the first on. */
const alternate = (layers: number): (number | null)[] =>
  Array.from({ length: layers }, (_, layer) => (layer % 2 === 0 ? 128 : null));

/** Source: the config.json of gpt-oss-20b; tiny is for a dry run. */
const gptOss: Readonly<Record<string, GptOssShape>> = {
  'gpt-oss-tiny': {
    vocabSize: 1024,
    layers: 2,
    channels: 64,
    heads: 4,
    kvHeads: 2,
    headDim: 16,
    hidden: 64,
    moe: { experts: 8, perToken: 4 },
    attentionBias: true,
  },
  'gpt-oss-20B': {
    vocabSize: 201_088,
    layers: 24,
    channels: 2880,
    heads: 64,
    kvHeads: 8,
    headDim: 64,
    hidden: 2880,
    moe: { experts: 32, perToken: 4 },
    attentionBias: true,
    ropeTheta: 150_000,
    eps: 1e-5,
  },
};

/** Activation checkpointing by the options. */
function checkpointMode({ checkpoint }: Options): boolean | 'selective' {
  return checkpoint === 'selective' ? 'selective' : checkpoint !== undefined;
}

/**
 * --model NAME [--layers N], --checkpoint, --lora RANK and --qlora RANK (alpha twice the rank, all
 * linear layers but the head). Adapters are f32; with --adapters bf16 the engine casts them.
 */
export function benchModel(options: Options, seq: number): models.CausalLM {
  const model = plainModel(options, seq);
  const rank = options.qlora ?? options.lora;
  if (rank === undefined) return model;
  if (options.qlora) peft.quantize(model);
  const r = rank === 'true' ? 16 : Number(rank);
  const sizes = { r, loraAlpha: 2 * r };
  const autocastAdapterDtype = options.adapters !== 'bf16';
  return peft.addLora(model, { ...sizes, autocastAdapterDtype, targetModules: 'all-linear' });
}

/**
 * --model NAME [--layers N] [--vocab N] and --checkpoint, for sequences of `seq` tokens. Throws
 * DS_ARGUMENT.
 */
function plainModel(options: Options, seq: number): models.CausalLM {
  const name = options.model ?? '124M';
  const activationCheckpointing = checkpointMode(options);
  const [llama, mixture] = [llamas[name], mixtures[name]];
  const layers = {
    ...(options.layers !== undefined && { layers: Number(options.layers) }),
    ...(options.vocab !== undefined && { vocabSize: Number(options.vocab) }),
  };
  const oss = gptOss[name];
  if (!llama && !mixture && !oss)
    return new models.GPT2({ ...models.GPT2.config(name), activationCheckpointing, ...layers });
  if (activationCheckpointing === 'selective') {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'bench train --checkpoint',
      expected: `nothing behind it for ${name}`,
      got: 'selective',
    });
  }
  const how = { maxSeq: seq, activationCheckpointing, ...layers };
  if (oss) {
    const sizes = { ...oss, ...how };
    return new models.GptOss({ ...sizes, window: alternate(sizes.layers) });
  }
  if (mixture) return new models.Qwen3Moe({ ...mixture, ...how });
  return new models.Llama({ ...(llama as LlamaShape), ...how });
}
