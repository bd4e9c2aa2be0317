// Selects the modules with an adapter by PEFT's rules.

import type { DsError } from '../errors.js';
import { Embedding } from '../nn/embedding.js';
import { Experts } from '../nn/experts.js';
import { Linear } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { HEADS, matchesPath, READ_DIRECTLY } from '../nn/pack-linears.js';
import { PackedLinear } from '../nn/packed-linear.js';
import { argumentError } from '../runtime/input-errors.js';
import { ownValue } from '../runtime/own-value.js';
import { type AnyExperts, EXPERT_MATRICES, type ExpertMatrix } from './lora-experts.js';
import { ALL_LINEAR, expression, type LoraConfig } from './lora-options.js';
import { NF4Experts } from './nf4-experts.js';

/**
 * Projections of latent attention to queries, keys and values. PEFT has no default for it; this is
 * the equivalent of its other defaults.
 */
const LATENT = ['q_proj', 'q_b_proj', 'kv_b_proj'];
/**
 * Modules of state space layers. In a model with only such layers, LoRA adapts the first of these
 * modules.
 */
const STATE_SPACE = ['in_proj', 'conv1d'];

/** PEFT's default targets by the model_type of config.json. */
const FAMILIES: Readonly<Record<string, readonly string[]>> = {
  baichuan: ['W_pack'],
  bailing_moe: ['query_key_value'],
  bert: ['query', 'value'],
  bloom: ['query_key_value'],
  'deberta-v2': ['query_proj', 'value_proj'],
  distilbert: ['q_lin', 'v_lin'],
  electra: ['query', 'value'],
  falcon: ['query_key_value'],
  gpt2: ['c_attn'],
  gpt_bigcode: ['c_attn'],
  gpt_neox: ['query_key_value'],
  modernbert: ['Wqkv'],
  mpt: ['Wqkv'],
  phi: ['q_proj', 'v_proj', 'fc1', 'fc2'],
  internlm2: ['wqkv'],
  phi3: ['qkv_proj'],
  qwen: ['c_attn'],
  roberta: ['query', 'value'],
  'xlm-roberta': ['query', 'value'],
};

/** The default targets of all other models of Hugging Face with these projections. */
const PROJECTIONS = ['q_proj', 'v_proj'];

const SHOWN = 12;
/** Maximum number of characters of a name in an error. */
const SHOWN_LENGTH = 100;

/** transformers' name of the first matrix of experts without a gate. */
const UP = 'up_proj';

const lastOf = (name: string): string => name.slice(name.lastIndexOf('.') + 1);

const isProjection = (module: Module): module is Linear | PackedLinear =>
  module instanceof Linear || module instanceof PackedLinear;

/** Experts with adapters of these matrices. */
interface TargetExperts {
  experts: AnyExperts;
  matrices: readonly ExpertMatrix[];
}

/**
 * Returns the experts with adapters by path, and the names of their matrices. Throws
 * DS_ARGUMENT for a name that is no matrix of experts.
 */
export function findExperts(model: Module, config: LoraConfig): Map<string, TargetExperts> {
  const experts = new Map<string, TargetExperts>();
  const unmatched = new Set(config.targetParameters);
  for (const [path, module] of model.namedModules()) {
    if (!(module instanceof Experts || module instanceof NF4Experts)) continue;
    for (const matrix of EXPERT_MATRICES) {
      const own = matrix === 'gate_up_proj' && module.activation === 'relu2' ? UP : matrix;
      const names = config.targetParameters.filter((parameter) =>
        [matrix, own].some((name) => matchesPath(`${path}.${name}`, [parameter])),
      );
      if (names.length === 0) continue;
      const matrices = [...(experts.get(path)?.matrices ?? []), matrix];
      experts.set(path, { experts: module, matrices });
      for (const name of names) unmatched.delete(name);
    }
  }
  for (const name of unmatched) throw noMatrixError(model, name);
  return experts;
}

function noMatrixError(model: Module, name: string): DsError {
  const isThere = [...model.namedParameters()].some(([path]) => matchesPath(path, [name]));
  return argumentError(
    'addLora targetParameters',
    'matrices of experts, such as "mlp.experts.gate_up_proj"',
    isThere
      ? `${formatSome([name])}, another parameter`
      : `${formatSome([name])}, which matches no parameter`,
    isThere ? 'targetModules adapts linear layers and embeddings.' : '',
  );
}

/**
 * Returns the target modules by path. Throws DS_ARGUMENT if no module matches, if a matching module
 * is neither linear nor an embedding, and if the model's family has no default.
 */
export function findTargets(model: Module, config: LoraConfig): Map<string, Module> {
  const { targetModules, targetParameters } = config;
  if (targetModules?.length === 0 && targetParameters.length > 0) return new Map();
  const requested = targetModules ?? defaultsOf(model);
  const named = [...model.namedModules()].filter(([name]) => name !== '');
  const targets = new Map(
    named.filter(
      ([name, module]) =>
        isWanted(name, module, requested) &&
        !isNamed(name, config.excludeModules) &&
        !isInside(name, wholeModules(config)) &&
        (isExactly(name, requested) || isInLayers(name, config)),
    ),
  );
  if (targets.size === 0) throw noTargetsError(requested, config, named);
  for (const [name, module] of targets) requireAdaptable(name, module);
  return targets;
}

