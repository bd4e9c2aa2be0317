// What a plan needs to know of a model: how much of it moves as one, and what its blocks keep.
import { DsError } from '../errors.js';
import type { BlockActivations } from '../models/activation-shape.js';
import type { CausalLM } from '../models/index.js';
import type { Module } from '../nn/module.js';
import { PackedLinear } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import { DoraLinear, type LoraLayer, LoraLinear, lorasOf } from '../peft/index.js';
import { dtypeSize } from '../runtime/dtype.js';
import { numel } from '../runtime/view.js';

/** Elements, and the bytes of those among them whose dtype is not the engine's. */
export interface Elements {
  count: number;
  /** Those with a dtype of their own. */
  own: { count: number; bytes: number };
}

/** Passing values of adapters in f32; one layer has them at a time. */
export interface Adapters {
  /** Elements for each token: of the widest layer, values in f32 and their gradient. */
  perToken: number;
  /** Elements of the largest weight whose rows have magnitudes, twice. */
  lengths: number;
  /**
   * Inputs and outputs of all layers with an adapter: what its products read and write by token.
   */
  streamed: number;
}

/** Weights in few bits. */
export interface Packed {
  /** Of all blocks: weights, which products read in full. */
  count: number;
  /** Elements and bytes that hold them. */
  elements: number;
  bytes: number;
}

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
  /** All weights, as they are kept. */
  weights: Elements;
  /** Those that have gradients and state: all, but with adapters. */
  trained: Elements & {
    /** Outside the blocks, and in the one with the most. */
    root: number;
    block: number;
    /** Whether the head is among them. */
    hasHead: boolean;
  };
  /** Elements of the largest weight in few bits, which is made whole for its product; else 0. */
  unpacked: number;
  /** All of them. */
  packed: Packed;
  /** What layers with adapters need beside the products of their bases. */
  adapters: Adapters;
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

/** A model with unknown blocks. */
const UNKNOWN: BlockActivations = {
  ...{ kept: 0, statistics: 0, backward: 0, replayed: 0, stream: 0, selective: null },
};

/** The sizes of `model`, whose parameters are counted, not made. */
export function sizesOf(model: CausalLM): ModelSizes {
  const { channels, heads, headDim = channels / heads } = model.config;
  const { lm_head, vocabSize: vocabulary, maxSeq } = model;
  const counts = countsOf(model);
  const hasHead = !(lm_head instanceof PackedLinear) && lm_head.weight.requiresGrad;
  return {
    ...counts,
    idle: model.idleParameters(),
    trained: { ...counts.trained, hasHead },
    layers: model.config.layers,
    activations: model.blockActivations(),
    channels,
    attentionWidth: heads * headDim,
    vocabulary,
    paddedVocabulary: Math.ceil(vocabulary / HEAD_ALIGNMENT) * HEAD_ALIGNMENT,
    maxSeq,
  };
}

/**
 * What can be counted of any model: its parameters. Of activations, of which nothing is known, and
 * of what its products take there is nothing in it; `layers` are as many of the largest block as
 * make up all.
 */
export function countsOf(model: Module): ModelSizes {
  const count = (parameters: Iterable<{ numel: number }>): number =>
    [...parameters].reduce((sum, { numel }) => sum + numel, 0);
  const blocks = model.units().map(({ module }) => count(module.parameters()));
  const inBlocks = blocks.reduce((sum, one) => sum + one, 0);
  const block = Math.max(0, ...blocks);
  const parameters = count(model.parameters());
  const learns = ({ requiresGrad }: Parameter): boolean => requiresGrad;
  const trained = model.parameters().filter(learns);
  const trainedBlocks = model
    .units()
    .map(({ module }) => count(module.parameters().filter(learns)));
  const loras = [...lorasOf(model).values()];
  // A layer with an adapter is no child of it: it would be missed among the modules.
  const layers = [...model.modules(), ...loras.map(({ base }) => base)];
  const packed = layers.filter((one) => one instanceof PackedLinear);
  return {
    parameters,
    idle: 0,
    root: parameters - inBlocks,
    block,
    weights: elementsOf(model.parameters()),
    trained: {
      ...elementsOf(trained),
      root: count(trained) - trainedBlocks.reduce((sum, one) => sum + one, 0),
      block: Math.max(0, ...trainedBlocks),
      hasHead: trained.length > 0,
    },
    unpacked: Math.max(0, ...packed.map(({ shape }) => numel(shape))),
    packed: packedOf(packed),
    adapters: adaptersOf(loras),
    layers: block === 0 ? 0 : Math.ceil(inBlocks / block),
    activations: UNKNOWN,
    ...{ channels: 0, attentionWidth: 0, vocabulary: 0, paddedVocabulary: 0, maxSeq: 0 },
  };
}

function elementsOf(parameters: readonly Parameter[]): Elements {
  const found: Elements = { count: 0, own: { count: 0, bytes: 0 } };
  for (const { numel: count, fixedDtype } of parameters) {
    found.count += count;
    if (fixedDtype === null) continue;
    found.own.count += count;
    found.own.bytes += count * dtypeSize(fixedDtype);
  }
  return found;
}

function packedOf(layers: readonly PackedLinear[]): Packed {
  const sum = (list: readonly number[]): number => list.reduce((all, one) => all + one, 0);
  const held = layers.flatMap((one) => one.parameters().filter((part) => part !== one.bias));
  return {
    count: sum(layers.map(({ shape }) => numel(shape))),
    elements: sum(held.map((one) => one.numel)),
    bytes: sum(held.map((one) => one.numel * dtypeSize(one.fixedDtype ?? one.dtype))),
  };
}

function adaptersOf(layers: readonly LoraLayer[]): Adapters {
  const linears = layers.filter((one) => one instanceof LoraLinear);
  const wide = linears.filter(({ sizes }) => sizes.isWide);
  const sized = linears.filter((one) => one instanceof DoraLinear);
  const sidesOf = ({ lora_A, lora_B }: LoraLinear): [number, number] => [
    lora_A.weight.size(1),
    lora_B.weight.size(0),
  ];
  return {
    perToken: 2 * Math.max(0, ...wide.flatMap(sidesOf)),
    lengths: 2 * Math.max(0, ...sized.map((one) => numel(sidesOf(one)))),
    streamed: linears.flatMap(sidesOf).reduce((sum, side) => sum + side, 0),
  };
}

/** Throws DS_ARGUMENT for samples of more tokens than the model takes. */
export function requireLength(op: string, seq: number, { maxSeq }: ModelSizes): void {
  if (seq <= maxSeq) return;
  const expected = `at most the model's ${maxSeq}`;
  throw new DsError({ code: 'DS_ARGUMENT', op: `${op} seq`, expected, got: `${seq}` });
}
