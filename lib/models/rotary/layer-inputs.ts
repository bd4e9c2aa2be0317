// Further embeddings of the tokens, one for each block, and the ends of blocks that take them.
// Source: Gemma 3n and 4.
import { Embedding } from '../../nn/embedding.js';
import { type Initializer, ones } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import type { Module } from '../../nn/module.js';
import { Parameter } from '../../nn/parameter.js';
import { leading, required } from '../../runtime/required.js';
import { scope, type Tensor, where } from '../../tensor/index.js';
import type { BodySizes } from './config.js';
import { ACTIVATIONS } from './feed-forward.js';
import { createNorm, type Norm } from './norms.js';
import type { Activation } from './traits.js';

/** Modules at the end of a block. */
interface BlockEnding {
  per_layer_input_gate: Linear;
  per_layer_projection: Linear;
  post_per_layer_input_norm: Norm;
  /** [1], not trained. */
  layer_scalar: Parameter;
}

/** Adds the modules of a block's end. */
export function addEnding(block: Module, body: BodySizes): void {
  const { channels, layerInputDim: width } = body;
  if (!body.altUp) {
    const scalar = new Parameter([1], ones);
    scalar.requiresGrad = false;
    Object.assign(block, { layer_scalar: scalar });
  }
  if (!width) return;
  Object.assign(block, {
    per_layer_input_gate: new Linear(channels, width, { bias: false }),
    per_layer_projection: new Linear(width, channels, { bias: false }),
    post_per_layer_input_norm: createNorm(body, channels),
  });
}

/** Returns the stream [B, T, C] of block `layer` after it has read its part of `inputs`. */
export function applyEnding(
  block: Module,
  body: BodySizes,
  layer: number,
  { stream, inputs }: { stream: Tensor; inputs: Tensor | null },
): Tensor {
  const { layer_scalar: scalar } = block as unknown as BlockEnding;
  if (!body.layerInputDim) return stream.mul(scalar);
  return stream.add(projectInputs(block, body, layer, { stream, inputs })).mul(scalar);
}

/** Returns what block `layer` adds to the stream [B, T, C] for its part of `inputs`. */
export function projectInputs(
  block: Module,
  { layerInputDim, traits }: BodySizes,
  layer: number,
  { stream, inputs }: { stream: Tensor; inputs: Tensor | null },
): Tensor {
  const end = block as unknown as BlockEnding;
  const width = required(layerInputDim);
  const layerInput = required(inputs).narrow(2, layer * width, width);
  const kind = (traits.activation?.kind ?? 'silu') as Activation;
  const gate = ACTIVATIONS[kind](end.per_layer_input_gate.call(stream));
  const branch = end.per_layer_projection.call(gate.mul(layerInput));
  return end.post_per_layer_input_norm.call(branch);
}

/** The modules of the embeddings. */
interface InputTables {
  embed_tokens_per_layer: Embedding;
  per_layer_model_projection: Linear;
  per_layer_projection_norm: Norm;
}

/** Names of these modules. */
export const INPUT_MODULES = [
  'embed_tokens_per_layer',
  'per_layer_model_projection',
  'per_layer_projection_norm',
] as const;

/** Adds the embeddings of all blocks to a model. */
export function addLayerInputs(model: Module, body: BodySizes, init: Initializer): void {
  const { channels, layers, layerInputDim: width, padTokenId, altUp } = body;
  const { layerVocab: vocabSize = body.vocabSize } = altUp ?? {};
  if (!width) return;
  const padding = padTokenId === null ? {} : { paddingIdx: padTokenId };
  Object.assign(model, {
    embed_tokens_per_layer: new Embedding(vocabSize, layers * width, { init, ...padding }),
    per_layer_model_projection: new Linear(channels, layers * width, { bias: false }),
    per_layer_projection_norm: createNorm(body, width),
  });
}

/**
 * Returns the embeddings [B, T, layers * width] of tokens, plus a projection of their embedding
 * `x`. `rounded` gives a factor in the dtype of the weights.
 */
export function computeLayerInputs(
  model: Module,
  { layers, layerInputDim: width, channels, vocabSize, altUp }: BodySizes,
  { tokens, x }: { tokens: Tensor; x: Tensor },
  rounded: (factor: number) => number,
): Tensor | null {
  if (!width) return null;
  const tables = model as unknown as InputTables;
  return scope(() => {
    const [B, T] = leading(x.shape, 2);
    const projected = tables.per_layer_model_projection.call(x).mul(channels ** -0.5);
    const blocks = projected.reshape([B, T, layers, width]);
    const normed = tables.per_layer_projection_norm.call(blocks).reshape([B, T, -1]);
    const { layerVocab = vocabSize } = altUp ?? {};
    const known = layerVocab < vocabSize ? where(tokens.lt(layerVocab), tokens, 0) : tokens;
    const tokenInputs = tables.embed_tokens_per_layer.call(known).mul(rounded(Math.sqrt(width)));
    return normed.add(tokenInputs).mul(Math.SQRT1_2);
  });
}