function defaultsOf(model: Module): readonly string[] {
  const family = model.describe()?.config.model_type;
  const known = typeof family === 'string' ? ownValue(FAMILIES, family) : undefined;
  if (known) return known;
  const names = new Set([...model.namedModules()].map(([name]) => lastOf(name)));
  if (typeof family === 'string' && names.has('kv_b_proj')) return LATENT;
  if (typeof family === 'string' && PROJECTIONS.every((projection) => names.has(projection)))
    return PROJECTIONS;
  if (typeof family === 'string' && STATE_SPACE.every((name) => names.has(name)))
    return ['in_proj'];
  throw argumentError(
    'addLora targetModules',
    'names of modules, because the family of the model is unknown',
    'nothing',
    'For example ["q_proj", "v_proj"], or "all-linear".',
  );
}

function isWanted(name: string, module: Module, requested: string | readonly string[]): boolean {
  if (typeof requested === 'string' && requested.toLowerCase() === ALL_LINEAR) {
    return isProjection(module) && !HEADS.includes(lastOf(name));
  }
  return isNamed(name, requested);
}

/**
 * Returns whether a name is listed in full. PEFT checks the layer index only for names that match
 * by their end.
 */
const isExactly = (name: string, requested: string | readonly string[]): boolean =>
  typeof requested !== 'string' && requested.includes(name);

/**
 * Returns whether a module is inside a module that is trained whole, and so gets no adapter.
 * Entries match any name component.
 */
const isInside = (name: string, modulesToSave: readonly string[]): boolean =>
  modulesToSave.some((text) => `.${name}.`.includes(`.${text}.`));

/**
 * Returns whether a name is wanted: by a list of names or last parts, or by an expression of full
 * names.
 */
function isNamed(name: string, requested: string | readonly string[]): boolean {
  if (typeof requested === 'string')
    return expression('addLora targetModules', requested).matchesStart(name);
  return matchesPath(name, requested);
}

/** Returns names and name endings of modules that are trained whole. */
export const wholeModules = ({ modulesToSave, modulesToTie }: LoraConfig): readonly string[] => [
  ...modulesToSave,
  ...modulesToTie,
];

/**
 * Returns whether a module is trained whole. Compares the ends of path strings as PEFT does: "norm"
 * also matches "input_layernorm".
 */
export const isSavedWhole = (path: string, modulesToSave: readonly string[]): boolean =>
  modulesToSave.some((text) => path.endsWith(text));

function isInLayers(name: string, { layersToTransform, layersPattern }: LoraConfig): boolean {
  if (layersToTransform === null || layersToTransform.length === 0) return true;
  const lists = layersPattern.length > 0 ? layersPattern : ['[^.]*'];
  for (const list of lists) {
    const before = expression('addLora layersPattern', `.*\\.(?:${list})`);
    for (const { 0: number, index } of `.${name}`.matchAll(/\.\d+(?=\.)/g)) {
      if (!before.matchesStart(`.${name}`.slice(0, index))) continue;
      return layersToTransform.includes(Number(number.slice(1)));
    }
  }
  return false;
}

function requireAdaptable(name: string, module: Module): void {
  const isDirect = READ_DIRECTLY.includes(lastOf(name));
  if (!isDirect && (isProjection(module) || module instanceof Embedding)) return;
  throw argumentError(
    `addLora targetModules, ${name}`,
    'a Linear or an Embedding that the model calls',
    isDirect
      ? 'a module with a weight that the model reads directly'
      : `a ${module.constructor.name}`,
    `modulesToSave: ["${lastOf(name)}"] trains it whole.`,
  );
}

function noTargetsError(
  requested: string | readonly string[],
  { layersToTransform }: LoraConfig,
  named: readonly [string, Module][],
): DsError {
  const linear = named.filter(([, module]) => isProjection(module)).map(([name]) => lastOf(name));
  const layers = layersToTransform?.length ? ` in layers ${formatSome(layersToTransform)}` : '';
  const isWhole = typeof requested === 'string';
  const called = isWhole
    ? `with full names that match ${formatSome([requested])}`
    : `named ${formatSome(requested)}`;
  const byEnd = isWhole ? ' A list matches the ends of names: ["q_proj"].' : '';
  return argumentError(
    'addLora targetModules',
    `modules ${called}${layers}`,
    'no such module',
    `Its linear layers are ${formatSome([...new Set(linear)])}.${byEnd}`,
  );
}

/** Returns the first items as text, each in bounded length: a file may have any length. */
function formatSome(items: readonly (string | number)[]): string {
  const shown = items.slice(0, SHOWN).map((item) => {
    const text = String(item);
    return text.length > SHOWN_LENGTH ? `${text.slice(0, SHOWN_LENGTH)}...` : text;
  });
  return shown.join(', ') + (items.length > SHOWN ? ', ...' : '');
}
