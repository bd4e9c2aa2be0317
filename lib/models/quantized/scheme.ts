// Reads the quantization_config of a config.json: packed layers, their bits, groups and layout.

import type { JsonObject, JsonValue } from '../../../types/json.js';
import { Regex } from '../../runtime/regex/regex.js';
import { errorMessage } from '../../runtime/system-error.js';
import type { ModelConfig } from '../model-config.js';

/** How the files store a layer. */
export interface LayerScheme {
  bits: 8 | 4;
  /** Inputs per scale; null if an output has one scale. */
  groupSize: number | null;
  /** Whether the files have zero points. */
  hasZeros: boolean;
}

/** How a folder stores its layers. */
export interface FolderScheme {
  /** The tool that wrote the tensors. */
  method: 'gptq' | 'awq' | 'compressed-tensors';
  /** The number that GPTQ's files subtract from a zero point before they store it. */
  zeroOffset: 0 | 1;
  /** The scheme of the layer that the files call `path`. Throws DS_CHECKPOINT if there is none. */
  schemeOf(path: string): LayerScheme;
}

/** The value of quantization_config, as ModelConfig wraps it. */
type QuantizationSection = ModelConfig;

const ONLY_HERE =
  'Folders of GPTQ (4 and 8 bits), AWQ (gemm), AutoRound, compressed-tensors and MLX open here: docs/quantization.md.';

/** Throws DS_CHECKPOINT with the key and the reason for unsupported schemes. */
export function readScheme(config: QuantizationSection): FolderScheme {
  switch (config.get('quant_method')) {
    case 'gptq':
      return readGptq(config);
    case 'awq':
      return readAwq(config);
    case 'auto-round':
    case 'intel/auto-round':
      return readAutoRound(config);
    case 'compressed-tensors':
      return readCompressed(config);
    default: {
      const expected =
        '"bitsandbytes", "mxfp4", "fp8", "modelopt", "gptq", "awq", "auto-round" or "compressed-tensors"';
      throw config.refusalError('quant_method', expected, config.get('quant_method'), ONLY_HERE);
    }
  }
}

function requireChoice(
  config: QuantizationSection,
  key: string,
  values: readonly JsonValue[],
  why: string,
): void {
  const value = config.get(key);
  if (value === null || values.includes(value)) return;
  const expected = values.map((value) => JSON.stringify(value)).join(' or ');
  throw config.refusalError(key, expected, value, why);
}

/** -1 is a step per output. */
function readGroup(
  config: QuantizationSection,
  key: string,
  fallback: JsonValue = 128,
): number | null {
  const value = config.get(key, fallback);
  if (value === -1) return null;
  if (Number.isSafeInteger(value) && Number(value) > 0 && Number(value) % 8 === 0) {
    return Number(value);
  }
  throw config.refusalError(
    key,
    '-1, or a multiple of 8',
    value,
    'A packed word must not span two groups.',
  );
}

function readBits(
  config: QuantizationSection,
  key: string,
  supported: readonly number[],
  fallback: JsonValue = null,
) {
  const value = config.get(key, fallback);
  if (supported.includes(Number(value))) return Number(value) as 8 | 4;
  const why = 'Kernels exist for codes of 4 and 8 bits only.';
  throw config.refusalError(key, supported.join(' or '), value, why);
}

/** Source: AutoGPTQ and GPTQModel. */
function readGptq(config: QuantizationSection): FolderScheme {
  const bits = readBits(config, 'bits', [4, 8]);
  const repacked = 'The weights have a kernel-specific layout instead of GPTQ: convert them back.';
  requireChoice(config, 'checkpoint_format', ['gptq', 'gptq_v2'], repacked);
  requireChoice(config, 'format', ['gptq', 'gptq_v2'], repacked);
  requireChoice(config, 'is_marlin_format', [false], repacked);
  const rules: Record<string, JsonValue> = Object(config.get('dynamic', {}));
  // A rule without values changes nothing: folders of Qwen have one for the head.
  const changes = ([rule, values]: [string, JsonValue]): boolean =>
    !rule.startsWith('-:') && Object.keys(Object(values)).length > 0;
  if (Object.entries(rules).some(changes)) {
    const why = 'Layers with different bits or groups are not supported.';
    const expected = 'rules that exclude layers ("-:...")';
    throw config.refusalError('dynamic', expected, Object.keys(rules), why);
  }
  const format = config.get('checkpoint_format', config.get('format', 'gptq'));
  const scheme = { bits, groupSize: readGroup(config, 'group_size'), hasZeros: true };
  return {
    method: 'gptq',
    zeroOffset: format === 'gptq_v2' ? 0 : 1,
    schemeOf: () => scheme,
  };
}

/** Source: AutoAWQ's gemm layout. */
function readAwq(config: QuantizationSection): FolderScheme {
  const bits = readBits(config, 'bits', [4], config.get('w_bit'));
  const why = 'Convert AWQ weights to the supported layout, "gemm" of AutoAWQ.';
  requireChoice(config, 'version', ['gemm', 'GEMM'], why);
  requireChoice(config, 'backend', ['autoawq'], why);
  const key = config.get('group_size') === null ? 'q_group_size' : 'group_size';
  const scheme = { bits, groupSize: readGroup(config, key), hasZeros: true };
  return { method: 'awq', zeroOffset: 0, schemeOf: () => scheme };
}

