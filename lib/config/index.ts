// Converts ds_config.json to a frozen ResolvedConfig. The passes: read, rename keys, drop unknown
// keys, fill "auto", validate, add defaults, check rules across keys.
import type { DsConfig, ResolvedConfig, ResolvedValues } from '../../types/config.js';
import { DsError } from '../errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { type AutoSources, fillAuto, fillKnownAuto } from './auto.js';
import { readAutocast } from './autocast.js';
import { canonicalOptimizer, coerceValues } from './coerce.js';
import { ConfigError, firstError } from './config-error.js';
import { deepFreeze, deriveOverlap, deriveParams, withDefaults } from './defaults.js';
import { renameKeys } from './deprecated.js';
import { compareLocations, Draft, type Notice, noticeLine } from './draft.js';
import { type Elasticity, elasticTriad, yieldToElasticity } from './elasticity.js';
import { type Origins, originsOf } from './origins.js';
import { type ConfigDocument, readDocument } from './parse.js';
import {
  dropPlanned,
  fillPlanned,
  type PlannedWay,
  plannedKeys,
  waysToFill,
} from './planned-keys.js';
import { applyRules } from './rules.js';
import { isSection, type Section } from './schema.js';
import { filesOfChoices, type SearchChoice, searchChoices } from './search-choices.js';
import { checkSupport } from './support.js';
import { dropNullSizes, resolveTriad, type Triad, triadKeys } from './triad.js';
import { removeUnknownKeys } from './unknown-keys.js';
import { checkSchema } from './validate.js';

export type { DsConfig, ResolvedConfig } from '../../types/config.js';
export { type AutoSources, resolveAuto } from './auto.js';
export { isPlanned } from './auto-table.js';
export { ConfigError, formatLocation, type SourceLocation } from './config-error.js';
export { type Notice, type NoticeKind, noticeLine } from './draft.js';
export { type Origin, type Origins, originLine } from './origins.js';

/** Environment of a configuration: its ranks, and the source of "auto" values. */
export interface ConfigEnvironment {
  /**
   * Number of data ranks: all ranks of the job, or the size of dp on a mesh.
   */
  worldSize: number;
  /** Whether unknown keys are errors. Default: false: they are notices. */
  strict?: boolean;
  /**
   * Values that fill "auto"; with `mustMatch` the configuration must equal them. Without it, "auto"
   * is an error if DeepSpeed gives it no meaning for the key.
   */
  auto?: AutoSources;
  /**
   * Whether "auto" values that `auto` lacks are left to a Trainer, with a notice. Default: false:
   * they are errors.
   */
  autoLater?: boolean;
}

