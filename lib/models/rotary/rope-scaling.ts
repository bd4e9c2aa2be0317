// Rotary frequencies of sequences longer than the original training length: one rule per rope type
// of transformers.

import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import { valueError } from '../../runtime/input-errors.js';
import { readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { keysOf } from '../../runtime/typed-keys.js';

/** Every frequency divided by `factor`. Source: Chen et al. 2023. */
export interface LinearScaling {
  /** Kind of the scaling. */
  type: 'linear';
  /** Factor of the length: 1 or more. */
  factor: number;
}

/**
 * From `originalMaxSeq` tokens on, a base that grows with the length of the sequence. Source:
 * bloc97 and emozilla 2023; transformers' "dynamic".
 */
export interface DynamicScaling {
  /** Kind of the scaling. */
  type: 'dynamic';
  /** Factor of the length: 1 or more. */
  factor: number;
  /** The longest sequence with unscaled frequencies. */
  originalMaxSeq: number;
}

/**
 * Keeps high frequencies, divides low ones by `factor`, with a ramp between; scales cosines and
 * sines. Source: Peng et al. 2023.
 */
export interface YarnScaling {
  /** Kind of the scaling. */
  type: 'yarn';
  /** Factor of the length: 1 or more. */
  factor: number;
  /** The longest sequence of the original training. */
  originalMaxSeq: number;
  /** Factor of cosines and sines. Default: from factor, mscale and mscaleAllDim. */
  attentionFactor?: number;
  /** Frequencies with at least this many turns in originalMaxSeq stay unchanged. Default: 32. */
  betaFast?: number;
  /** Frequencies with fewer turns are divided. Default: 1. */
  betaSlow?: number;
  /** Weight of the factor's logarithm in attentionFactor, if mscaleAllDim is given too. */
  mscale?: number;
  /** Coefficient of the divisor, as mscale is of the factor. */
  mscaleAllDim?: number;
  /** Whether the ramp begins and ends at whole channels. Default: true. */
  truncate?: boolean;
  /**
   * Queries at position p are multiplied by 1 + queryBeta ln(1 + floor(p / originalMaxSeq)), in
   * families with this rule.
   */
  queryBeta?: number;
}

/**
 * A factor for each frequency: from one list up to `originalMaxSeq` tokens, from another above.
 * Source: Ding et al. 2024.
 */
export interface LongRopeScaling {
  /** Kind of the scaling. */
  type: 'longrope';
  /** maxSeq / originalMaxSeq, as a rule. */
  factor: number;
  /** The longest sequence of the original training. */
  originalMaxSeq: number;
  /**
   * A divisor for each pair of rotated channels, usually headDim / 2, for sequences of up to
   * originalMaxSeq tokens.
   */
  shortFactor: readonly number[];
  /** The same number of factors for longer texts. */
  longFactor: readonly number[];
  /** Factor of cosines and sines. Default: from factor and originalMaxSeq. */
  attentionFactor?: number;
}

/** Divides low frequencies by `factor`, keeps high ones, and blends between. Source: Llama 3.1. */
export interface Llama3Scaling {
  /** Kind of the scaling. */
  type: 'llama3';
  /** Factor of the length: 1 or more. */
  factor: number;
  /** Frequencies with fewer turns in originalMaxSeq are divided. */
  lowFreqFactor: number;
  /** Turns above which it is kept: lowFreqFactor or more. */
  highFreqFactor: number;
  /** The longest sequence of the original training. */
  originalMaxSeq: number;
}

/** Only the first pairs of channels turn; the others have the frequency 0. Source: Gemma 4. */
export interface ProportionalScaling {
  /** Kind of the scaling. */
  type: 'proportional';
  /** The share of the pairs that turn (partial_rotary_factor), in (0, 1]. */
  share: number;
}

/** A change of frequencies for sequences longer than the original training length. */
export type RopeScaling =
  | LinearScaling
  | DynamicScaling
  | YarnScaling
  | LongRopeScaling
  | Llama3Scaling
  | ProportionalScaling;

/** Sizes that determine the angles. */
export interface AngleSizes {
  /** Channels of a head that are turned. */
  rotaryDim: number;
  ropeTheta: number;
  /** Whether channels turn in the other direction. Default: false. */
  backward?: boolean;
}

/** The names of the numbers of all scalings, except the type. */
type AnyKey<S> = S extends unknown ? Exclude<keyof S, 'type'> : never;
export type ScalingKey = AnyKey<RopeScaling>;

/** How one rope type is read, checked and written. */
interface RopeRule<S> {
  /** Required and optional numbers. */
  needs: readonly Exclude<keyof S, 'type'>[];
  may?: readonly Exclude<keyof S, 'type'>[];
  /** Radians per position of each pair of channels, for a sequence of `length` tokens. */
  frequencies(plain: readonly number[], scaling: S, length: number, sizes: AngleSizes): number[];
  /** Factor of cosines and sines. Default: 1. */
  magnitude?(scaling: S): number;
  /** Lengths with the same name have the same angles. Default: all lengths. */
  regime?(scaling: S, length: number): string;
  /** Whether a sequence is recomputed when its angles change, as in transformers. */
  rereads?: true;
}

type Rules = { readonly [T in RopeScaling['type']]: RopeRule<Extract<RopeScaling, { type: T }>> };

const RULES: Rules = {
  linear: {
    needs: ['factor'],
    frequencies: (plain, { factor }) => plain.map((frequency) => frequency / factor),
  },
  dynamic: {
    needs: ['factor', 'originalMaxSeq'],
    frequencies(_plain, { factor, originalMaxSeq }, length, { rotaryDim, ropeTheta }) {
      const seq = Math.max(length, originalMaxSeq);
      const growth = (factor * seq) / originalMaxSeq - (factor - 1);
      return plainFrequencies({
        rotaryDim,
        ropeTheta: ropeTheta * growth ** (rotaryDim / (rotaryDim - 2)),
      });
    },
    regime: ({ originalMaxSeq }, length) => String(Math.max(length, originalMaxSeq)),
  },
  yarn: {
    needs: ['factor', 'originalMaxSeq'],
    may: [
      'attentionFactor',
      'betaFast',
      'betaSlow',
      'mscale',
      'mscaleAllDim',
      'truncate',
      'queryBeta',
    ] as (keyof YarnScaling & ScalingKey)[],
    frequencies: yarnFrequencies,
    magnitude({ factor, attentionFactor, mscale, mscaleAllDim }) {
      const scale = (weight: number): number =>
        factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1;
      const isWeighted = mscale && mscaleAllDim;
      return attentionFactor ?? (isWeighted ? scale(mscale) / scale(mscaleAllDim) : scale(1));
    },
  },
  longrope: {
    needs: ['factor', 'originalMaxSeq', 'shortFactor', 'longFactor'],
    may: ['attentionFactor'],
    frequencies(plain, { originalMaxSeq, shortFactor, longFactor }, length) {
      const divisors = length > originalMaxSeq ? longFactor : shortFactor;
      return plain.map((frequency, i) => frequency / required(divisors[i]));
    },
    magnitude: ({ factor, originalMaxSeq, attentionFactor }) =>
      attentionFactor ??
      (factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(originalMaxSeq))),
    regime: ({ originalMaxSeq }, length) => (length > originalMaxSeq ? 'long' : 'short'),
    rereads: true,
  },
  llama3: {
    needs: ['factor', 'lowFreqFactor', 'highFreqFactor', 'originalMaxSeq'],
    frequencies: (plain, scaling) => plain.map((frequency) => llama3Frequency(frequency, scaling)),
  },
  proportional: {
    needs: ['share'],
    frequencies(plain, { share }) {
      const turning = Math.floor(share * plain.length);
      return plain.map((frequency, i) => (i < turning ? frequency : 0));
    },
  },
};

