// LoRA options with PEFT's names and defaults, and their checks.

import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { Regex } from '../runtime/regex/regex.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireOneOf, requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';

const BIASES = ['none', 'all', 'lora_only'] as const;

/** Biases to train: no bias, all biases, or only biases of layers with adapters. */
export type LoraBias = (typeof BIASES)[number];

/** Options of addLora(), with the names of PEFT's LoraConfig in camelCase or snake_case. */
export interface LoraOptions {
  /** Rank of the update: A is [r, in], B is [out, r]. Default: 8. */
  r?: number;
  /** The update is scaled by loraAlpha / r. Default: 8. */
  loraAlpha?: number;
  /** Dropout of the adapters' inputs in training. Default: 0. */
  loraDropout?: number;
  /** Biases to train. Default: "none". */
  bias?: LoraBias;
  /**
   * Whether the update is scaled by loraAlpha / sqrt(r) instead. Default: false. Source:
   * Kalajdzievski 2023.
   */
  useRslora?: boolean;
  /**
   * Whether to use DoRA, which scales the rows of the updated weight to trained norms. Default:
   * false. Source: Liu et al. 2024.
   */
  useDora?: boolean;
  /**
   * Modules with an adapter: a list of names or last name components, a regular expression for full
   * names, or "all-linear". "all-linear" selects all linear layers except the head. Default: PEFT's
   * choice for the model's family.
   */
  targetModules?: string | readonly string[];
  /**
   * Matrices of experts with an adapter, by name or by the end of the name:
   * "mlp.experts.down_proj". With them, targetModules may be []. Default: none.
   */
  targetParameters?: readonly string[];
  /** Modules to exclude: a list or an expression, as in targetModules. */
  excludeModules?: string | readonly string[];
  /** Indices of the layers with adapters. Default: all. */
  layersToTransform?: number | readonly number[];
  /** Name of the layer list in module names. Default: any. */
  layersPattern?: string | readonly string[];
  /** Ranks by name, or by regular expression for the end of a name. */
  rankPattern?: Readonly<Record<string, number>>;
  /** Values of loraAlpha, with keys as in rankPattern. */
  alphaPattern?: Readonly<Record<string, number>>;
  /** Names or last name components of modules that are trained whole and saved with the adapter. */
  modulesToSave?: readonly string[];
  /**
   * Whether modulesToSave includes the modules tied to it, such as a head and its embedding.
   * Default: false: both must be listed.
   */
  ensureWeightTying?: boolean;
  /**
   * Initialization. True: A as PyTorch's Linear, B zero, so that the output is unchanged.
   * "gaussian": A from N(0, 1/r^2), B zero. False: both as PyTorch's Linear. Default: true.
   */
  initLoraWeights?: boolean | 'gaussian';
  /** Whether adapters are in f32 in any model dtype, also in an engine. Default: true. */
  autocastAdapterDtype?: boolean;
  /** Written to adapter_config.json (weights stored as [in, out]); no effect in this library. */
  fanInFanOut?: boolean;
  /**
   * Name of the base model, written to adapter_config.json. Default: the folder that
   * fromPretrained() read.
   */
  baseModelNameOrPath?: string | null;
  /** Written to adapter_config.json. Default: "CAUSAL_LM". */
  taskType?: string | null;
}

/** LoraOptions with defaults; null if a default depends on the model. */
export interface LoraConfig {
  readonly r: number;
  readonly loraAlpha: number;
  readonly loraDropout: number;
  readonly bias: LoraBias;
  readonly useRslora: boolean;
  readonly useDora: boolean;
  readonly targetModules: string | readonly string[] | null;
  readonly targetParameters: readonly string[];
  readonly excludeModules: string | readonly string[];
  readonly layersToTransform: readonly number[] | null;
  readonly layersPattern: readonly string[];
  readonly rankPattern: Readonly<Record<string, number>>;
  readonly alphaPattern: Readonly<Record<string, number>>;
  readonly modulesToSave: readonly string[];
  readonly ensureWeightTying: boolean;
  /** Module paths that ensureWeightTying adds to modulesToSave. */
  readonly modulesToTie: readonly string[];
  readonly initLoraWeights: boolean | 'gaussian';
  readonly autocastAdapterDtype: boolean;
  readonly fanInFanOut: boolean | null;
  readonly baseModelNameOrPath: string | null;
  readonly taskType: string | null;
}

/** The targetModules value for all linear layers except the head, in any case. */
export const ALL_LINEAR = 'all-linear';

/** Options of PEFT that change results and are unsupported here. */
const MISSING: Readonly<Record<string, string>> = {
  useQalora: 'QA-LoRA',
  loraBias: 'bias of B',
};

