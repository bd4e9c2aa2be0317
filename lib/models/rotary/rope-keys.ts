// Rotary positions in a config.json, in both generations: rope_parameters, and rope_theta with
// rope_scaling.

import { isDeepStrictEqual } from 'node:util';
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { required } from '../../runtime/required.js';
import type { ModelConfig } from '../model-config.js';
import { type RotaryConfig, type RotarySizes, readWindows } from './config.js';
import {
  type LongRopeScaling,
  type RopeScaling,
  type ScalingKey,
  scalingKeys,
} from './rope-scaling.js';
import { COMMON_ROPE, type RopeTraits, type RotaryTraits } from './traits.js';

/** Names of the numbers of a scaling in config.json. */
const KEYS: Record<ScalingKey, string> = {
  factor: 'factor',
  originalMaxSeq: 'original_max_position_embeddings',
  lowFreqFactor: 'low_freq_factor',
  highFreqFactor: 'high_freq_factor',
  attentionFactor: 'attention_factor',
  betaFast: 'beta_fast',
  betaSlow: 'beta_slow',
  mscale: 'mscale',
  mscaleAllDim: 'mscale_all_dim',
  truncate: 'truncate',
  queryBeta: 'llama_4_scaling_beta',
  share: 'partial_rotary_factor',
  shortFactor: 'short_factor',
  longFactor: 'long_factor',
};
const ORIGINAL = KEYS.originalMaxSeq;
/** Keys of a section besides the numbers of its type; no code reads "finetuned". */
const PARTIAL = 'partial_rotary_factor';
const BESIDE = ['rope_type', 'type', 'rope_theta', PARTIAL, 'finetuned', ORIGINAL];

const ONE_SECTION =
  'Move rope_type, factor and the other scaling keys into rope_parameters, and remove rope_scaling.';

type ParsedRope = Pick<
  RotaryConfig,
  'maxSeq' | 'ropeTheta' | 'ropeScaling' | 'partialRotaryFactor' | 'windowRopeTheta'
>;

/** Sections of rope_parameters by layer type, in transformers 5. */
const [FULL, SLIDING] = ['full_attention', 'sliding_attention'];

/**
 * Reads rope_parameters, or the older rope_theta and rope_scaling. `declared` is
 * max_position_embeddings. Throws DS_CHECKPOINT for an unknown type, for unsupported keys, and if
 * both generations are present and differ.
 */
export function parseRope(traits: RotaryTraits, config: ModelConfig, declared: number): ParsedRope {
  const { rope = COMMON_ROPE } = traits;
  const [stored, older] = [config.section('rope_parameters'), config.section('rope_scaling')];
  const isSet = [stored, older].some((section) => section.keys().length > 0);
  const completed = rope.unset && !isSet ? stored.withDefaults(rope.unset) : stored;
  const isByType =
    rope.ofWindows !== undefined && [FULL, SLIDING].some((text) => completed.has(text));
  const newer = isByType ? completed.section(FULL) : completed;
  if (!rope.ofWindows) return parseOne(rope, { config, newer, older }, declared);
  const full = parseOne(rope, { config, newer, older }, declared);
  return { ...full, windowRopeTheta: parseWindowTheta(rope, config, completed, full.ropeTheta) };
}

/**
 * Returns the base frequency of layers with a window. Throws DS_CHECKPOINT if they have a scaling.
 */
function parseWindowTheta(
  { ofWindows }: RopeTraits,
  config: ModelConfig,
  given: ModelConfig,
  ofOthers: number | undefined,
): number {
  const { key, fallback } = required(ofWindows);
  const section = given.section(SLIDING);
  section.requireOneOf('rope_type', ['default']);
  requireNoOther(section, []);
  const older = key === null ? (ofOthers ?? fallback) : config.positive(key, fallback);
  return section.positive('rope_theta', older);
}

interface RopeSections {
  config: ModelConfig;
  newer: ModelConfig;
  older: ModelConfig;
}

function parseOne(
  rope: RopeTraits,
  { config, newer, older }: RopeSections,
  declared: number,
): ParsedRope {
  if (newer.keys().length === 0) return parseSection(rope, older, config, declared);
  const parsed = parseSection(rope, newer, config, declared);
  if (older.keys().length === 0) return parsed;
  const topLevelKeys = Object.fromEntries(
    ['rope_theta', PARTIAL].map((key) => [key, newer.get(key)]),
  );
  const other = parseSection(rope, older.withDefaults(topLevelKeys), config, declared);
  if (isDeepStrictEqual(parsed, other)) return parsed;
  const got = config.get('rope_scaling');
  throw config.refusalError(
    'rope_scaling',
    'the values of rope_parameters, or no value',
    got,
    ONE_SECTION,
  );
}