/** The rope types of most families, except the plain one. */
export const ROPE_TYPES = keysOf(RULES).filter((type) => type !== 'proportional');

/** Returns the rule of a scaling; the compiler cannot infer that it has this type. */
const getRule = (scaling: RopeScaling): RopeRule<RopeScaling> =>
  RULES[scaling.type] as unknown as RopeRule<RopeScaling>;

/** The names of a type's numbers. */
export function scalingKeys(type: RopeScaling['type']): {
  needs: readonly ScalingKey[];
  may: readonly ScalingKey[];
} {
  const { needs, may = [] } = RULES[type];
  return { needs: needs as readonly ScalingKey[], may: may as readonly ScalingKey[] };
}

/**
 * Returns radians per position of each pair of channels, [rotaryDim / 2]. Source: Su et al. 2021.
 */
function plainFrequencies({ rotaryDim, ropeTheta }: AngleSizes): number[] {
  return Array.from({ length: rotaryDim / 2 }, (_, i) => ropeTheta ** ((-2 * i) / rotaryDim));
}

/**
 * Angles of a sequence of `length` tokens: radians per position, and a factor of cosines and sines.
 */
interface RotaryRule {
  frequencies: number[];
  magnitude: number;
}

/** Returns the rule of `scaling`, or the plain rule. */
export function rotaryRule(
  sizes: AngleSizes,
  scaling: RopeScaling | null,
  length: number,
): RotaryRule {
  const plain = plainFrequencies(sizes);
  if (!scaling) return { frequencies: plain, magnitude: 1 };
  const rule = getRule(scaling);
  const frequencies = rule.frequencies(plain, scaling, length, sizes);
  return { frequencies, magnitude: rule.magnitude?.(scaling) ?? 1 };
}

