// Counts the sizes of a model for a plan: parameters, units of transfer, and activations.
import { DsError } from '../errors.js';
import type { BlockActivations } from '../models/activation-shape.js';
import type { CausalLM } from '../models/index.js';
import type { Module } from '../nn/module.js';
import { PackedLinear } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import { DoraLinear, type LoraLayer, LoraLinear, lorasOf, NF4Matrices } from '../peft/index.js';
import { dtypeSize } from '../runtime/dtype.js';
import { numel } from '../runtime/view.js';
import { splitsRank } from '../tensor/ops/wide-linear.js';
import type { Setup } from './setup.js';

/** An element count, and the elements and bytes with a fixed dtype. */
export interface Elements {
  count: number;
  /** Elements with a fixed dtype instead of the engine's. */
  inFixedDtype: { count: number; bytes: number };
}

/** Temporary f32 values of adapters; one layer has them at a time. */
interface AdapterSizes {
  /** Elements per token of the widest layer: its f32 values and their gradient. */
  perToken: number;
  /**
   * `perToken` of a model in bf16, where most layers split their f32 factors instead of converting
   * x.
   */
  perTokenInBf16: number;
  /** Twice the elements of the largest weight with DoRA magnitudes. */
  lengths: number;
  /**
   * Input and output widths of all layers with an adapter: the elements that adapters read and
   * write per token.
   */
  streamed: number;
}

/** Packed (quantized) weights. */
interface PackedSizes {
  /** Logical weights of all blocks. */
  count: number;
  /** Stored elements, and their bytes. */
  elements: number;
  bytes: number;
}

/** Sizes of a model in elements. Counting allocates no memory. */
export interface ModelSizes {
  /** All parameters, each counted once. */
  parameters: number;
  /** Parameters of the experts that one token does not use. */
  idle: number;
  /** Parameters of the embeddings and the head. */
  root: number;
  /** Parameters of the largest block. */
  block: number;
  /** All weights in their storage format. */
  weights: Elements;
  /** Parameters with gradients and optimizer state. With adapters, these are only the adapters. */
  trained: Elements & {
    /** Trained parameters outside the blocks, and in the largest block. */
    root: number;
    block: number;
    /** Whether the head is trained. */
    hasHead: boolean;
  };
  /**
   * Elements of the largest packed weight, which its product dequantizes; 0 without packed weights.
   */
  unpacked: number;
  /** All packed weights. */
  packed: PackedSizes;
  /** Additional memory of layers with adapters. */
  adapters: AdapterSizes;
  /** Number of blocks. */
  layers: number;
  /** Saved activations of one block per token. */
  activations: BlockActivations;
  /** Width of the residual stream. */
  channels: number;
  /** Total width of all query heads; the mean of blocks if some have a recurrence instead. */
  attentionWidth: number;
  /** Width of one query head. */
  headDim: number;
  /** Vocabulary size, and the columns of the logits: a multiple of 64. */
  vocabulary: number;
  paddedVocabulary: number;
  /** Longest sequence in tokens. */
  maxSeq: number;
}

const HEAD_ALIGNMENT = 64;

/** Activations of unknown blocks. */
const UNKNOWN: BlockActivations = {
  kept: 0,
  statistics: 0,
  backward: 0,
  replayed: 0,
  stream: 0,
  selective: null,
};

/** Returns the sizes of `model` without materializing its parameters. */
export function sizesOf(model: CausalLM): ModelSizes {
  const { channels, heads, headDim = channels / heads } = model.config;
  const { lm_head, vocabSize: vocabulary, maxSeq } = model;
  const counts = countSizes(model);
  const recurrent = model.recurrentSizes?.besideAttention ? null : model.recurrentSizes;
  const recurrences = recurrent?.layers.filter((has) => has).length ?? 0;
  const hasHead = !(lm_head instanceof PackedLinear) && lm_head.weight.requiresGrad;
  return {
    ...counts,
    idle: model.idleParameters(),
    trained: { ...counts.trained, hasHead },
    layers: model.config.layers,
    activations: model.blockActivations(),
    channels,
    attentionWidth: heads * headDim * (1 - recurrences / model.config.layers),
    headDim,
    vocabulary,
    paddedVocabulary: Math.ceil(vocabulary / HEAD_ALIGNMENT) * HEAD_ALIGNMENT,
    maxSeq,
  };
}

const isTrainable = ({ requiresGrad }: Parameter): boolean => requiresGrad;

/**
 * Returns the sizes of any module: only parameters are counted. Activations and attention sizes are
 * 0. `layers` is the parameter count of all blocks divided by the largest block, rounded up.
 * `isTrained` selects the parameters with gradients and state.
 */
