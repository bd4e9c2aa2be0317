// Reads and checks the configuration of initInference().
import { isDeepStrictEqual } from 'node:util';
import type {
  InferenceConfig,
  ResolvedInferenceValues,
} from '../../../types/inference-config.generated.js';
import { coerceValues } from '../../config/coerce.js';
import { type ConfigError, firstError } from '../../config/config-error.js';
import { deepFreeze, withDefaults } from '../../config/defaults.js';
import { renameKeys } from '../../config/deprecated.js';
import { compareLocations, Draft, noticeLine } from '../../config/draft.js';
import { type ConfigDocument, readDocument } from '../../config/parse.js';
import { lists, type Schema, type Section } from '../../config/schema.js';
import { checkSupport } from '../../config/support.js';
import { removeUnknownKeys } from '../../config/unknown-keys.js';
import { checkSchema } from '../../config/validate.js';
import { Device } from '../../runtime/device.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject, isPlainObject } from '../../runtime/is-object.js';
import schemaJson from './schema.json';

export type { InferenceConfig } from '../../../types/inference-config.generated.js';

/** The checked and frozen configuration, with defaults and current key names. */
export interface ResolvedInferenceConfig extends ResolvedInferenceValues {
  /** One line for each ignored key and each deprecated key name. */
  readonly notices: readonly string[];
}

export const inferenceSchema = schemaJson as Schema;

const FILE = 'ds_inference_config.json';

/**
 * Reads the configuration and merges `options` into it. `config` is a file (JSON or Hjson), base64
 * or an object. Throws DS_CONFIG with the first error; the hint lists the keys of the others.
 * Errors are unknown, invalid or unsupported keys, keys under two names, and keys with different
 * values in `config` and `options`. Source: deepspeed.init_inference.
 */
export function resolveInferenceConfig(
  config: InferenceConfig | string | null = null,
  options: InferenceConfig = {},
): ResolvedInferenceConfig {
  const draft = checkDraft(readDraft(config ?? {}));
  const overrides = checkDraft(readDraft(options));
  merge(draft, overrides.value);
  const { $schema: _editor, ...resolved } = withDefaults(draft.value, inferenceSchema);
  refuseContradictions(draft, resolved as unknown as ResolvedInferenceValues);
  throwFirst(draft.errors);
  const notices = [...draft.notices.toSorted(compareLocations), ...overrides.notices].map(
    noticeLine,
  );
  const values: Section = { ...resolved, notices };
  return deepFreeze(values) as unknown as ResolvedInferenceConfig;
}

/**
 * Returns the sharing and device settings of a configuration that was refused for other keys.
 * Returns null if these settings are invalid too.
 */
export function readSharing(
  config: InferenceConfig | string | null,
): Pick<ResolvedInferenceConfig, 'tensor_parallel' | 'moe' | 'device'> | null {
  try {
    const draft = readDraft(config ?? {});
    dropAuto(draft);
    coerceValues(draft);
    const { tensor_parallel, moe, device } = draft.value;
    const sections = Object.entries({ tensor_parallel, moe, device });
    const givenEntries = sections.filter(([, value]) => value !== undefined);
    return resolveInferenceConfig(Object.fromEntries(givenEntries));
  } catch {
    return null;
  }
}

/**
 * Returns every key with its default, as a new object. Source: deepspeed.default_inference_config.
 */
export function defaultInferenceConfig(): InferenceConfig {
  return withDefaults({}, inferenceSchema) as InferenceConfig;
}

/**
 * Checks `given` and returns its keys under current names, without defaults. Throws DS_CONFIG for
 * unknown, invalid or contradicting keys.
 */
export function readTypedInference(given: InferenceConfig): InferenceConfig {
  const values = structuredClone(checkDraft(readDraft(given)).value);
  resolveInferenceConfig(given); // Throws for keys that contradict each other.
  return values as InferenceConfig;
}

/** Reads a configuration and renames its deprecated keys. */
function readDraft(source: InferenceConfig | string): Draft {
  const draft = new Draft(toDocument(source), inferenceSchema);
  renameKeys(draft);
  return draft;
}

/**
 * Replaces class instances in a configuration object: a Device by its name, others by a
 * description.
 */
function toDocument(source: unknown): ConfigDocument {
  if (typeof source !== 'object' || source === null) return readDocument(source, FILE);
  if (Object.getPrototypeOf(source) !== Object.prototype) return readDocument(source, FILE);
  const entries = Object.entries(source).map(([key, value]) => [key, nameDevices(value)]);
  return readDocument(Object.fromEntries(entries), FILE);
}

