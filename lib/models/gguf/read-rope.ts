// Converts the rotary positions in the metadata of a GGUF file to entries of config.json.

import type { JsonObject } from '../../../types/json.js';
import type { GgufTensor } from '../../checkpoint/index.js';
import { formatValue } from '../../runtime/format-value.js';
import { required } from '../../runtime/required.js';
import { rotaryRule } from '../rotary/rope-scaling.js';
import type { GgufArchitecture } from './architecture.js';
import type { GgufKeys } from './keys.js';

/** No model has wider heads; tables of angles have a number for each pair of channels. */
const MAX_HEAD = 2 ** 16;

/**
 * Returns the entries of config.json for rotary positions. Throws DS_CHECKPOINT for positions that
 * the family does not support.
 */
export function readRope(
  { name, hasRopeSection, lacksRope, isLatent, hasKinds, windowRope }: GgufArchitecture,
  keys: GgufKeys,
  headDim: number,
  tensors: readonly GgufTensor[],
): JsonObject {
  if (lacksRope) return {};
  if (hasKinds) return readProportionalRope(keys, tensors);
  const theta = keys.number('rope.freq_base', 10_000);
  const dim = keys.number('rope.dimension_count', headDim);
  if (!Number.isInteger(dim / 2) || dim < 2 || dim > headDim || headDim > MAX_HEAD) {
    const expected = `an even number up to the ${headDim} channels of a head, at most ${MAX_HEAD}`;
    throw keys.keyError('rope.dimension_count', expected, dim);
  }
  const partial: JsonObject = { partial_rotary_factor: dim / headDim };
  const scaling = readScaling(keys, { theta, dim, isLatent }, tensors);
  if (hasRopeSection) {
    const type = scaling ?? { rope_type: 'default' };
    return { rope_parameters: { ...type, rope_theta: theta, ...partial } };
  }
  if (isLatent) return { rope_theta: theta, rope_scaling: scaling };
  if (windowRope === 'unscaled') {
    const full = { ...(scaling ?? { rope_type: 'default' }), rope_theta: theta };
    const sliding = { rope_type: 'default', rope_theta: theta };
    return { rope_parameters: { full_attention: full, sliding_attention: sliding } };
  }
  if (name !== 'gemma3') return { rope_theta: theta, ...partial, rope_scaling: scaling };
  const full = { ...(scaling ?? { rope_type: 'default' }), rope_theta: theta };
  const local = keys.number('rope.freq_base_swa', 10_000);
  return {
    rope_parameters: {
      full_attention: full,
      sliding_attention: { rope_type: 'default', rope_theta: local },
    },
    rope_local_base_freq: local,
  };
}

/** Frequencies of channels that do not rotate are divided by this. */
const FIXED_DIVISOR = 1e30;

/** Returns the entries if layers without a window rotate only their first channels. */
function readProportionalRope(keys: GgufKeys, tensors: readonly GgufTensor[]): JsonObject {
  const tensor = tensors.find(({ name }) => name === 'rope_freqs.weight');
  const divisors = tensor ? keys.read(tensor) : [1];
  if (
    divisors.length > MAX_HEAD ||
    divisors.some((divisor) => divisor !== 1 && !(divisor > FIXED_DIVISOR / 2))
  ) {
    throw keys.keyError('rope_freqs.weight', `1 or ${FIXED_DIVISOR}`, formatValue(divisors));
  }
  const share = divisors.filter((divisor) => divisor === 1).length / divisors.length;
  const full = {
    rope_type: 'proportional',
    partial_rotary_factor: share,
    rope_theta: keys.number('rope.freq_base', 1e6),
  };
  const local = keys.number('rope.freq_base_swa', 10_000);
  return {
    rope_parameters: {
      full_attention: full,
      sliding_attention: { rope_type: 'default', rope_theta: local },
    },
  };
}

