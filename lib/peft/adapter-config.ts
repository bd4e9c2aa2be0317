// Reads and writes adapter_config.json of PEFT.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import { matchesPath } from '../nn/pack-linears.js';
import { sourceFolderOf } from '../nn/source-folder.js';
import { ownValue } from '../runtime/own-value.js';
import { formatJson } from '../runtime/parse-json.js';
import { ALL_LINEAR, type LoraConfig, type LoraOptions, readLoraOptions } from './lora-options.js';

/** Keys of LoraOptions by PEFT's names in snake_case. */
const OPTIONS: Readonly<Record<string, keyof LoraOptions>> = {
  r: 'r',
  lora_alpha: 'loraAlpha',
  lora_dropout: 'loraDropout',
  bias: 'bias',
  use_rslora: 'useRslora',
  use_dora: 'useDora',
  target_modules: 'targetModules',
  target_parameters: 'targetParameters',
  exclude_modules: 'excludeModules',
  layers_to_transform: 'layersToTransform',
  layers_pattern: 'layersPattern',
  rank_pattern: 'rankPattern',
  alpha_pattern: 'alphaPattern',
  modules_to_save: 'modulesToSave',
  ensure_weight_tying: 'ensureWeightTying',
  init_lora_weights: 'initLoraWeights',
  fan_in_fan_out: 'fanInFanOut',
  base_model_name_or_path: 'baseModelNameOrPath',
  task_type: 'taskType',
};

/** Keys without an effect on results. */
const IGNORED: ReadonlySet<string> = new Set([
  'peft_type',
  'peft_version',
  'auto_mapping',
  'revision',
  'inference_mode',
  'runtime_config',
  'megatron_core',
  'qalora_group_size',
  'eva_config',
]);

/** Keys that readLoraOptions() refuses with its own message. */
const PASSED: ReadonlySet<string> = new Set(['use_qalora', 'lora_bias']);

const INITIALIZATION = 'init_lora_weights';
/** Initializations that LoraOptions supports. */
const SUPPORTED_INITIALIZATIONS: readonly unknown[] = [true, false, 'gaussian'];
/**
 * Other initializations of PEFT that change only A and B, so that the weight file has their values.
 */
const STORED_INITIALIZATIONS: readonly unknown[] = ['eva', 'orthogonal'];

/**
 * Reads LoRA options from a file. Throws DS_CHECKPOINT for other methods and for unsupported
 * features, with the key.
 */
export function parseAdapterConfig(path: string, config: JsonObject): LoraConfig {
  const refuse = (key: string, expected: string, hint = ''): never => {
    const got = formatJson(config[key]);
    throw new DsError({ code: 'DS_CHECKPOINT', op: `${path}: ${key}`, expected, got, hint });
  };
  if (config.peft_type !== 'LORA') refuse('peft_type', '"LORA"');
  const options: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(config)) {
    const name = PASSED.has(key) ? key : ownValue(OPTIONS, key);
    if (name === undefined) {
      if (!IGNORED.has(key) && !isNothing(value)) refuse(key, 'no value: the key is not supported');
    } else if (value !== null) options[name] = value;
  }
  const initialization = gaussianOf(options.initLoraWeights ?? true);
  if (SUPPORTED_INITIALIZATIONS.includes(initialization)) options.initLoraWeights = initialization;
  else if (STORED_INITIALIZATIONS.includes(initialization)) delete options.initLoraWeights;
  else if (changesBase(initialization)) {
    refuse(INITIALIZATION, 'an initialization that kept the base weights', RESIDUAL);
  } else refuse(INITIALIZATION, KNOWN_INITIALIZATIONS, UNKNOWN);
  try {
    return readLoraOptions(path, options as LoraOptions);
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    const { op, expected, got } = error;
    throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got });
  }
}

/** Initializations of PEFT that change the base weights. */
const RESIDUAL_INITIALIZATIONS = ['pissa', 'pissa_niter_N', 'olora', 'corda', 'loftq', 'lora_ga'];

const changesBase = (initialization: unknown): boolean =>
  typeof initialization === 'string' &&
  RESIDUAL_INITIALIZATIONS.includes(
    initialization.toLowerCase().replace(/^(pissa_niter_)\d+$/, '$1N'),
  );