/**
 * The tensors of GPTQ or AWQ; extra_config has layers with other bits. Source: AutoRound's folders.
 */
function readAutoRound(config: QuantizationSection): FolderScheme {
  const why = 'The supported layouts of AutoRound are those of GPTQ and AWQ, with integers.';
  requireChoice(config, 'data_type', ['int'], why);
  const key = config.get('packing_format') === null ? 'backend' : 'packing_format';
  const format = config.get(key, 'auto_round:auto_gptq');
  const layout = /^(?:auto_round:)?(?:auto_)?(gptq|awq)(?::exllamav2)?$/.exec(String(format))?.[1];
  if (layout === undefined) {
    const expected = '"auto_round:auto_gptq" or "auto_round:auto_awq"';
    throw config.refusalError(key, expected, format, why);
  }
  const bits = layout === 'awq' ? [4] : [4, 8];
  const read = (section: QuantizationSection, own: JsonValue): LayerScheme => ({
    bits: readBits(section, 'bits', bits, own),
    groupSize: readGroup(section, 'group_size', config.get('group_size', 128)),
    hasZeros: true,
  });
  const whole = read(config, null);
  const own = config.section('extra_config');
  return {
    method: layout === 'awq' ? 'awq' : 'gptq',
    zeroOffset: layout === 'awq' ? 0 : 1,
    schemeOf: (path) => (own.has(path) ? read(own.section(path), whole.bits) : whole),
  };
}

/** An entry of config_groups. */
interface ConfigGroup {
  targets: readonly string[];
  /** Returns whether a target matches the layer. */
  fits(path: string): boolean;
  scheme: LayerScheme;
}

/** Source: compressed-tensors' QuantizationConfig. */
function readCompressed(config: QuantizationSection): FolderScheme {
  const why =
    'The supported compressed-tensors format is integer weights of 4 or 8 bits, with nothing else quantized.';
  requireChoice(config, 'format', ['pack-quantized', 'mixed-precision'], why);
  requireChoice(config, 'quantization_status', ['compressed'], 'The weights are not packed.');
  for (const key of ['kv_cache_scheme', 'transform_config'] as const) {
    const value = config.get(key);
    if (value === null || Object.keys(Object(value)).length === 0) continue;
    throw config.refusalError(key, 'nothing', value, why);
  }
  const sparsity = config.section('sparsity_config');
  requireChoice(sparsity, 'format', ['dense'], 'Sparse weights are not supported.');
  const sections = config.section('config_groups');
  const groups = sections
    .keys()
    .map((name): ConfigGroup => readGroups(sections.section(name), why));
  return {
    method: 'compressed-tensors',
    zeroOffset: 0,
    schemeOf(path) {
      const matching =
        groups.find((group) => group.fits(path)) ??
        groups.find(({ targets }) => targets.includes('Linear'));
      if (matching) return matching.scheme;
      throw config.refusalError('config_groups', `a group for ${path}`, null, why);
    },
  };
}

/** A target is a path, or "re:" and a pattern that matches from a path's start. */
function requireFitting(group: QuantizationSection, target: string): (path: string) => boolean {
  if (!target.startsWith('re:')) return (path) => path === target;
  try {
    const pattern = new Regex(target.slice('re:'.length));
    return (path) => pattern.matchesStart(path);
  } catch (cause) {
    throw group.refusalError(
      'targets',
      '"re:" and a regular expression',
      target,
      errorMessage(cause),
    );
  }
}

function readGroups(group: QuantizationSection, why: string): ConfigGroup {
  for (const key of ['input_activations', 'output_activations'] as const) {
    if (group.get(key) === null) continue;
    const reason = 'Quantized activations are not supported.';
    throw group.refusalError(key, 'nothing', group.get(key), reason);
  }
  requireChoice(group, 'format', ['pack-quantized'], why);
  const weights = group.section('weights');
  const bits = readBits(weights, 'num_bits', [4, 8]);
  requireChoice(weights, 'type', ['int'], 'FP8 and FP4 are not supported.');
  requireChoice(weights, 'strategy', ['group', 'channel'], why);
  const hasGroups = weights.get('strategy', 'group') === 'group';
  const targets = group.get('targets', []);
  if (!Array.isArray(targets) || targets.some((target) => typeof target !== 'string')) {
    throw group.refusalError('targets', 'a list of names', targets, why);
  }
  const tests = (targets as string[]).map((target) => requireFitting(group, target));
  return {
    targets: targets as string[],
    fits: (path) => tests.some((test) => test(path)),
    scheme: {
      bits,
      groupSize: hasGroups ? readGroup(weights, 'group_size') : null,
      hasZeros: !weights.flag('symmetric', true),
    },
  };
}

/** The entry of config_groups for `targets`. */
export function findGroup(
  targets: string[],
  { bits, groupSize, hasZeros }: LayerScheme,
): JsonObject {
  return {
    targets,
    weights: {
      num_bits: bits,
      type: 'int',
      symmetric: !hasZeros,
      dynamic: false,
      strategy: groupSize === null ? 'channel' : 'group',
      group_size: groupSize,
      block_structure: null,
      observer: 'minmax',
      observer_kwargs: {},
      actorder: null,
    },
    input_activations: null,
    output_activations: null,
  };
}