export function countSizes(
  model: Module,
  isTrained: (parameter: Parameter) => boolean = isTrainable,
): ModelSizes {
  const count = (parameters: Iterable<{ numel: number }>): number =>
    [...parameters].reduce((sum, { numel }) => sum + numel, 0);
  const blocks = model.units().map(({ module }) => count(module.parameters()));
  const inBlocks = blocks.reduce((sum, block) => sum + block, 0);
  const block = Math.max(0, ...blocks);
  const parameters = count(model.parameters());
  const trained = model.parameters().filter(isTrained);
  const trainedBlocks = model
    .units()
    .map(({ module }) => count(module.parameters().filter(isTrained)));
  const loras = [...lorasOf(model).values()];
  // The base of an adapter layer is not a child module, so modules() omits it.
  const layers = [...model.modules(), ...loras.map(({ base }) => base)];
  const packed = layers.filter(
    (layer) => layer instanceof PackedLinear || layer instanceof NF4Matrices,
  );
  return {
    parameters,
    idle: 0,
    root: parameters - inBlocks,
    block,
    weights: countElements(model.parameters()),
    trained: {
      ...countElements(trained),
      root: count(trained) - trainedBlocks.reduce((sum, block) => sum + block, 0),
      block: Math.max(0, ...trainedBlocks),
      hasHead: trained.length > 0,
    },
    unpacked: Math.max(0, ...packed.map(({ shape }) => numel(shape))),
    packed: countPacked(packed),
    adapters: countAdapters(loras),
    layers: block === 0 ? 0 : Math.ceil(inBlocks / block),
    activations: UNKNOWN,
    channels: 0,
    attentionWidth: 0,
    headDim: 0,
    vocabulary: 0,
    paddedVocabulary: 0,
    maxSeq: 0,
  };
}

function countElements(parameters: readonly Parameter[]): Elements {
  const elements: Elements = { count: 0, inFixedDtype: { count: 0, bytes: 0 } };
  for (const { numel: count, fixedDtype } of parameters) {
    elements.count += count;
    if (fixedDtype === null) continue;
    elements.inFixedDtype.count += count;
    elements.inFixedDtype.bytes += count * dtypeSize(fixedDtype);
  }
  return elements;
}

function countPacked(layers: readonly (PackedLinear | NF4Matrices)[]): PackedSizes {
  const sum = (list: readonly number[]): number => list.reduce((all, value) => all + value, 0);
  const tensors = layers.flatMap((layer) =>
    layer.parameters().filter((part) => !('bias' in layer && part === layer.bias)),
  );
  return {
    count: sum(layers.map(({ shape }) => numel(shape))),
    elements: sum(tensors.map((parameter) => parameter.numel)),
    bytes: sum(
      tensors.map(
        (parameter) => parameter.numel * dtypeSize(parameter.fixedDtype ?? parameter.dtype),
      ),
    ),
  };
}

/** Returns the elements per token that adapters convert to f32 for a product. */
export const castPerToken = (
  { perToken, perTokenInBf16 }: AdapterSizes,
  { precision }: Pick<Setup, 'precision'>,
): number => (precision === 'bf16' ? perTokenInBf16 : perToken);

function countAdapters(layers: readonly LoraLayer[]): AdapterSizes {
  const linears = layers.filter((layer) => layer instanceof LoraLinear);
  const wideLinears = linears.filter(({ sizes }) => sizes.isWide);
  const doraLinears = linears.filter((linear) => linear instanceof DoraLinear);
  const castLinears = wideLinears.filter(
    (linear) => linear instanceof DoraLinear || !splitsRank(linear.lora_A.weight.size(0)),
  );
  const sidesOf = ({ lora_A, lora_B }: LoraLinear): [number, number] => [
    lora_A.weight.size(1),
    lora_B.weight.size(0),
  ];
  return {
    perToken: 2 * Math.max(0, ...wideLinears.flatMap(sidesOf)),
    perTokenInBf16: 2 * Math.max(0, ...castLinears.flatMap(sidesOf)),
    lengths: 2 * Math.max(0, ...doraLinears.map((linear) => numel(sidesOf(linear)))),
    streamed: linears.flatMap(sidesOf).reduce((sum, side) => sum + side, 0),
  };
}

/** Throws DS_ARGUMENT if `seq` exceeds the model's longest sequence. */
export function requireLength(op: string, seq: number, { maxSeq }: ModelSizes): void {
  if (seq <= maxSeq) return;
  const expected = `at most the model's ${maxSeq}`;
  throw new DsError({ code: 'DS_ARGUMENT', op: `${op} seq`, expected, got: `${seq}` });
}
