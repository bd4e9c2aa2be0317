// adapter_config.json: LoRA's options under PEFT's names.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import { type LoraConfig, type LoraOptions, readLoraOptions } from './lora-options.js';

/** Keys that are options here; their names are PEFT's in snake_case. */
const OPTIONS: Readonly<Record<string, keyof LoraOptions>> = {
  r: 'r',
  lora_alpha: 'loraAlpha',
  lora_dropout: 'loraDropout',
  bias: 'bias',
  use_rslora: 'useRslora',
  use_dora: 'useDora',
  target_modules: 'targetModules',
  exclude_modules: 'excludeModules',
  layers_to_transform: 'layersToTransform',
  layers_pattern: 'layersPattern',
  rank_pattern: 'rankPattern',
  alpha_pattern: 'alphaPattern',
  modules_to_save: 'modulesToSave',
  init_lora_weights: 'initLoraWeights',
  fan_in_fan_out: 'fanInFanOut',
  base_model_name_or_path: 'baseModelNameOrPath',
  task_type: 'taskType',
};

/** Keys that say nothing of what is computed. */
const IGNORED: ReadonlySet<string> = new Set([
  ...['peft_type', 'peft_version', 'auto_mapping', 'revision', 'inference_mode', 'runtime_config'],
  ...['megatron_core', 'ensure_weight_tying', 'qalora_group_size'],
]);

/** Keys of what is refused by its own name. */
const PASSED: ReadonlySet<string> = new Set(['use_qalora', 'lora_bias']);

/** Ways to begin that leave A and B alone once they are read from a file. */
const BEGINNINGS: ReadonlySet<unknown> = new Set([true, false, 'gaussian']);

/**
 * The options in a file. Throws DS_CHECKPOINT for another method and for what is not built, by
 * name.
 */
export function parseAdapterConfig(path: string, config: JsonObject): LoraConfig {
  const refuse = (key: string, expected: string): never => {
    const got = JSON.stringify(config[key]) ?? 'nothing';
    throw new DsError({ code: 'DS_CHECKPOINT', op: `${path}: ${key}`, expected, got });
  };
  if (config.peft_type !== 'LORA') refuse('peft_type', '"LORA"');
  const options: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(config)) {
    const name = PASSED.has(key) ? key : OPTIONS[key];
    if (name === undefined) {
      if (!IGNORED.has(key) && !isNothing(value)) refuse(key, 'nothing: it is not there');
    } else if (value !== null) options[name] = value;
  }
  // How A and B were made once: their values come from the file.
  if (!BEGINNINGS.has(options.initLoraWeights)) delete options.initLoraWeights;
  try {
    return readLoraOptions(path, options as LoraOptions);
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    const { op, expected, got } = error;
    throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got });
  }
}

const isNothing = (value: JsonValue | undefined): boolean =>
  value === undefined ||
  value === null ||
  value === false ||
  (typeof value === 'object' && Object.keys(value).length === 0);

/** What PEFT reads; `targets` are the names of the modules that have an adapter. */
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
    base_model_name_or_path: config.baseModelNameOrPath,
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
    target_modules: targetsOf(config, targets),
    exclude_modules: listOrNull(config.excludeModules),
    layers_to_transform: config.layersToTransform && [...config.layersToTransform],
    layers_pattern: listOrNull(config.layersPattern),
    rank_pattern: { ...config.rankPattern },
    alpha_pattern: { ...config.alphaPattern },
    modules_to_save: listOrNull(config.modulesToSave),
    layer_replication: null,
    megatron_config: null,
    megatron_core: 'megatron.core',
    loftq_config: {},
  };
}

/** Default targets by the ends of their names, as PEFT writes them. */
function targetsOf({ targetModules }: LoraConfig, targets: readonly string[]): JsonValue {
  if (typeof targetModules === 'string') return targetModules;
  if (targetModules) return [...targetModules];
  return [...new Set(targets.map((name) => name.slice(name.lastIndexOf('.') + 1)))];
}

function listOrNull(value: string | readonly string[]): JsonValue {
  if (typeof value === 'string') return value;
  return value.length > 0 ? [...value] : null;
}
