// Adds the compression techniques of a configuration to the layers of a model.

import { DsError } from '../errors.js';
import type { Embedding } from '../nn/embedding.js';
import { Linear } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { replaceModules } from '../nn/replace-modules.js';
import { argumentError } from '../runtime/input-errors.js';
import { CompressedEmbedding, CompressedLinear, StepClock } from './compressed-layers.js';
import { requireRelated } from './cut-layers.js';
import { findLayers, type LayerGroup } from './find-layers.js';
import { headPruning, rowPruning, sparsePruning } from './pruning.js';
import { activationQuantization, weightQuantization } from './quantization.js';
import { requireGroups } from './quantizers.js';
import type { CompressionSection } from './technique.js';

/** State of a compressed model. */
export interface Compression {
  /** The configuration of all techniques. */
  readonly section: CompressionSection;
  /** The step counter of its layers. */
  readonly clock: StepClock;
  /** The layers with techniques, by name. */
  readonly layers: ReadonlyMap<string, CompressedLinear | CompressedEmbedding>;
}

const compressions = new WeakMap<Module, Compression>();

/** The compression state of `model`, or null. */
export const compressionOf = (model: Module): Compression | null => compressions.get(model) ?? null;

/** Removes the compression state: `model` has its own layers again. */
export function forgetCompression(model: Module): void {
  compressions.delete(model);
}

/** Whether the section enables any technique. */
export const isOn = (section: CompressionSection): boolean =>
  section.layer_reduction.enabled || hasTechniques(section);

/** Returns whether any technique on layers is on. */
export function hasTechniques({ layer_reduction: _, ...techniques }: CompressionSection): boolean {
  return Object.values(techniques).some(({ shared_parameters: { enabled } }) => enabled);
}

type Layer = CompressedLinear | CompressedEmbedding;

/** An active technique: its layers, and the function that adds it to one of them. */
interface Work {
  readonly group: LayerGroup;
  make(layer: Layer, name: string): void;
}

/**
 * Replaces layers of `model` by compressed ones, technique by technique. Before any change it
 * throws
 *
 * 1. DS_CONFIG for groups that do not match the model;
 * 2. DS_CONFIG for related_modules that do not fit each other;
 * 3. DS_ARGUMENT for related layers with tied weights;
 * 4. DS_SHAPE for numbers that do not fit a layer.
 */
export function compress(model: Module, section: CompressionSection): void {
  const clock = new StepClock();
  const layers = new Map<string, Layer>();
  const instead = new Map<Module, Module>();
  for (const works of worksOf(section)) {
    const found = findLayers(
      model,
      works.map(({ group }) => group),
    );
    for (const { group, make } of works) {
      for (const [name, base] of found.get(group) ?? []) {
        const layer = layers.get(name) ?? layerFor(base, clock);
        make(layer, name);
        layers.set(name, layer);
        instead.set(base, layer);
      }
    }
  }
  requireRelated(model, { section, layers });
  replaceModules(model, instead);
  compressions.set(model, { section, clock, layers });
}

const layerFor = (base: Linear | Embedding, clock: StepClock): Layer =>
  base instanceof Linear ? new CompressedLinear(base, clock) : new CompressedEmbedding(base, clock);

/**
 * The works by technique, in the order of their effect. Source: the forward of
 * LinearLayer_Compress.
 */
function worksOf(section: CompressionSection): Work[][] {
  const { weight_quantization: weights, activation_quantization: inputs } = section;
  const { sparse_pruning: sparse, row_pruning: rows, head_pruning: heads } = section;
  return [
    worksIn('weight_quantization', weights, (layer, name, params) => {
      const { shared_parameters: shared } = weights;
      const groups = groupsFor(layer, shared);
      requireGroups(`initCompression ${name}`, layer.weight, groups);
      layer.add(weightQuantization({ name, groups }, shared, params));
    }),
    worksIn('sparse_pruning', sparse, (layer, name, params) => {
      const ownLinear = asLinear(layer, name);
      ownLinear.add(sparsePruning(ownLinear, sparse.shared_parameters, params));
    }),
    worksIn('row_pruning', rows, (layer, name, params) => {
      const ownLinear = asLinear(layer, name);
      ownLinear.add(rowPruning(ownLinear, rows.shared_parameters, params));
    }),
    worksIn('head_pruning', heads, (layer, name, params) => {
      const ownLinear = asLinear(layer, name);
      ownLinear.add(headPruning(ownLinear, heads.shared_parameters, params));
    }),
    worksIn('activation_quantization', inputs, (layer, name, params) => {
      asLinear(layer, name).inputs = activationQuantization(inputs.shared_parameters, params);
    }),
  ];
}

interface TechniqueSection<Params> {
  readonly shared_parameters: { readonly enabled: boolean };
  readonly different_groups: {
    readonly [name: string]: { readonly params: Params; readonly modules: LayerGroup['modules'] };
  };
}

function worksIn<Params>(
  technique: string,
  { shared_parameters: shared, different_groups: groups }: TechniqueSection<Params>,
  make: (layer: Layer, name: string, params: Params) => void,
): Work[] {
  if (!shared.enabled) return [];
  return Object.entries(groups).map(([name, { modules, params }]) => ({
    group: { path: `compression_training.${technique}.different_groups.${name}`, modules },
    make: (layer, path) => make(layer, path, params),
  }));
}

/** In forward an embedding has one step per row. Source: DeepSpeed's Embedding_Compress. */
function groupsFor(
  layer: Layer,
  shared: CompressionSection['weight_quantization']['shared_parameters'],
): number {
  const byRow = shared.quantize_weight_in_forward && layer instanceof CompressedEmbedding;
  return byRow ? layer.weight.size(0) : shared.quantize_groups;
}

function asLinear(layer: Layer, name: string): CompressedLinear {
  if (layer instanceof CompressedLinear) return layer;
  throw new DsError({
    code: 'DS_CONFIG',
    op: `compression_training, ${name}`,
    expected: 'a linear layer, because embeddings support only weight quantization',
    got: `a ${layer.base.constructor.name}`,
    hint: 'Change the expressions in modules so that they exclude this layer.',
  });
}

/** Throws DS_ARGUMENT if the model is already compressed. */
export function requireUncompressed(model: Module): void {
  if (!compressions.has(model)) return;
  throw argumentError(
    'initCompression',
    'a model without compression',
    'a model with compression',
    'Call redundancyClean() first, or pass an uncompressed model.',
  );
}