/** The notices, and either a configuration or errors. */
type ConfigReport = { readonly notices: readonly Notice[] } & (
  | {
      readonly config: ResolvedConfig;
      readonly origins: Origins;
      /**
       * Dotted paths of the "auto" values that `autoLater` has left to a Trainer. `config` has a
       * default or a placeholder there.
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
 * Reads a file (or base64) without checks, for programs that change it before they resolve it.
 * Throws DS_CONFIG if the file is no valid JSON.
 */
export function readConfig(source: string | DsConfig): DsConfig {
  return readDocument(source).value as DsConfig;
}

/** Reads as readConfig() does, with current names and coerced types: 2 for a number written "2". */
export function readTyped(source: string | DsConfig): DsConfig {
  const draft = new Draft(readDocument(source));
  canonicalOptimizer(draft);
  renameKeys(draft);
  coerceValues(draft);
  return draft.value as DsConfig;
}

/**
 * Reads a file, base64 or an object and returns the resolved configuration, frozen. Throws the
 * first DS_CONFIG error; its hint has the number of other errors. Throws DS_ARGUMENT for an invalid
 * environment.
 */
export function resolveConfig(source: string | DsConfig, env: ConfigEnvironment): ResolvedConfig {
  const environment = readOptions('resolveConfig', env, namesOf.ConfigEnvironment);
  requireInteger('resolveConfig worldSize', environment.worldSize, 1);
  const report = checkConfig(source, environment);
  if (report.config) return report.config;
  throw firstErrorOf(report);
}

/** Maximum number of suggestions for unknown keys in one error. */
const MAX_GUESSES = 3;

/**
 * Returns the first error. Its hint names unknown keys with a suggestion, because a misspelled key
 * may be the cause.
 */
function firstErrorOf({ errors, notices }: ConfigReport): ConfigError {
  const guessed = notices.filter(
    ({ kind, text }) => kind === 'unknown' && text.includes('Did you mean'),
  );
  const guesses = guessed.slice(0, MAX_GUESSES).map(({ path, text }) => `${path} ${text}`);
  return firstError(errors, '`ds validate` lists them all.', guesses);
}

/** Resolves without throwing: returns all errors of the first failing pass, notices and origins. */
export function checkConfig(source: string | DsConfig, env: ConfigEnvironment): ConfigReport {
  return reportOrErrors(() => checkDocument(readDocument(source), env));
}

const NO_CONFIG = { config: null, origins: null, left: null } as const;

/** Returns the report of `body`, or of the ConfigError that it throws. */
function reportOrErrors(body: () => ConfigReport): ConfigReport {
  try {
    return body();
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { ...NO_CONFIG, notices: [], errors: [error] };
  }
}

function checkDocument(document: ConfigDocument, env: ConfigEnvironment): ConfigReport {
  const { keys, ways } = planChoices(document, false);
  const isLeft = keys.size > 0 && env.autoLater === true;
  return isLeft ? checkWays(document, env, { keys, ways }) : check(copyOf(document), env, null);
}

/** A report, and the lists of values for a search. */
type SearchReport = ConfigReport & { readonly choices: readonly SearchChoice[] };

/**
 * Does checkConfig() for `ds --autotuning`. If the file has an "autotuning" section, a list stands
 * for several values. Checks each value; the report is that of the first values.
 */
export function checkSearch(source: string | DsConfig, env: ConfigEnvironment): SearchReport {
  let choices: readonly SearchChoice[] = [];
  const report = reportOrErrors(() => {
    const document = readDocument(source);
    choices = searchChoices(document.value);
    const reports = filesOfChoices(document.value, choices).map((value) =>
      reportOrErrors(() => checkDocument({ ...document, value }, env)),
    );
    const errors = reports.flatMap((report) => report.errors);
    const [first] = reports as [ConfigReport, ...ConfigReport[]];
    if (errors.length === 0) return first;
    const unique = new Map(errors.map((error) => [error.message, error]));
    const sorted = [...unique.values()].toSorted(compareLocations);
    return { ...NO_CONFIG, notices: first.notices, errors: sorted };
  });
  return { ...report, choices };
}

/** The configurations that the plan compares. */
interface PlannedConfigs {
  /** Dotted paths of the keys that the plan fills. */
  readonly keys: ReadonlySet<string>;
  /** At least one. */
  readonly configs: readonly [ResolvedConfig, ...ResolvedConfig[]];
}

/**
 * Returns all configurations that the plan can choose; null if it fills no key. Throws DS_CONFIG if
 * every choice would be refused.
 */
export function plannedConfigs(
  source: string | DsConfig,
  env: ConfigEnvironment,
): PlannedConfigs | null {
  const document = readDocument(source);
  const { keys, ways } = planChoices(document, true);
  if (keys.size === 0) return null;
  const reports = ways.map((way) => check(copyOf(document), env, way));
  const [first, ...others] = reports.flatMap(({ config }) => config ?? []);
  if (first) return { keys, configs: [first, ...others] };
  throw firstErrorOf(fewestErrors(reports));
}

/** Returns a document with a copy of the values, which a draft may change. */
function copyOf(document: ConfigDocument): ConfigDocument {
  return { ...document, value: copyValue(document.value) as Section };
}

/** Returns a deep copy of sections and lists. Other objects are not copied. */
function copyValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(copyValue);
  if (!isSection(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, copyValue(item)]));
}

/** Returns the keys of the plan and their possible values: see waysToFill(). */
function planChoices(document: ConfigDocument, isFull: boolean): WaysOfPlan {
  const draft = new Draft(copyOf(document));
  renameKeys(draft);
  const keys = plannedKeys(draft);
  return { keys, ways: keys.size > 0 ? waysToFill(draft, keys, isFull) : [] };
}

interface WaysOfPlan {
  keys: ReadonlySet<string>;
  ways: readonly PlannedWay[];
}

/**
 * Checks a configuration with keys of the plan: the first valid way represents its choice.
 */
function checkWays(
  document: ConfigDocument,
  env: ConfigEnvironment,
  { keys, ways }: WaysOfPlan,
): ConfigReport {
  const reports = ways.map((way) => check(copyOf(document), env, way));
  const fine = reports.filter(({ config }) => config !== null);
  const [first] = fine;
  if (!first?.config) return fewestErrors(reports);
  const isShared = (notice: Notice): boolean =>
    fine.every(({ notices }) => notices.some((item) => noticeLine(item) === noticeLine(notice)));
  const draft = new Draft(copyOf(document));
  renameKeys(draft);
  for (const key of keys) {
    draft.note('auto', key.split('.'), 'is left to be filled by the plan of initialize().');
  }
  const ownNotices = draft.notices.filter(({ kind }) => kind === 'auto');
  const notices = [...first.notices.filter(isShared), ...ownNotices].toSorted(compareLocations);
  const config = deepFreeze({ ...first.config, notices: notices.map(noticeLine) });
  return { ...first, config, notices, left: new Set([...first.left, ...keys]) };
}