/** Checks options. Throws DS_ARGUMENT for invalid values, unknown names and unsupported options. */
export function readLoraOptions(op: string, given: LoraOptions): LoraConfig {
  const rest = dropMissing(op, given);
  const options = readOptions(op, rest, namesOf.LoraOptions);
  const text = (name: keyof LoraOptions, given: unknown): string | null =>
    orNull(given, (value) => requireType(`${op} ${name}`, value, 'string'));
  const { bias = 'none', initLoraWeights = true } = options;
  const layersToTransform = layersOf(`${op} layersToTransform`, options.layersToTransform);
  const layersPattern = patternsOf(`${op} layersPattern`, options.layersPattern);
  if (layersPattern.length > 0 && layersToTransform === null) {
    throw valueError(
      `${op} layersPattern`,
      'layersToTransform with layersPattern',
      options.layersPattern,
    );
  }
  const targetParameters = listOf(`${op} targetParameters`, options.targetParameters ?? []);
  if (targetParameters.length > 0) requirePlain(op, options);
  requireOneOf(`${op} bias`, bias, BIASES);
  requireOneOf(`${op} initLoraWeights`, initLoraWeights, [true, false, 'gaussian']);
  return {
    r: requireInteger(`${op} r`, options.r ?? 8, 1),
    loraAlpha: requireFinite(`${op} loraAlpha`, options.loraAlpha ?? 8),
    loraDropout: requireFinite(`${op} loraDropout`, options.loraDropout ?? 0, 0, 1),
    bias,
    initLoraWeights,
    useRslora: options.useRslora ?? false,
    useDora: options.useDora ?? false,
    targetModules: namesOrNull(`${op} targetModules`, options.targetModules),
    targetParameters,
    excludeModules: namesOrNull(`${op} excludeModules`, options.excludeModules) ?? [],
    layersToTransform,
    layersPattern,
    rankPattern: patternOf(`${op} rankPattern`, options.rankPattern, (location, value) =>
      requireInteger(location, value, 1),
    ),
    alphaPattern: patternOf(`${op} alphaPattern`, options.alphaPattern, requireFinite),
    modulesToSave: listOf(`${op} modulesToSave`, options.modulesToSave ?? []),
    ensureWeightTying: options.ensureWeightTying ?? false,
    modulesToTie: [],
    autocastAdapterDtype: options.autocastAdapterDtype ?? true,
    fanInFanOut: options.fanInFanOut ?? null,
    baseModelNameOrPath: text('baseModelNameOrPath', options.baseModelNameOrPath),
    taskType: options.taskType === undefined ? 'CAUSAL_LM' : text('taskType', options.taskType),
  };
}

/**
 * Throws DS_ARGUMENT for options that adapters of parameters cannot have, because they do not see a
 * layer's input. PEFT refuses them too.
 */
function requirePlain(op: string, { loraDropout, useDora, fanInFanOut }: LoraOptions): void {
  const hint = 'Adapters in targetParameters update the weight, not the input of a layer.';
  const refuse = (name: string, expected: string, got: unknown): never => {
    throw argumentError(
      `${op} ${name}`,
      `${expected} with targetParameters`,
      formatValue(got),
      hint,
    );
  };
  if (loraDropout) refuse('loraDropout', '0', loraDropout);
  if (useDora) refuse('useDora', 'false', useDora);
  if (fanInFanOut) refuse('fanInFanOut', 'false', fanInFanOut);
}

function dropMissing(op: string, given: LoraOptions): LoraOptions {
  if (!isObject(given)) return given;
  const rest: Record<string, unknown> = { ...given };
  for (const [name, what] of Object.entries(MISSING)) {
    const snake = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    for (const key of [name, snake]) {
      if (rest[key] === true)
        throw valueError(`${op} ${key}`, `no ${what}, which is not supported`, true);
      if (rest[key] === false) delete rest[key];
    }
  }
  return rest as LoraOptions;
}

const orNull = <T>(value: unknown, read: (value: unknown) => T): T | null =>
  value === undefined || value === null ? null : read(value);

function listOf(op: string, value: unknown): readonly string[] {
  const isName = (item: unknown): boolean => typeof item === 'string' && item !== '';
  const isList = Array.isArray(value) && value.every(isName);
  if (isList) return value;
  throw valueError(op, 'a list of names', value);
}

function namesOrNull(op: string, value: unknown): string | readonly string[] | null {
  if (value === undefined || value === null) return null;
  return typeof value === 'string' ? value : listOf(op, value);
}

function layersOf(op: string, value: unknown): readonly number[] | null {
  if (value === undefined || value === null) return null;
  return [value].flat().map((layer) => requireInteger(op, layer, 0));
}

/** Reads layer-list names, each a regular expression. PEFT ignores "". */
function patternsOf(op: string, value: unknown): readonly string[] {
  const patterns = listOf(op, typeof value === 'string' ? [value].filter(Boolean) : (value ?? []));
  for (const pattern of patterns) expression(op, pattern);
  return patterns;
}

function patternOf(
  op: string,
  value: Readonly<Record<string, number>> | undefined,
  check: (location: string, value: unknown) => number,
): Readonly<Record<string, number>> {
  if (value !== undefined && (typeof value !== 'object' || Array.isArray(value))) {
    throw valueError(op, 'an object of numbers by name', value);
  }
  const entries = Object.entries(value ?? {});
  return Object.fromEntries(
    entries.map(([key, value]) => [key, check(`${op} ${key.slice(0, 100)}`, value)]),
  );
}

/**
 * Returns the value of the first pattern that matches the end of `name`, as in PEFT, or `fallback`.
 */
export function valueByPattern(
  name: string,
  pattern: Readonly<Record<string, number>>,
  fallback: number,
): number {
  const matching = Object.keys(pattern).find((key) =>
    expression(`pattern ${key}`, `(.*\\.)?(${key})`).matchesStart(name),
  );
  return matching === undefined ? fallback : required(pattern[matching]);
}

const compiled = new Map<string, Regex>();
/**
 * Maximum number of cached expressions. The cache exists because a model compares many names with
 * each pattern.
 */
const MAX_COMPILED = 100;

/** Compiles a regular expression for full names. Throws DS_ARGUMENT for invalid syntax. */
export function expression(op: string, text: string): Regex {
  const known = compiled.get(text);
  if (known) return known;
  try {
    const regex = new Regex(text, { isWhole: true });
    if (compiled.size >= MAX_COMPILED) compiled.clear();
    compiled.set(text, regex);
    return regex;
  } catch (cause) {
    const { message } = cause as Error;
    throw argumentError(op, 'a regular expression', message);
  }
}