const KNOWN_INITIALIZATIONS = [...SUPPORTED_INITIALIZATIONS, ...STORED_INITIALIZATIONS]
  .map((value) => JSON.stringify(value))
  .join(', ');

const UNKNOWN = `PEFT never writes this value. Adapters of ${RESIDUAL_INITIALIZATIONS.join(', ')} need a conversion by PEFT.`;

/** Normalizes the case of "gaussian", as PEFT does. */
const gaussianOf = (initialization: unknown): unknown =>
  typeof initialization === 'string' && initialization.toLowerCase() === 'gaussian'
    ? 'gaussian'
    : initialization;

/** The hint for an adapter with an initialization that changed the base weights. */
const RESIDUAL = `Such an adapter changed the base weights when it began. Save it with PEFT's save_pretrained(path_initial_model_for_weight_conversion=...). If you saved the changed base model, write "${INITIALIZATION}": true.`;

const isNothing = (value: JsonValue | undefined): boolean =>
  value === undefined ||
  value === null ||
  value === false ||
  (typeof value === 'object' && Object.keys(value).length === 0);

/** Returns the base model's name: the option, or else the folder of the model, as in PEFT. */
export const baseNameOf = (model: Module, { baseModelNameOrPath }: LoraConfig): string | null =>
  baseModelNameOrPath ?? sourceFolderOf(model);

/** Returns the file's contents; `targets` are the names of the modules with an adapter. */
export function adapterConfigOf(
  model: Module,
  config: LoraConfig,
  targets: readonly string[],
): JsonObject {
  const transposed = new Set(model.describe()?.transposed);
  const isTransposed = targets.some((name) => transposed.has(`${name}.weight`));
  return {
    peft_type: 'LORA',
    task_type: config.taskType,
    auto_mapping: null,
    base_model_name_or_path: baseNameOf(model, config),
    revision: null,
    inference_mode: true,
    r: config.r,
    lora_alpha: config.loraAlpha,
    lora_dropout: config.loraDropout,
    bias: config.bias,
    fan_in_fan_out: config.fanInFanOut ?? isTransposed,
    init_lora_weights: config.initLoraWeights,
    use_rslora: config.useRslora,
    use_dora: config.useDora,
    ...targetsOf(model, config, targets),
    target_parameters: listOrNull(config.targetParameters),
    exclude_modules: listOrNull(config.excludeModules),
    rank_pattern: { ...config.rankPattern },
    alpha_pattern: { ...config.alphaPattern },
    modules_to_save: listOrNull(config.modulesToSave),
    ...(config.ensureWeightTying && { ensure_weight_tying: true }),
    layer_replication: null,
    megatron_config: null,
    megatron_core: 'megatron.core',
    loftq_config: {},
  };
}

/**
 * Returns the keys that select modules. PEFT refuses layers together with an expression, and
 * "all-linear" depends on the version of transformers. In both cases this writes module names
 * instead.
 */
function targetsOf(model: Module, config: LoraConfig, targets: readonly string[]): JsonObject {
  const { targetModules: requested, layersToTransform, layersPattern } = config;
  const isAll = typeof requested === 'string' && requested.toLowerCase() === ALL_LINEAR;
  if (isAll || (typeof requested === 'string' && layersToTransform !== null)) {
    return {
      target_modules: shortest(model, targets),
      layers_to_transform: null,
      layers_pattern: null,
    };
  }
  return {
    target_modules: typeof requested === 'string' ? requested : [...(requested ?? endsOf(targets))],
    layers_to_transform: layersToTransform && [...layersToTransform],
    layers_pattern: listOrNull(layersPattern),
  };
}

/**
 * Returns the last name components if they match only the targets, as PEFT does; else full names.
 */
function shortest(model: Module, targets: readonly string[]): string[] {
  const ends = endsOf(targets);
  const targetNames = new Set(targets);
  const named = [...model.namedModules()].filter(([name]) => matchesPath(name, ends));
  return named.every(([name]) => targetNames.has(name)) ? ends : [...targets];
}

const endsOf = (targets: readonly string[]): string[] => [
  ...new Set(targets.map((name) => name.slice(name.lastIndexOf('.') + 1))),
];

function listOrNull(value: string | readonly string[]): JsonValue {
  if (typeof value === 'string') return value;
  return value.length > 0 ? [...value] : null;
}