function parseSection(
  rope: RopeTraits,
  section: ModelConfig,
  config: ModelConfig,
  declared: number,
): ParsedRope {
  const isHere = section.get('rope_theta') !== null;
  const theta = isHere ? section.positive('rope_theta') : parseTheta(rope, config);
  if (rope.alpha && section.get('alpha') !== null) {
    return { ropeTheta: parseAlpha(section, config, theta), ropeScaling: null, maxSeq: declared };
  }
  const ropeTheta = theta;
  const ropeScaling = parseScaling(rope, section, config, declared);
  return {
    ropeTheta,
    ropeScaling,
    maxSeq: readLongest(ropeScaling, declared),
    // In a proportional scaling, the same key is the share of the pairs that turn.
    ...(ropeScaling?.type !== 'proportional' && parsePartial(rope, section, config)),
  };
}

/**
 * Returns the base of a dynamic scaling with a fixed exponent, which does not depend on the length.
 */
function parseAlpha(section: ModelConfig, config: ModelConfig, theta: number): number {
  section.requireOneOf('rope_type', ['dynamic']);
  section.requireOneOf('type', ['dynamic']);
  const heads = config.size('num_attention_heads');
  const headDim = config.size('head_dim', config.size('hidden_size') / heads);
  return theta * section.positive('alpha') ** (headDim / (headDim - 2));
}

/** Returns the base frequency outside of the sections. */
const parseTheta = ({ keys }: RopeTraits, config: ModelConfig): number =>
  config.positive(keys?.theta ?? 'rope_theta', 10_000);

/** Returns the section that has `key`. */
const findSection = (section: ModelConfig, config: ModelConfig, key: string): ModelConfig =>
  section.get(key) === null ? config : section;

function parsePartial(
  { partial, partialFallback = 1, keys, width, otherWidth }: RopeTraits,
  section: ModelConfig,
  config: ModelConfig,
): Partial<ParsedRope> {
  if (!partial) {
    // In latent attention, the widths of the parts determine the share.
    const [rotaryDim, plainDim] = ['qk_rope_head_dim', 'qk_nope_head_dim'].map((key) =>
      Number(config.get(key, 0)),
    ) as [number, number];
    const shares = plainDim > 0 ? [1, rotaryDim / (rotaryDim + plainDim)] : [1];
    for (const item of [config, section]) item.requireOneOf(PARTIAL, shares);
    return {};
  }
  if (width) return parseWidth(width, config);
  const says = findSection(section, config, PARTIAL);
  if (otherWidth && says.get(PARTIAL) === null && config.get(otherWidth) !== null) {
    return parseWidth([otherWidth, 1], config);
  }
  const key = says === config ? (keys?.partial ?? PARTIAL) : PARTIAL;
  const partialRotaryFactor = says.positive(key, partialFallback);
  if (partialRotaryFactor <= 1) return { partialRotaryFactor };
  throw says.refusalError(key, 'a share of at most 1', partialRotaryFactor);
}

/** Returns the fraction of a number of channels. Throws DS_CHECKPOINT if a head has fewer. */
function parseWidth(
  [key, fallback]: NonNullable<RopeTraits['width']>,
  config: ModelConfig,
): Partial<ParsedRope> {
  const usual = config.size('hidden_size') / config.size('num_attention_heads');
  const headDim = config.size('head_dim', usual);
  const partialRotaryFactor = config.size(key, fallback) / headDim;
  if (partialRotaryFactor <= 1) return { partialRotaryFactor };
  throw config.refusalError(key, `at most ${headDim} channels`, config.get(key));
}

/** Returns the length to which a scaling stretches the original length. */
function readLongest(scaling: RopeScaling | null, declared: number): number {
  if (scaling?.type !== 'dynamic' && scaling?.type !== 'yarn') return declared;
  return Math.max(declared, Math.floor(scaling.factor * scaling.originalMaxSeq));
}

