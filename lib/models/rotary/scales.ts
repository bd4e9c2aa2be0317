// Scales and bounds of a family's values: options, keys of config.json, and factors.
import type { JsonObject } from '../../../types/json.js';
import { type namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite } from '../../runtime/require-number.js';
import { entriesOf } from '../../runtime/typed-keys.js';
import type { ModelConfig } from '../model-config.js';
import type { RopeScaling } from './rope-scaling.js';
import type { RotaryTraits, ScaleName, ScaleTraits } from './traits.js';

/**
 * Values of a family's keys, by this library's names. Granite: embedding_multiplier is `embed`,
 * residual_multiplier `residual`, attention_multiplier `scores`, logits_scaling `logits`. Gemma:
 * query_pre_attn_scalar is `scores`, attn_logit_softcapping `scoreCap`, final_logit_softcapping
 * `logitCap`. Cohere: logit_scale is `logits`. Falcon-H1: lm_head_multiplier is `logits`,
 * key_multiplier `scores`. MPT and OLMo: clip_qkv is `clip`. null: none.
 */
export interface Scales {
  /** Factor of the products of queries and keys. */
  scores?: number | null;
  /** Factor of the embedding. */
  embed?: number | null;
  /** Factor of each branch before it joins the residual stream. */
  residual?: number | null;
  /** Factor of the logits. */
  logits?: number | null;
  /** Bound of the scores. */
  scoreCap?: number | null;
  /** Bound of the logits. */
  logitCap?: number | null;
  /** Bound of queries, keys and values. */
  clip?: number | null;
}

/** Factors of a model; 1 changes nothing. */
export interface ScaleFactors {
  scores: number;
  embed: number;
  residual: number;
  logits: number;
  /** null: unbounded. */
  scoreCap: number | null;
  /** null: unbounded. */
  logitCap: number | null;
  /** null: unbounded. */
  clip: number | null;
}

/** Returns the family's scales that have a key. */
function listKeyedScales({ scales = {} }: RotaryTraits): [ScaleName, ScaleTraits][] {
  return entriesOf(scales).filter(
    (entry): entry is [ScaleName, ScaleTraits] => typeof entry[1] === 'object',
  );
}

/** Returns the complete `scales`. Throws DS_ARGUMENT for a scale that the family lacks. */
export function readScales(traits: RotaryTraits, scales: Scales | undefined): Scales {
  const supported = listKeyedScales(traits);
  const names = Object.fromEntries(supported.map(([name]) => [name, true as const]));
  const read = readOptions(`${traits.name} scales`, scales, names as typeof namesOf.Scales);
  const entries = supported.map(([name, { fallback }]) => {
    const value = read[name] === undefined ? fallback : read[name];
    const op = `${traits.name} scales.${name}`;
    return [name, value === null ? null : requireFinite(op, value, Number.MIN_VALUE)];
  });
  return Object.fromEntries(entries);
}

/** Reads the scales of a config.json. Throws DS_CHECKPOINT unless they are positive. */
export function parseScales(traits: RotaryTraits, config: ModelConfig): { scales?: Scales } {
  const supported = listKeyedScales(traits);
  if (!traits.scales) return {};
  const entries = supported.map(([name, { key, fallback }]) => {
    const isNone = config.has(key) ? config.get(key) === null : fallback === null;
    return [name, isNone ? null : config.positive(key, fallback)];
  });
  return { scales: Object.fromEntries(entries) };
}

/** Returns the keys of a config.json. */
export function describeScales(traits: RotaryTraits, scales: Scales = {}): JsonObject {
  return Object.fromEntries(
    listKeyedScales(traits).map(([name, { key }]) => [key, scales[name] ?? null]),
  );
}

interface ScaledSizes {
  scales?: Scales;
  headDim: number;
  channels: number;
  layers: number;
  ropeScaling?: RopeScaling | null;
}

/** Returns the factor of scores under YaRN with mscale_all_dim. Source: DeepSeek-V2. */
function yarnStretch(scaling: RopeScaling | null): number {
  if (scaling?.type !== 'yarn' || !scaling.mscaleAllDim || scaling.factor <= 1) return 1;
  return (0.1 * scaling.mscaleAllDim * Math.log(scaling.factor) + 1) ** 2;
}

/** Returns the factors of a model with these sizes. */
export function computeFactors(
  traits: RotaryTraits,
  { scales = {}, headDim, channels, layers, ropeScaling }: ScaledSizes,
): ScaleFactors {
  const { scales: declared = {}, latent = false } = traits;
  const stretch = latent ? yarnStretch(ropeScaling ?? null) : 1;
  const factor = (name: ScaleName, none: number): number => {
    const how = declared[name];
    if (how === 'rootChannels') return Math.sqrt(channels);
    if (typeof how === 'number') return how;
    const value = scales[name] ?? null;
    if (!how || value === null) return none;
    const per = {
      rootLayers: Math.sqrt(layers),
      rootHead: Math.sqrt(headDim),
      channels,
      none: 1,
    };
    return value ** (how.power ?? 1) / per[how.per ?? 'none'];
  };
  return {
    scores: factor('scores', 1 / Math.sqrt(headDim)) * stretch,
    embed: factor('embed', 1),
    residual: factor('residual', 1),
    logits: factor('logits', 1),
    scoreCap: scales.scoreCap ?? null,
    logitCap: scales.logitCap ?? null,
    clip: scales.clip ?? null,
  };
}
