// What a plan needs to know of a model: how much of it moves as one, and what its blocks keep.
import { DsError } from '../errors.js';
import type { BlockActivations } from '../models/activation-shape.js';
import type { CausalLM } from '../models/index.js';

/** A model's sizes, in elements; nothing of it needs memory to be counted. */
export interface ModelSizes {
  /** All parameters, each counted once. */
  parameters: number;
  /** Those that no product reads for a token: of experts to which it does not go. */
  idle: number;
  /** Those of the embeddings and the head. */
  root: number;
  /** Those of one block, the largest where they differ. */
  block: number;
  /** Blocks. */
  layers: number;
  /** What one block keeps of each token. */
  activations: BlockActivations;
  /** Width of the residual stream. */
  channels: number;
  /** Width of all heads of queries together. */
  attentionWidth: number;
  /** Tokens that there are, and the columns of the head's products: a multiple of 64. */
  vocabulary: number;
  paddedVocabulary: number;
  /** The longest sequence. */
  maxSeq: number;
}

const HEAD_ALIGNMENT = 64;

/** The sizes of `model`, whose parameters are counted, not made. */
export function sizesOf(model: CausalLM): ModelSizes {
  const { channels, heads, headDim = channels / heads, layers } = model.config;
  const count = (parameters: Iterable<{ numel: number }>): number =>
    [...parameters].reduce((sum, { numel }) => sum + numel, 0);
  const blocks = model.units().map(({ module }) => count(module.parameters()));
  const parameters = count(model.parameters());
  const { vocabSize: vocabulary, maxSeq } = model;
  return {
    parameters,
    idle: model.idleParameters(),
    root: parameters - blocks.reduce((sum, one) => sum + one, 0),
    block: Math.max(0, ...blocks),
    layers,
    activations: model.blockActivations(),
    channels,
    attentionWidth: heads * headDim,
    vocabulary,
    paddedVocabulary: Math.ceil(vocabulary / HEAD_ALIGNMENT) * HEAD_ALIGNMENT,
    maxSeq,
  };
}

/** Throws DS_ARGUMENT for samples of more tokens than the model takes. */
export function requireLength(op: string, seq: number, { maxSeq }: ModelSizes): void {
  if (seq <= maxSeq) return;
  const expected = `at most the model's ${maxSeq}`;
  throw new DsError({ code: 'DS_ARGUMENT', op: `${op} seq`, expected, got: `${seq}` });
}
