// Rotary positions in a config.json, in both of its generations: rope_parameters, and rope_theta
// with rope_scaling.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { ModelConfig } from '../model-config.js';
import type { RotaryConfig, RotarySizes } from './config.js';
import { ROPE_TYPES, type RopeScaling, type ScalingKey, scalingKeys } from './rope-scaling.js';

/** What a config.json calls the numbers of a scaling. */
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
/** Keys of a section that say nothing of its type's numbers; "finetuned" no code reads. */
const BESIDE = ['rope_type', 'type', 'rope_theta', 'partial_rotary_factor', 'finetuned', ORIGINAL];

type Rope = Pick<RotaryConfig, 'maxSeq' | 'ropeTheta' | 'ropeScaling'>;

/**
 * rope_parameters, or rope_theta and rope_scaling as they were called before; `declared` are the
 * max_position_embeddings. Throws DS_CHECKPOINT for a type that there is not, and for keys that its
 * angles do not follow from.
 */
export function parseRope(config: ModelConfig, declared: number): Rope {
  const isNew = config.get('rope_parameters') !== null;
  const section = config.section(isNew ? 'rope_parameters' : 'rope_scaling');
  for (const one of [config, section]) one.requireOneOf('partial_rotary_factor', [1]);
  const isInside = section.get('rope_theta') !== null;
  const ropeTheta = (isInside ? section : config).positive('rope_theta', 10_000);
  const ropeScaling = parseScaling(section, config, declared);
  return { ropeTheta, ropeScaling, maxSeq: longestOf(ropeScaling, declared) };
}

/** Of a scaling that says to what length it stretches another one, that length. */
function longestOf(scaling: RopeScaling | null, declared: number): number {
  if (scaling?.type !== 'dynamic' && scaling?.type !== 'yarn') return declared;
  return Math.max(declared, Math.floor(scaling.factor * scaling.originalMaxSeq));
}

function parseScaling(
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
  // Phi's first name of it.
  const own = (type === 'su' ? 'longrope' : type) as RopeScaling['type'];
  if (!ROPE_TYPES.includes(own)) {
    const known = ['default', ...ROPE_TYPES].map((one) => `"${one}"`).join(', ');
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

/** What transformers takes for numbers that a section lacks. */
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

/** What a section says beside the numbers of its type would change the angles elsewhere. */
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

/** The keys of a config.json, as transformers 4 writes them and 5 reads them, too. */
export function describeRope({ maxSeq, ropeTheta, ropeScaling }: RotarySizes): JsonObject {
  const longest = ropeScaling?.type === 'dynamic' ? ropeScaling.originalMaxSeq : maxSeq;
  return {
    max_position_embeddings: longest,
    rope_theta: ropeTheta,
    rope_scaling: ropeScaling && describeScaling(ropeScaling),
  };
}

function describeScaling(scaling: RopeScaling): JsonObject {
  const { type, ...numbers } = scaling;
  const entries = Object.entries(numbers).filter(([, value]) => value !== undefined);
  const named = entries.map(([name, value]) => [KEYS[name as ScalingKey], value] as const);
  return { rope_type: type, type, ...Object.fromEntries(named) } as JsonObject;
}
