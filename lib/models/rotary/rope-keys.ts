// Rotary positions in a config.json, in both generations: rope_parameters, and rope_theta with
// rope_scaling.
import { isDeepStrictEqual } from 'node:util';
import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { ModelConfig } from '../model-config.js';
import {
  COMMON_ROPE,
  type RopeTraits,
  type RotaryConfig,
  type RotarySizes,
  type RotaryTraits,
} from './config.js';
import {
  type LongRopeScaling,
  type RopeScaling,
  type ScalingKey,
  scalingKeys,
} from './rope-scaling.js';

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
  shortFactor: 'short_factor',
  longFactor: 'long_factor',
};
const ORIGINAL = KEYS.originalMaxSeq;
/** Keys of a section besides the numbers of its type; no code reads "finetuned". */
const PARTIAL = 'partial_rotary_factor';
const BESIDE = ['rope_type', 'type', 'rope_theta', PARTIAL, 'finetuned', ORIGINAL];

const ONE_SECTION =
  'Move rope_type, factor and the other scaling keys into rope_parameters, and remove rope_scaling.';

type Rope = Pick<RotaryConfig, 'maxSeq' | 'ropeTheta' | 'ropeScaling' | 'partialRotaryFactor'>;

/**
 * Reads rope_parameters, or the older rope_theta and rope_scaling. `declared` is
 * max_position_embeddings. Throws DS_CHECKPOINT for an unknown type, for unsupported keys, and if
 * both generations are present and differ.
 */
