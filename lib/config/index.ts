// ds_config.json to a frozen ResolvedConfig: read, rename, sift, fill, validate, complete,
// cross-check.
import type { DsConfig, ResolvedConfig, ResolvedValues } from '../../types/config.js';
import { DsError } from '../errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { type AutoSources, fillAuto, fillKnownAuto } from './auto.js';
import { canonicalOptimizer, coerceValues } from './coerce.js';
import { ConfigError, firstOf } from './config-error.js';
import { deepFreeze, deriveOverlap, withDefaults } from './defaults.js';
import { renameKeys } from './deprecated.js';
import { byPlace, Draft, type Notice, noticeLine } from './draft.js';
import { type Origins, originsOf } from './origins.js';
import { type ConfigDocument, readDocument } from './parse.js';
import { applyRules } from './rules.js';
import type { Section } from './schema.js';
import { judgeSupport } from './support.js';
import { resolveTriad, type Triad, triadKeys } from './triad.js';
import { siftKeys } from './unknown-keys.js';
import { checkSchema } from './validate.js';

export type { DsConfig, ResolvedConfig } from '../../types/config.js';
export { type AutoSources, resolveAuto } from './auto.js';
export { ConfigError, type Place, whereabouts } from './config-error.js';
export { type Notice, type NoticeKind, noticeLine } from './draft.js';
export { type Origin, type Origins, originLine } from './origins.js';

/** What a configuration is resolved for: its ranks, and who fills "auto". */
export interface ConfigEnvironment {
  /**
   * Ranks that share a batch out: all of the job, or on a mesh those along dp; 1 for one process.
   */
  worldSize: number;
  /** Unknown keys are errors. Default false: they are notices. */
  strict?: boolean;
  /**
   * What fills "auto", or with `mustMatch` is what the configuration must say; without it "auto" is
   * an error where DeepSpeed gives it no meaning.
   */
  auto?: AutoSources;
  /**
   * What `auto` lacks is left to a Trainer: listed, and judged by its default. Default false: it is
   * an error.
   */
  autoLater?: boolean;
}

/** Either a configuration or the reasons why there is none. */
export type ConfigReport = { readonly notices: readonly Notice[] } & (
  | {
      readonly config: ResolvedConfig;
      readonly origins: Origins;
      /**
       * Dotted paths of each "auto" that `autoLater` has left; `config` has a default or a stand-in
       * there.
       */
      readonly left: ReadonlySet<string>;
      readonly errors: readonly [];
    }
  | {
      readonly config: null;
      readonly origins: null;
      readonly left: null;
      readonly errors: readonly ConfigError[];
    }
);

/**
 * What a file (or base64) holds, unchecked: for programs that adjust it before they resolve it.
 * Throws DS_CONFIG.
 */
export function readConfig(source: string | DsConfig): DsConfig {
  return readDocument(source).value as DsConfig;
}

const ENVIRONMENT: OptionNames<ConfigEnvironment> = {
  ...{ worldSize: true, strict: true, auto: true, autoLater: true },
};

/**
 * Reads a file, base64 or an object and returns what the engine obeys, frozen. Throws the first
 * DS_CONFIG error; its hint says how many more there are. DS_ARGUMENT for a wrong environment.
 */
export function resolveConfig(source: string | DsConfig, env: ConfigEnvironment): ResolvedConfig {
  const environment = readOptions('resolveConfig', env, ENVIRONMENT);
  requireInteger('resolveConfig worldSize', environment.worldSize, 1);
  const { config, errors } = checkConfig(source, environment);
  if (config) return config;
  throw firstOf(errors, '`ds validate` lists them all.');
}

/** resolveConfig without throwing: all errors of the stage that found any, notices and origins. */
export function checkConfig(source: string | DsConfig, env: ConfigEnvironment): ConfigReport {
  try {
    return check(readDocument(source), env);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { config: null, origins: null, left: null, notices: [], errors: [error] };
  }
}

function check(document: ConfigDocument, env: ConfigEnvironment): ConfigReport {
  const draft = new Draft(document);
  canonicalOptimizer(draft);
  renameKeys(draft);
  siftKeys(draft, env.strict ?? false);
  const left = fillIn(draft, env);
  coerceValues(draft);
  judgeSupport(draft, env.worldSize);
  checkSchema(draft);
  if (draft.errors.length > 0) return failure(draft);
  const triad = completeTriad(draft, env.worldSize);
  const { $schema: _editor, ...values }: Section = { ...withDefaults(draft.value), ...triad };
  applyRules(draft, values as unknown as ResolvedValues, left);
  if (draft.errors.length > 0) return failure(draft);
  if (deriveOverlap(values)) {
    const of = 'zero_optimization.stage';
    draft.made.set('zero_optimization.overlap_comm', { from: 'derived', of });
  }
  const notices = draft.notices.toSorted(byPlace);
  const config = deepFreeze({ ...values, notices: notices.map(noticeLine) });
  const origins = originsOf(values, draft, draft.value);
  return { config: config as unknown as ResolvedConfig, origins, left, errors: [], notices };
}

/** Fills "auto"; returns the dotted paths that are left to a Trainer. */
function fillIn(draft: Draft, { auto = {}, autoLater = false, worldSize }: ConfigEnvironment) {
  if (autoLater) return fillKnownAuto(draft, auto, worldSize);
  fillAuto(draft, auto, worldSize);
  return new Set<string>();
}

function failure({ errors, notices }: Draft): ConfigReport {
  const sorted = { errors: errors.toSorted(byPlace), notices: notices.toSorted(byPlace) };
  return { config: null, origins: null, left: null, ...sorted };
}

/** The three batch sizes; refuses what does not fit. */
function completeTriad(draft: Draft, worldSize: number): Triad | null {
  const given = draft.value as Partial<Triad>;
  const known = triadKeys.filter((key) => given[key] !== undefined);
  try {
    const triad = resolveTriad(given, worldSize);
    const of = [...known, `world size ${worldSize}`].join(', ');
    for (const key of triadKeys)
      if (!known.includes(key)) draft.made.set(key, { from: 'derived', of });
    return triad;
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    const { expected, got, hint } = error;
    draft.refuse([known[0] ?? 'train_batch_size'], { expected, got, hint });
    return null;
  }
}