/** Returns the factor of a query at `position`, for scalings with one; null without. */
export function queryFactor(scaling: RopeScaling | null): ((position: number) => number) | null {
  if (scaling?.type !== 'yarn' || scaling.queryBeta === undefined) return null;
  const { queryBeta, originalMaxSeq } = scaling;
  return (position) => 1 + queryBeta * Math.log(1 + Math.floor(position / originalMaxSeq));
}

/** A name that is equal for sequence lengths with equal angles. */
export function angleRegime(scaling: RopeScaling | null, length: number): string {
  return (scaling && getRule(scaling).regime?.(scaling, length)) ?? '';
}

/** Returns whether a cache of a sequence of `from` tokens becomes invalid at `to` tokens. */
export function changesAngles(scaling: RopeScaling | null, from: number, to: number): boolean {
  const isOther = angleRegime(scaling, from) !== angleRegime(scaling, to);
  return isOther && scaling !== null && getRule(scaling).rereads === true;
}

function yarnFrequencies(
  plain: readonly number[],
  scaling: YarnScaling,
  _length: number,
  { rotaryDim, ropeTheta }: AngleSizes,
): number[] {
  const { factor, originalMaxSeq, betaFast = 32, betaSlow = 1, truncate = true } = scaling;
  const findPair = (turns: number): number =>
    (rotaryDim * Math.log(originalMaxSeq / (turns * 2 * Math.PI))) / (2 * Math.log(ropeTheta));
  const [first, last] = [findPair(betaFast), findPair(betaSlow)];
  const low = Math.max(truncate ? Math.floor(first) : first, 0);
  const high = Math.min(truncate ? Math.ceil(last) : last, rotaryDim - 1);
  const width = high === low ? 0.001 : high - low;
  return plain.map((frequency, i) => {
    const ramp = Math.min(Math.max((i - low) / width, 0), 1);
    return (frequency / factor) * ramp + frequency * (1 - ramp);
  });
}

function llama3Frequency(frequency: number, scaling: Llama3Scaling): number {
  const { factor, lowFreqFactor: low, highFreqFactor: high, originalMaxSeq } = scaling;
  const slow = frequency / factor;
  const turns = (originalMaxSeq * frequency) / (2 * Math.PI);
  if (turns > high) return frequency;
  if (turns < low || low === high) return slow;
  const fraction = (turns - low) / (high - low);
  return (1 - fraction) * slow + fraction * frequency;
}

/** Throws DS_ARGUMENT for a scaling that is not one of `types`, or with invalid numbers. */
export function requireScaling(
  op: string,
  scaling: RopeScaling,
  rotaryDim: number,
  types: readonly RopeScaling['type'][] = ROPE_TYPES,
): void {
  if (!types.includes(scaling.type)) {
    const expected = `type ${types.map((type) => `"${type}"`).join(', ')}`;
    const got = formatValue((scaling as { type: unknown }).type);
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got });
  }
  const { needs, may } = scalingKeys(scaling.type);
  const optionNames = Object.fromEntries(
    ['type', ...needs, ...may].map((key) => [key, true as const]),
  );
  const checked = readOptions<object>(op, scaling, optionNames) as Partial<
    Record<ScalingKey, unknown>
  >;
  for (const key of [...needs, ...may]) {
    if (checked[key] === undefined && may.includes(key)) continue;
    requireNumber(`${op}.${key}`, key, checked[key], rotaryDim);
  }
  if (scaling.type === 'dynamic' && rotaryDim === 2) {
    const expected = 'heads of four channels or more';
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: '2' });
  }
  if (scaling.type !== 'llama3') return;
  requireFinite(`${op}.highFreqFactor`, scaling.highFreqFactor, scaling.lowFreqFactor);
}

function requireNumber(op: string, key: ScalingKey, value: unknown, rotaryDim: number): void {
  if (key === 'truncate') requireType(op, value, 'boolean');
  else if (key === 'originalMaxSeq') requireInteger(op, value as number, 2);
  else if (key === 'shortFactor' || key === 'longFactor') requireDivisors(op, value, rotaryDim / 2);
  else if (key === 'share' && Number(value) > 1) throw valueError(op, 'at most 1', value);
  else requireFinite(op, value as number, key === 'factor' ? 1 : Number.MIN_VALUE);
}

function requireDivisors(op: string, value: unknown, count: number): void {
  const isList = Array.isArray(value) && value.length === count;
  if (isList && value.every((item) => Number.isFinite(item) && item > 0)) return;
  const expected = `a list of ${count} positive numbers, one for each pair of a head's channels`;
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(value) });
}