export function parseRope(
  { rope = COMMON_ROPE }: RotaryTraits,
  config: ModelConfig,
  declared: number,
): Rope {
  const [newer, older] = [config.section('rope_parameters'), config.section('rope_scaling')];
  if (newer.keys().length === 0) return parseSection(rope, older, config, declared);
  const found = parseSection(rope, newer, config, declared);
  if (older.keys().length === 0) return found;
  const beside = Object.fromEntries(['rope_theta', PARTIAL].map((key) => [key, newer.get(key)]));
  const other = parseSection(rope, older.completed(beside), config, declared);
  if (isDeepStrictEqual(found, other)) return found;
  const got = config.get('rope_scaling');
  throw config.refusal(
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
): Rope {
  const ropeTheta = saysOf(section, config, 'rope_theta').positive('rope_theta', 10_000);
  const ropeScaling = parseScaling(rope, section, config, declared);
  return {
    ...{ ropeTheta, ropeScaling, maxSeq: longestOf(ropeScaling, declared) },
    ...parsePartial(rope, section, config),
  };
}

/** The section that has `key`. */
const saysOf = (section: ModelConfig, config: ModelConfig, key: string): ModelConfig =>
  section.get(key) === null ? config : section;

function parsePartial(
  { partial }: RopeTraits,
  section: ModelConfig,
  config: ModelConfig,
): Partial<Rope> {
  if (!partial) {
    for (const one of [config, section]) one.requireOneOf(PARTIAL, [1]);
    return {};
  }
  const says = saysOf(section, config, PARTIAL);
  const partialRotaryFactor = says.positive(PARTIAL, 1);
  if (partialRotaryFactor <= 1) return { partialRotaryFactor };
  throw says.refusal(PARTIAL, 'a share of at most 1', partialRotaryFactor);
}

/** The length to which a scaling stretches the original one. */
function longestOf(scaling: RopeScaling | null, declared: number): number {
  if (scaling?.type !== 'dynamic' && scaling?.type !== 'yarn') return declared;
  return Math.max(declared, Math.floor(scaling.factor * scaling.originalMaxSeq));
}

function parseScaling(
  { types, aliases }: RopeTraits,
  section: ModelConfig,
  config: ModelConfig,
  declared: number,
): RopeScaling | null {
  const key = section.get('rope_type') === null ? 'type' : 'rope_type';
  const type = section.get(key, 'default');
  if (type === 'default') {
    requireNoOther(section, []);
    return null;
  }
  const own = ((typeof type === 'string' ? aliases[type] : undefined) ??
    type) as RopeScaling['type'];
  if (!types.includes(own)) {
    const known = ['default', ...types].map((one) => `"${one}"`).join(', ');
    throw section.refusal(key, known, type);
  }
  const { needs, may } = scalingKeys(own);
  requireNoOther(section, [...needs, ...may]);
  const absent = defaultsOf(own, section, config, declared);
  const found: Record<string, JsonValue> = { type: own };
  for (const name of [...needs, ...may]) {
    if (may.includes(name) && section.get(KEYS[name]) === null) continue;
    found[name] = numberOf(section, name, absent[name] ?? null);
  }
  return found as unknown as RopeScaling;
}

/** transformers' defaults for absent numbers of a section. */
function defaultsOf(
  type: RopeScaling['type'],
  section: ModelConfig,
  config: ModelConfig,
  declared: number,
): Partial<Record<ScalingKey, number>> {
  if (type === 'dynamic') {
    section.requireOneOf(ORIGINAL, [declared]);
    return { originalMaxSeq: declared };
  }
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
  const isGood = (one: JsonValue): boolean => Number.isFinite(one) && (one as number) > 0;
  if (Array.isArray(list) && list.every(isGood)) return list;
  throw section.refusal(key, 'a list of positive numbers', list);
}

/** Other numbers in a section would change the angles in transformers. */
function requireNoOther(section: ModelConfig, known: readonly ScalingKey[]): void {
  const keys = [...BESIDE, ...known.map((name) => KEYS[name])];
  const isPlain = known.length === 0;
  for (const key of section.keys()) {
    const value = section.get(key);
    if (value === null || keys.includes(key)) continue;
    if (isPlain && key === 'factor' && value === 1) continue;
    throw section.refusal(key, `the keys ${keys.join(', ')}`, value);
  }
}

/** The keys of a config.json, as transformers 4 writes them; version 5 reads them too. */
export function describeRope(
  { rope = COMMON_ROPE }: RotaryTraits,
  { maxSeq, ropeTheta, ropeScaling, partialRotaryFactor = 1 }: RotarySizes,
): JsonObject {
  const longest = ropeScaling?.type === 'dynamic' ? ropeScaling.originalMaxSeq : maxSeq;
  const beside = rope.originalBeside && ropeScaling?.type === 'longrope' ? ropeScaling : null;
  return {
    max_position_embeddings: longest,
    rope_theta: ropeTheta,
    rope_scaling: ropeScaling && describeScaling(ropeScaling),
    ...(rope.partial && { [PARTIAL]: partialRotaryFactor }),
    ...(beside && describeBeside(beside, maxSeq)),
  };
}

/**
 * A section of three keys, as transformers 4 requires, and both lengths outside of it, which
 * determine the factor. Adds more keys only for numbers that the lengths do not determine.
 */
function describeBeside(scaling: LongRopeScaling, maxSeq: number): JsonObject {
  const { type, factor, originalMaxSeq, shortFactor, longFactor, attentionFactor } = scaling;
  const stretched = factor > 1 ? Math.round(factor * originalMaxSeq) : maxSeq;
  const follows = Math.max(1, stretched / originalMaxSeq) === factor;
  return {
    max_position_embeddings: follows ? stretched : maxSeq,
    [ORIGINAL]: originalMaxSeq,
    rope_scaling: {
      ...{ type, short_factor: [...shortFactor], long_factor: [...longFactor] },
      ...(!follows && { factor }),
      ...(attentionFactor !== undefined && { attention_factor: attentionFactor }),
    },
  };
}

function describeScaling(scaling: RopeScaling): JsonObject {
  const { type, ...numbers } = scaling;
  const entries = Object.entries(numbers).filter(([, value]) => value !== undefined);
  const named = entries.map(([name, value]) => [KEYS[name as ScalingKey], value] as const);
  return { rope_type: type, type, ...Object.fromEntries(named) } as JsonObject;
}
