// addWeightedAdapter(): adds an adapter that combines other adapters. Source: PEFT's
// add_weighted_adapter.

import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { isPlainObject } from '../runtime/is-object.js';
import * as kernels from '../runtime/kernels.generated.js';
import { readOptions } from '../runtime/options.js';
import { requireFinite } from '../runtime/require-number.js';
import { requireNoSurplus, requireOneOf } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { cast, concat, noGrad, scope, type Tensor, zerosLike } from '../tensor/index.js';
import { markChanged } from '../tensor/tape.js';
import { type AdapterSet, adapterSet, addSet, requireName } from './adapter-sets.js';
import { LoraEmbedding, type LoraLayer, LoraLinear } from './lora-layer.js';

const COMBINATIONS = ['linear', 'cat'] as const;

/** Options of addWeightedAdapter(). */
export interface WeightedAdapterOptions {
  /**
   * "linear": A and B are weighted sums, for adapters of one rank. "cat": the update is the
   * weighted sum of the updates, and the rank the sum of the ranks. Default: "linear".
   */
  combinationType?: (typeof COMBINATIONS)[number];
}

/** An adapter of one layer and its weight. */
interface Part {
  readonly layer: LoraLayer;
  readonly weight: number;
}

/**
 * Adds the adapter `name`, a combination of others by their weights, such as { sql: 0.7, law: 0.3
 * }. Activate it with setAdapter(). Weights may be negative. Returns the model. Throws DS_ARGUMENT
 * for unknown names, DoRA, adapters of experts, and different ranks with "linear".
 */
export function addWeightedAdapter<Model extends Module>(
  model: Model,
  weights: Readonly<Record<string, number>>,
  name: string,
  options?: WeightedAdapterOptions,
): Model;
export function addWeightedAdapter<Model extends Module>(
  model: Model,
  weights: Readonly<Record<string, number>>,
  name: string,
  given: WeightedAdapterOptions = {},
  ...surplus: readonly unknown[]
): Model {
  const op = 'addWeightedAdapter';
  requireNoSurplus(op, surplus);
  const { combinationType = 'linear' } = readOptions(op, given, { combinationType: true });
  requireOneOf(`${op} combinationType`, combinationType, COMBINATIONS);
  if (!isPlainObject(weights) || Object.keys(weights).length === 0) {
    throw valueError(`${op} weights`, 'an object of numbers by the names of adapters', weights);
  }
  for (const [name, weight] of Object.entries(weights)) {
    requireFinite(`${op} weights.${name}`, weight);
  }
  const adapters = Object.keys(weights);
  requireName(op, name);
  const sets = adapters.map((adapter) => adapterSet(op, model, adapter));
  const parts = partsOf(op, sets, Object.values(weights));
  const ranks = sets.map(rankOf);
  const isLinear = combinationType === 'linear' || sets.length === 1;
  if (isLinear) requireOneRank(op, adapters, ranks, parts);
  const r = isLinear ? Math.max(...ranks) : ranks.reduce((sum, rank) => sum + rank, 0);
  addSet(op, model, name, {
    ...required(sets[0]).config,
    r,
    loraAlpha: r,
    useRslora: false,
    rankPattern: {},
    alphaPattern: {},
    targetModules: [...parts.keys()],
    excludeModules: [],
    layersToTransform: null,
    layersPattern: [],
  });
  const combined = isLinear ? sumOf : concatenate;
  for (const [path, layer] of adapterSet(op, model, name).layers) {
    noGrad(() => scope(() => fill(layer, combined(required(parts.get(path))))));
  }
  return model;
}

const rankOf = ({ layers }: AdapterSet): number =>
  Math.max(...Array.from(layers.values(), ({ sizes }) => sizes.r));

function partsOf(
  op: string,
  sets: readonly AdapterSet[],
  weights: readonly number[],
): Map<string, Part[]> {
  const parts = new Map<string, Part[]>();
  for (const [i, { layers, config }] of sets.entries()) {
    if (config.useDora) throw argumentError(op, 'adapters without DoRA', 'DoRA');
    for (const [path, layer] of layers) {
      if (!(layer instanceof LoraLinear || layer instanceof LoraEmbedding)) {
        throw argumentError(op, 'adapters of linear layers and embeddings', path);
      }
      parts.set(path, [...(parts.get(path) ?? []), { layer, weight: required(weights[i]) }]);
    }
  }
  return parts;
}

function requireOneRank(
  op: string,
  names: readonly string[],
  ranks: readonly number[],
  parts: ReadonlyMap<string, readonly Part[]>,
): void {
  const isOne = Array.from(parts.values()).every((ownParts) =>
    ownParts.every(({ layer }) => layer.sizes.r === ranks[0]),
  );
  if (isOne && ranks.every((rank) => rank === ranks[0])) return;
  const got = names.map((name, i) => `${formatValue(name)} of rank ${ranks[i]}`).join(', ');
  throw argumentError(
    op,
    'adapters of one rank',
    got,
    'combinationType "cat" takes different ranks.',
  );
}

/** A and B of a layer in f32. */
type Factors = readonly [a: Tensor, b: Tensor];

const factorsOf = ({ layer }: Part): Factors => {
  const [a, b] = layer.factors.map((factor) => cast(factor, 'f32'));
  return [required(a), required(b)];
};

/** Returns the combination: the square root of a weight scales A and B, and its sign scales A. */
function sumOf(parts: readonly Part[]): Factors {
  const terms = parts.map((part) => {
    const factor = part.weight * part.layer.sizes.scaling;
    const root = Math.sqrt(Math.abs(factor));
    const [a, b] = factorsOf(part);
    return [a.mul(factor < 0 ? -root : root), b.mul(root)] as const;
  });
  const sum = (list: Tensor[]): Tensor => list.reduce((all, tensor) => all.add(tensor));
  return [sum(terms.map(([a]) => a)), sum(terms.map(([, b]) => b))];
}

function concatenate(parts: readonly Part[]): Factors {
  const all = parts.map((part) => {
    const [a, b] = factorsOf(part);
    return [a.mul(part.weight * part.layer.sizes.scaling), b] as const;
  });
  return [
    concat(
      all.map(([a]) => a),
      0,
    ),
    concat(
      all.map(([, b]) => b),
      1,
    ),
  ];
}

/** Writes A [rows, ..] and B [.., rows] into the factors of a layer; the remaining ranks are 0. */
function fill({ factors }: LoraLayer, [a, b]: Factors): void {
  for (const [i, values] of [a, b].entries()) {
    const parameter: Parameter = required(factors[i]);
    const count = values.size(i);
    void parameter.buffer;
    kernels.copy({ in: zerosLike(parameter), out: parameter });
    kernels.copy({ in: values, out: parameter.narrow(i, 0, count) });
    markChanged(parameter);
  }
}