function parseScaling(
  { types, aliases, ofPictures = [], scalesQueries }: RopeTraits,
  section: ModelConfig,
  config: ModelConfig,
  declared: number,
): RopeScaling | null {
  const key = section.get('rope_type') === null ? 'type' : 'rope_type';
  const type = section.get(key, 'default');
  const alias = typeof type === 'string' ? aliases[type] : undefined;
  if (type === 'default' || alias === 'default') {
    requireNoOther(section, [], ofPictures);
    return null;
  }
  const canonicalType = (alias ?? type) as RopeScaling['type'];
  if (!types.includes(canonicalType)) {
    const knownTypes = ['default', ...types].map((text) => `"${text}"`).join(', ');
    throw section.refusalError(key, knownTypes, type);
  }
  const { needs, may: all } = scalingKeys(canonicalType);
  const may = all.filter((name) => scalesQueries || name !== 'queryBeta');
  requireNoOther(section, [...needs, ...may], ofPictures);
  const absent = scalingDefaults(canonicalType, section, config, declared);
  const scaling: Record<string, JsonValue> = { type: canonicalType };
  for (const name of [...needs, ...may]) {
    if (may.includes(name) && section.get(KEYS[name]) === null) continue;
    scaling[name] = numberOf(section, name, absent[name] ?? null);
  }
  return scaling as unknown as RopeScaling;
}

/** Returns transformers' defaults for absent numbers of a section. */
function scalingDefaults(
  type: RopeScaling['type'],
  section: ModelConfig,
  config: ModelConfig,
  declared: number,
): Partial<Record<ScalingKey, number>> {
  if (type === 'dynamic') {
    section.requireOneOf(ORIGINAL, [declared]);
    return { originalMaxSeq: declared };
  }
  if (type === 'proportional') return { share: 1 };
  if (type !== 'yarn' && type !== 'longrope') return {};
  const originalMaxSeq = section.size(ORIGINAL, config.size(ORIGINAL, declared));
  return { originalMaxSeq, factor: Math.max(1, declared / originalMaxSeq) };
}

function numberOf(section: ModelConfig, name: ScalingKey, absent: number | null): JsonValue {
  const key = KEYS[name];
  if (name === 'originalMaxSeq') return section.size(key, absent);
  if (name === 'truncate') return section.flag(key, true);
  if (name !== 'shortFactor' && name !== 'longFactor') return section.positive(key, absent);
  const list = section.get(key);
  const isValidNumber = (item: JsonValue): boolean =>
    typeof item === 'number' && Number.isFinite(item) && item > 0;
  if (Array.isArray(list) && list.every(isValidNumber)) return list;
  throw section.refusalError(key, 'a list of positive numbers', list);
}

/** Throws for other numbers in a section, because they would change the angles in transformers. */
function requireNoOther(
  section: ModelConfig,
  supported: readonly ScalingKey[],
  others: readonly string[] = [],
): void {
  const keys = [...BESIDE, ...others, ...supported.map((name) => KEYS[name])];
  const isPlain = supported.length === 0;
  for (const key of section.keys()) {
    const value = section.get(key);
    if (value === null || keys.includes(key)) continue;
    if (isPlain && key === 'factor' && value === 1) continue;
    throw section.refusalError(key, `the keys ${keys.join(', ')}`, value);
  }
}

/** Returns the keys of a config.json as transformers 4 writes them; version 5 reads them too. */
export function describeRope({ rope = COMMON_ROPE }: RotaryTraits, sizes: RotarySizes): JsonObject {
  const { maxSeq, ropeTheta, ropeScaling, partialRotaryFactor = 1, windowRopeTheta } = sizes;
  const longest = ropeScaling?.type === 'dynamic' ? ropeScaling.originalMaxSeq : maxSeq;
  const longRope = rope.originalBeside && ropeScaling?.type === 'longrope' ? ropeScaling : null;
  if (rope.sectionsOnly && !rope.ofWindows) {
    const scaling = ropeScaling ? describeScaling(ropeScaling) : { rope_type: 'default' };
    const { type: _, ...section } = scaling;
    const rope_parameters = { ...section, rope_theta: ropeTheta };
    return { max_position_embeddings: longest, rope_parameters };
  }
  if (rope.sectionsOnly) {
    const byType = describeByType(required(rope.ofWindows), sizes, windowRopeTheta ?? ropeTheta);
    return { max_position_embeddings: longest, ...byType };
  }
  return {
    max_position_embeddings: longest,
    [rope.keys?.theta ?? 'rope_theta']: ropeTheta,
    rope_scaling: ropeScaling && describeScaling(ropeScaling),
    ...(rope.partial &&
      (rope.width
        ? { [rope.width[0]]: Math.floor(sizes.headDim * partialRotaryFactor) }
        : { [rope.keys?.partial ?? PARTIAL]: partialRotaryFactor })),
    ...(longRope && describeOuterLengths(longRope, maxSeq)),
    ...(rope.ofWindows && describeByType(rope.ofWindows, sizes, windowRopeTheta ?? ropeTheta)),
  };
}

