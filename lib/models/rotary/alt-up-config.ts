// Options of models whose stream has several versions of each token's vector. Source: Gemma 3n.
import type { JsonObject } from '../../../types/json.js';
import { valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import type { ModelConfig } from '../model-config.js';

/** Versions of the stream, low-rank residuals, and sparse gates. */
export interface AltUpConfig {
  /** Versions of each token's vector (altup_num_inputs), at least 2. */
  inputs: number;
  /** Rank of the residuals (laurel_rank). */
  laurelRank: number;
  /**
   * Bound of the weights of coefficients in training (altup_coef_clip); null: none. Default: null.
   */
  coefClip?: number | null;
  /**
   * Whether the first version is scaled before a block adds its further embedding
   * (altup_correct_scale). Default: true.
   */
  scaled?: boolean;
  /**
   * The share of gates that are 0 in each layer (activation_sparsity_pattern), for gates with a
   * normal distribution; in [0, 1). Default: 0 in all layers.
   */
  sparsity?: readonly number[];
  /**
   * Tokens with a further embedding (vocab_size_per_layer_input); later tokens have that of token
   * 0. Default: the vocabulary.
   */
  layerVocab?: number;
}

/** A complete AltUpConfig. */
export type AltUpSizes = Required<AltUpConfig>;

/** Returns the complete options. Throws DS_ARGUMENT. */
export function readAltUp(
  name: string,
  given: AltUpConfig | undefined,
  sizes: { layers: number; vocabSize: number; layerInputDim?: number | null },
): AltUpSizes {
  const { layers, vocabSize, layerInputDim = null } = sizes;
  const op = `${name} altUp`;
  requireInteger(`${name} layerInputDim`, layerInputDim ?? 0, 1);
  const expected = 'an object with inputs and laurelRank';
  if (given === undefined) throw valueError(op, expected, given);
  const read = readOptions(op, given, namesOf.AltUpConfig);
  const { inputs, laurelRank, coefClip = null, scaled = true, layerVocab = vocabSize } = read;
  const { sparsity = Array.from({ length: layers }, () => 0) } = read;
  requireInteger(`${op} inputs`, inputs, 2);
  requireInteger(`${op} laurelRank`, laurelRank, 1);
  requireInteger(`${op} layerVocab`, layerVocab, 1);
  requireType(`${op} scaled`, scaled, 'boolean');
  if (coefClip !== null) requireFinite(`${op} coefClip`, coefClip, Number.MIN_VALUE);
  if (!isPattern(sparsity, layers)) {
    throw valueError(`${op} sparsity`, `a share in [0, 1) for each of ${layers} layers`, sparsity);
  }
  return { inputs, laurelRank, coefClip, scaled, layerVocab, sparsity: [...sparsity] };
}

const isPattern = (list: unknown, layers: number): list is readonly number[] =>
  Array.isArray(list) &&
  list.length === layers &&
  list.every((share) => typeof share === 'number' && share >= 0 && share < 1);

/** transformers' default pattern: 0.95 in the first ten of more than ten layers. */
const defaultPattern = (layers: number): number[] =>
  Array.from({ length: layers }, (_, layer) => (layers > 10 && layer < 10 ? 0.95 : 0));

/** Reads these options of a config.json. Throws DS_CHECKPOINT for invalid values. */
export function parseAltUp(config: ModelConfig, layers: number): AltUpSizes {
  const inputs = config.size('altup_num_inputs', 4);
  if (inputs < 2) throw config.refusalError('altup_num_inputs', 'at least 2', inputs);
  config.requireOneOf('altup_active_idx', [0]);
  const sparsity = config.get('activation_sparsity_pattern') ?? defaultPattern(layers);
  if (!isPattern(sparsity, layers)) {
    const expected = `a share in [0, 1) for each of ${layers} layers`;
    throw config.refusalError('activation_sparsity_pattern', expected, sparsity);
  }
  const isUnclipped = config.has('altup_coef_clip') && config.get('altup_coef_clip') === null;
  return {
    inputs,
    laurelRank: config.size('laurel_rank', 64),
    coefClip: isUnclipped ? null : config.positive('altup_coef_clip', 120),
    scaled: config.flag('altup_correct_scale', true),
    sparsity,
    layerVocab: config.size('vocab_size_per_layer_input', 262_144),
  };
}

/** Returns the keys of a config.json. */
export const describeAltUp = (sizes: AltUpSizes): JsonObject => ({
  altup_num_inputs: sizes.inputs,
  altup_active_idx: 0,
  altup_coef_clip: sizes.coefClip,
  altup_correct_scale: sizes.scaled,
  laurel_rank: sizes.laurelRank,
  activation_sparsity_pattern: [...sizes.sparsity],
  vocab_size_per_layer_input: sizes.layerVocab,
});