function nameDevices(value: unknown): unknown {
  if (value instanceof Device) return value.name;
  if (!isObject(value)) return value;
  if (!isPlainObject(value)) return formatValue(value);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, nameDevices(item)]));
}

/** Checks key names, types, ranges and support. Throws the first error. */
function checkDraft(draft: Draft): Draft {
  removeUnknownKeys(draft, true);
  dropAuto(draft);
  coerceValues(draft);
  checkSupport(draft, 1);
  checkSchema(draft);
  throwFirst(draft.errors);
  return draft;
}

function throwFirst(errors: readonly ConfigError[]): void {
  if (errors.length === 0) return;
  const sorted = errors.toSorted(compareLocations);
  const names = sorted.slice(1).map(({ path }) => path);
  throw firstError(sorted, `${names.join(', ')}.`);
}

/**
 * Removes "auto" from keys for which the schema does not list it, so that their default applies.
 */
function dropAuto(draft: Draft): void {
  draft.visit(({ section, key, path, schema }) => {
    const isOwn = lists(schema, 'auto') || schema.default === 'auto' || key === 'device';
    if (section[key] !== 'auto' || isOwn) return;
    delete section[key];
    draft.note('auto', path, 'is "auto": the default applies.');
  });
}

/** Adds the options of the call. Refuses keys with different values in both sources. */
function merge(draft: Draft, options: Section): void {
  for (const [key, value] of Object.entries(options)) {
    const present = draft.value[key];
    if (!Object.hasOwn(draft.value, key)) draft.value[key] = value;
    else if (!isDeepStrictEqual(present, value)) {
      draft.refuse([key], {
        expected: 'the same value in the configuration and in the options of the call',
        got: `${JSON.stringify(present)} and ${JSON.stringify(value)}`,
        hint: 'Keep one of them.',
      });
    }
  }
}

function refuseContradictions(draft: Draft, config: ResolvedInferenceValues): void {
  const { min_out_tokens: min, max_out_tokens: max, kv_cache: cache } = config;
  if (max !== null && min > max) {
    const expected = `at most max_out_tokens, ${max}`;
    draft.refuse(['min_out_tokens'], { expected, got: String(min) });
  }
  const { enabled, tp_size: ranks } = config.tensor_parallel;
  const isQuantized = config.dtype === 'int8' || config.quant?.enabled === true;
  if (enabled && ranks > 1 && isQuantized && config.save_mp_checkpoint_path !== null) {
    draft.refuse(['save_mp_checkpoint_path'], {
      expected:
        'no folder if weights are quantized and tp_size is above 1: the format has no quantized shards',
      got: JSON.stringify(config.save_mp_checkpoint_path),
      hint: 'Save it without quant; each engine then quantizes the weights that it loads.',
    });
  }
  const { enabled: hasExperts, ep_size: expertRanks } = config.moe;
  const layerRanks = enabled ? ranks : 1;
  if (hasExperts && expertRanks > 1 && layerRanks > 1 && expertRanks !== layerRanks) {
    draft.refuse(['moe', 'ep_size'], {
      expected: `1 or tensor_parallel.tp_size, ${layerRanks}: the same ranks divide layers and experts`,
      got: String(expertRanks),
    });
  }
  const { method, model } = config.speculative ?? {};
  if (method === 'ngram' && model) {
    const expected = 'null for the method "ngram"';
    draft.refuse(['speculative', 'model'], { expected, got: formatValue(model) });
  }
  if ((method === 'draft_model' || method === 'eagle3') && !model) {
    const expected = `a folder or a name for the method "${method}"`;
    draft.refuse(['speculative', 'model'], { expected, got: formatValue(model) });
  }
  if (model && (layerRanks > 1 || expertRanks > 1)) {
    draft.refuse(['speculative', 'model'], {
      expected: 'null if ranks share the model (tensor_parallel, moe)',
      got: formatValue(model),
      hint: 'Use the method "ngram".',
    });
  }
  const { prompt_lookup_min: fewest = 0, prompt_lookup_max: longest = 0 } =
    config.speculative ?? {};
  if (fewest > longest) {
    draft.refuse(['speculative', 'prompt_lookup_min'], {
      expected: `at most prompt_lookup_max, ${longest}`,
      got: String(fewest),
    });
  }
  if (cache.blocks !== null && cache.memory !== null) {
    draft.refuse(['kv_cache', 'blocks'], {
      expected: 'either kv_cache.blocks or kv_cache.memory',
      got: 'both',
      hint: 'Keep one of them.',
    });
  }
}