/** Returns the sections of transformers 5 by layer type, and the key of version 4. */
function describeByType(
  { key }: NonNullable<RopeTraits['ofWindows']>,
  { ropeTheta, ropeScaling }: RotarySizes,
  windowTheta: number,
): JsonObject {
  const scaling = ropeScaling ? describeScaling(ropeScaling) : { rope_type: 'default' };
  const { type: _, ...full } = scaling;
  return {
    rope_parameters: {
      [FULL]: { ...full, rope_theta: ropeTheta },
      [SLIDING]: { rope_type: 'default', rope_theta: windowTheta },
    },
    ...(key !== null && { [key]: windowTheta }),
  };
}

const LISTED = 'no_rope_layers';
const NAMED = 'position_embedding_type';

/**
 * Reads the layers that do not rotate, from a list (1: rotates) or an interval. Throws
 * DS_CHECKPOINT for a list of other values, or for too few layers.
 */
export function parseRopeLayers(
  { rope = COMMON_ROPE }: RotaryTraits,
  config: ModelConfig,
  layers: number,
): Pick<RotaryConfig, 'ropeLayers'> {
  if (rope.off === 'unnamed') {
    config.requireOneOf(NAMED, ['nope', 'rope']);
    const rotates = config.get(NAMED) === 'rope';
    return { ropeLayers: Array.from({ length: layers }, () => rotates) };
  }
  if (rope.off !== 'listed') return {};
  const list = config.get(LISTED);
  // Some files have an empty list, which counts as absent.
  if (list === null || (Array.isArray(list) && list.length === 0)) {
    const every = config.size('no_rope_layer_interval', 4);
    return { ropeLayers: Array.from({ length: layers }, (_, i) => (i + 1) % every !== 0) };
  }
  const isFlag = (item: JsonValue): boolean => item === 0 || item === 1;
  if (Array.isArray(list) && list.length >= layers && list.every(isFlag)) {
    return { ropeLayers: list.slice(0, layers).map((item) => item === 1) };
  }
  throw config.refusalError(LISTED, `0 or 1 for each of ${layers} layers`, list);
}

/** Returns the key of layers that do not rotate. */
export function describeRopeLayers(
  { rope = COMMON_ROPE }: RotaryTraits,
  sizes: RotarySizes,
): JsonObject {
  const rotates = sizes.ropeLayers ?? readWindows(sizes).map(() => true);
  if (rope.off === 'unnamed') return { [NAMED]: rotates.includes(true) ? 'rope' : 'nope' };
  return rope.off === 'listed' ? { [LISTED]: rotates.map(Number) } : {};
}

/**
 * A section of three keys, as transformers 4 requires, and both lengths outside of it, which
 * determine the factor. Adds more keys only for numbers that the lengths do not determine.
 */
function describeOuterLengths(scaling: LongRopeScaling, maxSeq: number): JsonObject {
  const { type, factor, originalMaxSeq, shortFactor, longFactor, attentionFactor } = scaling;
  const stretched = factor > 1 ? Math.round(factor * originalMaxSeq) : maxSeq;
  const follows = Math.max(1, stretched / originalMaxSeq) === factor;
  return {
    max_position_embeddings: follows ? stretched : maxSeq,
    [ORIGINAL]: originalMaxSeq,
    rope_scaling: {
      type,
      short_factor: [...shortFactor],
      long_factor: [...longFactor],
      ...(!follows && { factor }),
      ...(attentionFactor !== undefined && { attention_factor: attentionFactor }),
    },
  };
}

function describeScaling(scaling: RopeScaling): JsonObject {
  const { type, ...numbers } = scaling;
  const entries = Object.entries(numbers).filter(([, value]) => value !== undefined);
  const namedEntries = entries.map(([name, value]) => [KEYS[name as ScalingKey], value] as const);
  return { rope_type: type, type, ...Object.fromEntries(namedEntries) } as JsonObject;
}
