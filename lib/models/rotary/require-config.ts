// Checks of the sizes of models with rotary positions.

import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { type RopeScaling, requireScaling } from './rope-scaling.js';
import { COMMON_ROPE, type RotaryTraits } from './traits.js';

/** Number of tokens that a layer's queries see, including their own; null: all. */
export type Window = number | null;

/** Widths of multi-head latent attention. Source: DeepSeek-V2. */
export interface LatentSizes {
  /** Of the latent of queries (q_lora_rank); null: queries have no latent. */
  queryRank: number | null;
  /** Channels of the latent of keys and values (kv_lora_rank). */
  keyRank: number;
  /** Channels of a head's queries and keys that are not rotated (qk_nope_head_dim). */
  plainDim: number;
  /** Rotated channels (qk_rope_head_dim), even. A token has one rotated key for all heads. */
  rotaryDim: number;
  /** Channels of a head's values (v_head_dim), at most the width of its keys. */
  valueDim: number;
}

/** Number of rotated channels of a head, as transformers counts them. */
export const computeRotaryDim = (headDim: number, factor = 1): number =>
  Math.floor(headDim * factor);

export function requireLatent(
  { name }: RotaryTraits,
  { latent }: { latent?: LatentSizes },
): LatentSizes {
  const op = `${name} latent`;
  if (latent === undefined) throw argumentError(op, 'the widths of latent attention', 'undefined');
  const read = readOptions(op, latent, namesOf.LatentSizes);
  for (const [key, value] of Object.entries(read)) {
    if (key !== 'queryRank' || value !== null) requireInteger(`${op} ${key}`, value, 1);
  }
  const { valueDim, plainDim, rotaryDim } = read;
  if (valueDim <= plainDim + rotaryDim) return read;
  throw valueError(`${op} valueDim`, 'at most plainDim + rotaryDim', valueDim);
}

export function requireLayers(
  name: string,
  rotates: readonly boolean[] | undefined,
  layers: number,
): readonly boolean[] {
  const list = rotates ?? Array.from({ length: layers }, () => true);
  const isFlag = (value: unknown): boolean => typeof value === 'boolean';
  if (Array.isArray(list) && list.length === layers && list.every(isFlag)) return [...list];
  throw valueError(`${name} ropeLayers`, `true or false for each of ${layers} layers`, rotates);
}

export function requireRope(
  { name, rope = COMMON_ROPE }: RotaryTraits,
  {
    partialRotaryFactor: factor = rope.partialFallback,
    ropeScaling,
  }: { partialRotaryFactor?: number; ropeScaling?: RopeScaling | null },
  headDim: number,
): void {
  if (factor !== undefined) requireFinite(`${name} partialRotaryFactor`, factor, Number.MIN_VALUE);
  const rotaryDim = computeRotaryDim(headDim, factor);
  if (rotaryDim < 2 || rotaryDim > headDim || rotaryDim % 2 !== 0) {
    const expected = `a share that makes 2 or more of ${headDim} channels rotary, an even number`;
    throw valueError(`${name} partialRotaryFactor`, expected, factor);
  }
  if (ropeScaling) requireScaling(`${name} ropeScaling`, ropeScaling, rotaryDim, rope.types);
}

export function requireWindow(
  { name, window: kind }: RotaryTraits,
  windows: Window | readonly Window[],
  layers: number,
): void {
  const op = `${name} window`;
  const isList = Array.isArray(windows);
  if (isList && (kind !== 'layers' || windows.length !== layers)) {
    const expected =
      kind === 'layers' ? `a window for each of ${layers} layers` : 'one window for all layers';
    throw valueError(op, expected, windows);
  }
  const all = (isList ? windows : [windows]) as readonly Window[];
  for (const window of all) if (window !== null) requireInteger(op, window, 1);
  const widths = new Set(all.filter((window) => window !== null));
  if (widths.size > 1) throw valueError(op, 'the same width for all layers with a window', windows);
}