function readScaling(
  keys: GgufKeys,
  { theta, dim, isLatent = false }: { theta: number; dim: number; isLatent?: boolean | undefined },
  tensors: readonly GgufTensor[],
): JsonObject | null {
  const type = keys.get('rope.scaling.type') ?? 'none';
  const factor = keys.number('rope.scaling.factor', 1);
  const original = keys.number('rope.scaling.original_context_length', 0);
  const values = (name: string): readonly number[] | null => {
    const tensor = tensors.find((tensor) => tensor.name === name);
    return tensor ? keys.read(tensor) : null;
  };
  const [long, short] = ['rope_factors_long.weight', 'rope_factors_short.weight'].map(values);
  if (long && short) {
    return {
      rope_type: 'longrope',
      long_factor: [...long],
      short_factor: [...short],
      original_max_position_embeddings: original || keys.size('context_length'),
      ...(keys.get('rope.scaling.attn_factor') !== null && {
        attention_factor: keys.positive('rope.scaling.attn_factor'),
      }),
    };
  }
  const divisors = values('rope_freqs.weight');
  if (divisors) return findLlama3Scaling(keys, { theta, dim }, divisors);
  if (type === 'none' || (type === 'linear' && factor === 1)) return null;
  if (type === 'linear') return { rope_type: 'linear', factor };
  if (type === 'yarn') return readYarn(keys, { factor, original, isLatent });
  throw keys.keyError('rope.scaling.type', 'none, linear or yarn', type);
}

function readYarn(
  keys: GgufKeys,
  { factor, original, isLatent }: { factor: number; original: number; isLatent: boolean },
): JsonObject {
  const readOptional = (key: string, name: string): JsonObject =>
    keys.get(name) === null ? {} : { [key]: keys.positive(name) };
  // Files with latent attention have a tenth of mscale_all_dim. It equals mscale.
  const log = keys.number('rope.scaling.yarn_log_multiplier', 0) * (isLatent ? 10 : 1);
  const beta = keys.number('attention.temperature_scale', 0);
  return {
    rope_type: 'yarn',
    factor,
    original_max_position_embeddings: original,
    ...readOptional('beta_fast', 'rope.scaling.yarn_beta_fast'),
    ...readOptional('beta_slow', 'rope.scaling.yarn_beta_slow'),
    ...(log > 0 && { mscale: shortenF32(log), mscale_all_dim: shortenF32(log) }),
    ...(beta > 0 && { llama_4_scaling_beta: shortenF32(beta) }),
  };
}

/** Returns the shortest decimal number with the same f32 value, or nearly so. */
export const shortenF32 = (value: number): number => Number(value.toPrecision(6));

/**
 * Returns the Llama 3 scaling with these divisors of frequencies. Files lack its four parameters,
 * so the usual ones are tried.
 */
function findLlama3Scaling(
  keys: GgufKeys,
  { theta, dim }: { theta: number; dim: number },
  divisors: readonly number[],
): JsonObject {
  const factor = Math.max(...divisors);
  const sizes = { rotaryDim: dim, ropeTheta: theta };
  const plain = rotaryRule(sizes, null, 1).frequencies;
  for (let log = 13, step = 0; step < 32; ++step, log = 13 + (step & 1 ? -1 : 1) * (step >> 1)) {
    const originalMaxSeq = 2 ** Math.max(log, 1);
    const numbers = { factor, lowFreqFactor: 1, highFreqFactor: 4, originalMaxSeq };
    const frequencies = rotaryRule(sizes, { type: 'llama3', ...numbers }, 1).frequencies;
    const isSame = frequencies.every((frequency, i) => {
      const divisor = required(plain[i]) / frequency;
      return Math.abs(divisor - (divisors[i] ?? 0)) < 1e-4 * divisor;
    });
    if (!isSame) continue;
    return {
      rope_type: 'llama3',
      factor,
      low_freq_factor: 1,
      high_freq_factor: 4,
      original_max_position_embeddings: originalMaxSeq,
    };
  }
  throw keys.keyError('rope_freqs.weight', 'the divisors of Llama 3', formatValue(divisors));
}
