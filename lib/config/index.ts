// ds_config.json to a frozen ResolvedConfig: read, sift, validate, complete, cross-check.
import type { DsConfig, ResolvedConfig } from '../../types/config.js';
import { DsError } from '../errors.js';
import { deepFreeze, withDefaults } from './defaults.js';
import { type ConfigDocument, readDocument } from './parse.js';
import { rules } from './rules.js';
import { choices, configSchema, isSection, type Schema, type Section } from './schema.js';
import { resolveTriad } from './triad.js';
import { siftKeys } from './unknown-keys.js';
import { schemaErrors } from './validate.js';

export type { DsConfig, ResolvedConfig } from '../../types/config.js';

export interface ConfigEnvironment {
  /** Ranks that train together; 1 for one process. */
  worldSize: number;
}

/** Either a configuration or the reasons why there is none. */
export type ConfigReport =
  | { config: ResolvedConfig; errors: readonly [] }
  | { config: null; errors: readonly DsError[] };

/**
 * What a file (or base64) holds, unchecked: for programs that adjust it before they resolve it.
 * Throws DS_CONFIG.
 */
export function readConfig(source: string | DsConfig): DsConfig {
  return readDocument(source).value as DsConfig;
}

/**
 * Reads a file, base64 or an object and returns what the engine obeys, frozen. Throws the first
 * DS_CONFIG error; its hint says how many more there are.
 */
export function resolveConfig(source: string | DsConfig, env: ConfigEnvironment): ResolvedConfig {
  const { config, errors } = checkConfig(source, env);
  if (config) return config;
  const [first, ...rest] = errors as readonly [DsError, ...DsError[]];
  if (rest.length === 0) throw first;
  const more = `${first.hint} (${rest.length} more: \`ds validate\` lists them all.)`.trim();
  const { code, op, expected, got, cause } = first;
  throw new DsError({ code, op, expected, got, cause, hint: more });
}

/** resolveConfig without throwing: all errors of the stage that found any. */
export function checkConfig(source: string | DsConfig, env: ConfigEnvironment): ConfigReport {
  try {
    return check(readDocument(source), env);
  } catch (error) {
    if (error instanceof DsError) return { config: null, errors: [error] };
    throw error;
  }
}

function check(document: ConfigDocument, env: ConfigEnvironment): ConfigReport {
  canonicalNames(document.value);
  const { value, errors, notices } = siftKeys(document);
  errors.push(...schemaErrors(value, document));
  if (errors.length > 0) return { config: null, errors };
  const triad = resolveTriad(value, env.worldSize);
  const { $schema: _editor, ...full } = withDefaults(value);
  const config = { ...full, ...triad, notices } as unknown as ResolvedConfig;
  errors.push(...ruleErrors(config, document), ...stage3Errors(value, document));
  if (errors.length > 0) return { config: null, errors };
  return { config: deepFreeze(config), errors: [] };
}

/** Optimizer names in any case, as DeepSpeed takes them, and keys that have two names. */
function canonicalNames(value: Section): void {
  const { optimizer, zero_optimization: zero } = value;
  const { optimizer: types, zero_optimization: keys } = configSchema.properties ?? {};
  if (isSection(optimizer) && typeof optimizer.type === 'string') {
    const name = optimizer.type.toLowerCase();
    const same = (type: unknown) => String(type).toLowerCase() === name;
    optimizer.type = choices(types as Schema, 'type').find(same) ?? optimizer.type;
  }
  if (!isSection(zero)) return;
  for (const [key, { dsAlias = [] }] of Object.entries(keys?.properties ?? {})) {
    for (const alias of dsAlias.filter((name) => name in zero && !(key in zero))) {
      zero[key] = zero[alias];
      delete zero[alias];
    }
  }
}

function ruleErrors(config: ResolvedConfig, document: ConfigDocument): DsError[] {
  const errors: DsError[] = [];
  for (const rule of rules) {
    const violation = rule(config);
    if (!violation) continue;
    const { path, ...fields } = violation;
    errors.push(new DsError({ code: 'DS_CONFIG', op: document.locate(path), ...fields }));
  }
  return errors;
}

/**
 * offload_param has no effect below stage 3; at stage 3 it would have one that is not there yet.
 */
function stage3Errors(value: Section, document: ConfigDocument): DsError[] {
  const zero = value.zero_optimization;
  if (!isSection(zero) || zero.stage !== 3 || !isSection(zero.offload_param)) return [];
  const { device } = zero.offload_param;
  if (device === undefined || device === 'none') return [];
  return [
    new DsError({
      code: 'DS_CONFIG',
      op: document.locate(['zero_optimization', 'offload_param', 'device']),
      expected: '"none"',
      got: JSON.stringify(device),
      hint: 'Offloading weights is not supported yet: set it to "none" or leave the section out.',
    }),
  ];
}
