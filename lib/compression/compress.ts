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
import { createHeadPruning, createRowPruning, createSparsePruning } from './pruning.js';
import { createActivationQuantization, createWeightQuantization } from './quantization.js';
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

/** Returns the compression state of `model`, or null. */
export const compressionOf = (model: Module): Compression | null => compressions.get(model) ?? null;

/** Removes the compression state. The caller has restored the plain layers. */
export function forgetCompression(model: Module): void {
  compressions.delete(model);
}

/** Returns whether the section enables any technique or layer reduction. */
export const isCompressionEnabled = (section: CompressionSection): boolean =>
  section.layer_reduction.enabled || hasTechniques(section);

/** Returns whether any technique on layers is enabled. */
export function hasTechniques({ layer_reduction: _, ...techniques }: CompressionSection): boolean {
  return Object.values(techniques).some(({ shared_parameters: { enabled } }) => enabled);
}

type Layer = CompressedLinear | CompressedEmbedding;

/**
 * A group of an enabled technique: its layers, and the function that adds the technique to one
 * layer.
 */
interface TechniqueWork {
  readonly group: LayerGroup;
  make(layer: Layer, name: string): void;
}

/**
 * Replaces layers of `model` by compressed layers, technique by technique. Throws, before any
 * change:
 *
 * 1. DS_CONFIG for groups that do not match the model;
 * 2. DS_CONFIG for related_modules that do not fit each other;
 * 3. DS_ARGUMENT for related layers with tied weights;
 * 4. DS_SHAPE for numbers that do not fit a layer.
 */
export function compress(model: Module, section: CompressionSection): void {
  const clock = new StepClock();
  const layers = new Map<string, Layer>();
  const replacements = new Map<Module, Module>();
  for (const works of listWorks(section)) {
    const layersOfGroups = findLayers(
      model,
      works.map(({ group }) => group),
    );
    for (const { group, make } of works) {
      for (const [name, base] of layersOfGroups.get(group) ?? []) {
        const layer = layers.get(name) ?? createLayer(base, clock);
        make(layer, name);
        layers.set(name, layer);
        replacements.set(base, layer);
      }
    }
  }
  requireRelated(model, { section, layers });
  replaceModules(model, replacements);
  compressions.set(model, { section, clock, layers });
}

const createLayer = (base: Linear | Embedding, clock: StepClock): Layer =>
  base instanceof Linear ? new CompressedLinear(base, clock) : new CompressedEmbedding(base, clock);

/**
 * Returns the groups by technique, in the order in which LinearLayer_Compress's forward applies
 * them.
 */
function listWorks(section: CompressionSection): TechniqueWork[][] {
  const { weight_quantization: weights, activation_quantization: inputs } = section;
  const { sparse_pruning: sparse, row_pruning: rows, head_pruning: heads } = section;
  return [
    listTechniqueWorks('weight_quantization', weights, (layer, name, params) => {
      const { shared_parameters: shared } = weights;
      const groups = countGroups(layer, shared);
      requireGroups(`initCompression ${name}`, layer.weight, groups);
      layer.add(createWeightQuantization({ name, groups }, shared, params));
    }),
    listTechniqueWorks('sparse_pruning', sparse, (layer, name, params) => {
      const ownLinear = requireLinear(layer, name);
      ownLinear.add(createSparsePruning(ownLinear, sparse.shared_parameters, params));
    }),
    listTechniqueWorks('row_pruning', rows, (layer, name, params) => {
      const ownLinear = requireLinear(layer, name);
      ownLinear.add(createRowPruning(ownLinear, rows.shared_parameters, params));
    }),
    listTechniqueWorks('head_pruning', heads, (layer, name, params) => {
      const ownLinear = requireLinear(layer, name);
      ownLinear.add(createHeadPruning(ownLinear, heads.shared_parameters, params));
    }),
    listTechniqueWorks('activation_quantization', inputs, (layer, name, params) => {
      requireLinear(layer, name).inputs = createActivationQuantization(
        inputs.shared_parameters,
        params,
      );
    }),
  ];
}

interface TechniqueSection<Params> {
  readonly shared_parameters: { readonly enabled: boolean };
  readonly different_groups: {
    readonly [name: string]: { readonly params: Params; readonly modules: LayerGroup['modules'] };
  };
}

function listTechniqueWorks<Params>(
  technique: string,
  { shared_parameters: shared, different_groups: groups }: TechniqueSection<Params>,
  make: (layer: Layer, name: string, params: Params) => void,
): TechniqueWork[] {
  if (!shared.enabled) return [];
  return Object.entries(groups).map(([name, { modules, params }]) => ({
    group: { path: `compression_training.${technique}.different_groups.${name}`, modules },
    make: (layer, path) => make(layer, path, params),
  }));
}

/**
 * Returns the number of quantization groups. If an embedding is rounded in forward, each row is a
 * group, as in DeepSpeed's Embedding_Compress.
 */
function countGroups(
  layer: Layer,
  shared: CompressionSection['weight_quantization']['shared_parameters'],
): number {
  const isRowwise = shared.quantize_weight_in_forward && layer instanceof CompressedEmbedding;
  return isRowwise ? layer.weight.size(0) : shared.quantize_groups;
}

function requireLinear(layer: Layer, name: string): CompressedLinear {
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
