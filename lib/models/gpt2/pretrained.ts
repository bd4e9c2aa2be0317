// GPT-2 to and from Hugging Face: config.json, names and layouts of GPT2LMHeadModel.

import type { JsonObject } from '../../../types/json.js';
import type { Module } from '../../nn/module.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import { required } from '../../runtime/required.js';
import { MAX_LAYERS } from '../model-config.js';
import type { ModelFolder } from '../model-folder.js';
import { type GPT2Config, type GPT2Sizes, resolveInitializerRange } from './config.js';

/** Constants of these layers. */
const LAYER_NORM_EPSILON = 1e-5;
const END_OF_TEXT = 50256;

/**
 * Keys that change the computation, with their supported values. Absent keys have the first value.
 */
const SUPPORTED: Record<string, readonly unknown[]> = {
  activation_function: ['gelu_new', 'gelu_pytorch_tanh'],
  layer_norm_epsilon: [LAYER_NORM_EPSILON],
  scale_attn_weights: [true],
  scale_attn_by_inverse_layer_idx: [false],
  tie_word_embeddings: [true],
  add_cross_attention: [false],
};

/** Masks that old checkpoints store among the weights. */
const MASK = /(^|\.)attn\.(masked_)?bias$/;
const PREFIX = 'transformer.';
const HEAD = 'lm_head.weight';

/** The Family (model-folder.ts) of GPT-2's folders; gpt2.ts adds the constructor. */
export const GPT2_FOLDERS = {
  modelType: 'gpt2',
  architecture: 'GPT2 has the published architecture: a tied head, GELU in its tanh form.',
  layout: (model: Module) => ({
    transposed: new Set(transposedIn(model)),
    /** Names may lack "transformer.". */
    nameOf: (name: string) => {
      if (MASK.test(name)) return null;
      return name === HEAD || name.startsWith(PREFIX) ? name : PREFIX + name;
    },
  }),
};

/** Hugging Face's name and layout of one of GPT-2's parameters. */
export interface HuggingFaceName {
  /** The name in GPT2LMHeadModel's state dict. */
  name: string;
  /** Conv1D stores [in, out], the transpose of this library's [out, in]. */
  transposed: boolean;
}

/** Returns parameter names, equal in both libraries, with Hugging Face's layout. */
export function gpt2HuggingFaceNames(model: Module): Map<string, HuggingFaceName> {
  const names = new Map<string, HuggingFaceName>();
  for (const [name] of model.namedParameters()) {
    names.set(name, { name, transposed: /\.(attn|mlp)\.c_\w+\.weight$/.test(name) });
  }
  return names;
}

function transposedIn(model: Module): string[] {
  const names = [...gpt2HuggingFaceNames(model)];
  return names.flatMap(([name, { transposed }]) => (transposed ? [name] : []));
}

/** Reads the sizes in a config.json. Throws DS_CHECKPOINT for a GPT-2 with another computation. */
export function parseGpt2Config({ config, tensors }: ModelFolder): GPT2Sizes {
  for (const [key, values] of Object.entries(SUPPORTED)) config.requireOneOf(key, values);
  const channels = config.size('n_embd');
  config.requireOneOf('n_inner', [4 * channels]);
  const layers = config.size('n_layer', null, MAX_LAYERS);
  const last = `h.${layers - 1}.ln_1.weight`;
  if (!tensors.has(last) && !tensors.has(PREFIX + last)) {
    throw config.refusalError('n_layer', `weights of ${layers} layers`, `none called ${last}`);
  }
  const [vocabSize, maxSeq] = [config.size('vocab_size'), config.size('n_positions')];
  const initializerRange = config.positive('initializer_range', 0.02);
  return { vocabSize, maxSeq, layers, heads: config.size('n_head'), channels, initializerRange };
}

/** The width of the MLPs if redundancyClean() has shrunk all of them; else null. */
function readInner(model: Module, channels: number): number | null {
  const biases = [...model.namedParameters()].filter(([name]) => name.endsWith('.mlp.c_fc.bias'));
  const [inner, ...others] = new Set(biases.map(([, { region }]) => required(region.whole[0])));
  return inner === undefined || others.length > 0 || inner === 4 * channels ? null : inner;
}

/**
 * The description of the model for transformers. If the model was given no dropout, it keeps the
 * dropout of its original config.json, `sourceConfig`.
 */
export function describeGpt2(
  model: Module,
  sizes: GPT2Config,
  sourceConfig: JsonObject | null,
): PretrainedDescription {
  const { vocabSize, maxSeq, layers, heads, channels, dropout = sourceConfig ? null : 0 } = sizes;
  const config: JsonObject = {
    architectures: ['GPT2LMHeadModel'],
    model_type: GPT2_FOLDERS.modelType,
    vocab_size: vocabSize,
    n_positions: maxSeq,
    n_embd: channels,
    n_layer: layers,
    n_head: heads,
    n_inner: readInner(model, channels),
    activation_function: 'gelu_new',
    layer_norm_epsilon: LAYER_NORM_EPSILON,
    ...(dropout !== null && { embd_pdrop: dropout, resid_pdrop: dropout, attn_pdrop: 0 }),
    initializer_range: resolveInitializerRange(sizes),
    tie_word_embeddings: true,
    bos_token_id: Math.min(END_OF_TEXT, vocabSize - 1),
    eos_token_id: Math.min(END_OF_TEXT, vocabSize - 1),
  };
  return { config, transposed: transposedIn(model) };
}