function fewestErrors(reports: readonly ConfigReport[]): ConfigReport {
  return reports.reduce((min, report) => (report.errors.length < min.errors.length ? report : min));
}

/** Checks a draft. Without a `way` of the plan, the plan's keys have their defaults. */
function check(
  document: ConfigDocument,
  env: ConfigEnvironment,
  way: PlannedWay | null,
): ConfigReport {
  const draft = new Draft(document);
  dropNullSizes(draft.value);
  canonicalOptimizer(draft);
  renameKeys(draft);
  const keys = plannedKeys(draft);
  if (way) fillPlanned(draft, way);
  else dropPlanned(draft, keys);
  removeUnknownKeys(draft, env.strict ?? false);
  yieldToElasticity(draft);
  const left = fillIn(draft, env);
  coerceValues(draft);
  readAutocast(draft);
  checkSupport(draft, env.worldSize);
  checkSchema(draft);
  if (draft.errors.length > 0) return failure(draft);
  const triad = completeTriad(draft, env.worldSize);
  const { $schema: _editor, ...values }: Section = { ...withDefaults(draft.value), ...triad };
  applyRules(draft, checkedAs<ResolvedValues>(values), left);
  if (draft.errors.length > 0) return failure(draft);
  if (deriveOverlap(values)) {
    const of = 'zero_optimization.stage';
    draft.filled.set('zero_optimization.overlap_comm', { from: 'derived', of });
  }
  const param = deriveParams(values, draft.value);
  if (param) draft.filled.set(`optimizer.params.${param.key}`, { from: 'derived', of: param.of });
  const notices = draft.notices.toSorted(compareLocations);
  const config = deepFreeze({ ...values, notices: notices.map(noticeLine) });
  const origins = originsOf(values, draft, draft.value);
  return { config: checkedAs<ResolvedConfig>(config), origins, left, errors: [], notices };
}

/** Returns `values` with the type of checked values with defaults; the schema has checked them. */
const checkedAs = <Values extends object>(values: object): Values => values as Values;

/** Fills "auto"; returns the dotted paths that are left to a Trainer. */
function fillIn(draft: Draft, { auto = {}, autoLater = false, worldSize }: ConfigEnvironment) {
  if (autoLater) return fillKnownAuto(draft, auto, worldSize);
  fillAuto(draft, auto, worldSize);
  return new Set<string>();
}

function failure({ errors, notices }: Draft): ConfigReport {
  const sorted = {
    errors: errors.toSorted(compareLocations),
    notices: notices.toSorted(compareLocations),
  };
  return { config: null, origins: null, left: null, ...sorted };
}

/** Returns the three batch sizes; refuses sizes that do not fit together. */
function completeTriad(draft: Draft, worldSize: number): Triad | null {
  const elasticity = elasticityOf(draft);
  if (elasticity) return chooseTriad(draft, elasticity, worldSize);
  const given = draft.value as Partial<Triad>;
  const known = triadKeys.filter((key) => given[key] !== undefined);
  try {
    const triad = resolveTriad(given, worldSize);
    const of = [...known, `world size ${worldSize}`].join(', ');
    for (const key of triadKeys)
      if (!known.includes(key)) draft.filled.set(key, { from: 'derived', of });
    return triad;
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    const { expected, got, hint } = error;
    draft.refuse([known[0] ?? 'train_batch_size'], { expected, got, hint });
    return null;
  }
}

/** Returns an enabled section with its defaults. */
function elasticityOf({ value }: Draft): Elasticity | null {
  const { elasticity } = checkedAs<ResolvedValues>(withDefaults(value));
  return elasticity.enabled ? elasticity : null;
}

/** Returns the batch sizes that elasticity chooses; sizes of the training must equal them. */
function chooseTriad(draft: Draft, elasticity: Elasticity, ranks: number): Triad | null {
  const triad = elasticTriad(elasticity, ranks);
  if ('path' in triad) {
    const { path, ...refusal } = triad;
    draft.refuse([...path], refusal);
    return null;
  }
  const other = triadKeys.find((key) => (draft.value[key] ?? triad[key]) !== triad[key]);
  if (other) {
    draft.refuse(['elasticity'], {
      expected: `the ${other} of the training, ${draft.value[other]}`,
      got: String(triad[other]),
      hint: 'Give the training the batch sizes that `ds elastic` prints, or switch elasticity off.',
    });
    return null;
  }
  const of = `elasticity, world size ${ranks}`;
  for (const key of triadKeys) draft.filled.set(key, { from: 'derived', of });
  return triad;
}
