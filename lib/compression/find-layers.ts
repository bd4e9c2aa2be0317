// Finds the layers of a model that the groups of a configuration select.
import { DsError } from '../errors.js';
import { Embedding } from '../nn/embedding.js';
import { Linear, LinearGelu } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { READ_DIRECTLY } from '../nn/pack-linears.js';
import { Regex } from '../runtime/regex/regex.js';

/** The part of a group that selects its layers. */
export interface LayerGroup {
  /** The dotted path of the group in the configuration. */
  readonly path: string;
  /** "*" or regular expressions. */
  readonly modules: string | readonly string[];
}

/** Supported forwards of compressed layers. */
const FORWARDS: readonly unknown[] = [Linear, LinearGelu, Embedding].map(
  ({ prototype }) => prototype.forward,
);

const SHOWN = 6;

const lastPart = (name: string): string => name.slice(name.lastIndexOf('.') + 1);

const isCompressible = (module: Module): module is Linear | Embedding =>
  module instanceof Linear || module instanceof Embedding;

/**
 * Returns the layers of each of `groups`, by name. Throws DS_CONFIG in these cases:
 *
 * 1. an expression matches no layer (DeepSpeed's get_module_name ignores it);
 * 2. a layer is in two groups;
 * 3. the model reads a layer's weight directly;
 * 4. a layer's class has its own forward.
 */
export function findLayers(
  model: Module,
  groups: readonly LayerGroup[],
): Map<LayerGroup, Map<string, Linear | Embedding>> {
  const seen = new Map<string, string>();
  const layersOfGroups = new Map<LayerGroup, Map<string, Linear | Embedding>>();
  for (const group of groups) {
    const groupLayers = new Map<string, Linear | Embedding>();
    for (const pattern of [group.modules].flat()) {
      for (const [name, module] of findMatching(model, group, pattern)) {
        const before = seen.get(name);
        if (before !== undefined) throw duplicateLayerError(group, { name, before });
        seen.set(name, group.path);
        groupLayers.set(name, module);
      }
    }
    layersOfGroups.set(group, groupLayers);
  }
  return layersOfGroups;
}

/**
 * Returns the layers with names that `pattern` matches anywhere. Throws DS_CONFIG without a match,
 * and for layers that compression cannot reach.
 */
function findMatching(
  model: Module,
  { path }: Pick<LayerGroup, 'path'>,
  pattern: string,
): [string, Linear | Embedding][] {
  const named = [...model.namedModules()].filter(([name]) => name !== '');
  const layers = named.filter((item): item is [string, Linear | Embedding] =>
    isCompressible(item[1]),
  );
  const isDirect = findDirectReads(model);
  const expression = pattern === '*' ? null : new Regex(pattern);
  const matches = layers.filter(([name, module]) =>
    expression ? expression.test(name) : module instanceof Linear && !isDirect(name),
  );
  if (matches.length === 0) throw noMatchError({ path, pattern }, layers);
  for (const [name, module] of matches) {
    const got = `${JSON.stringify(pattern)}, which matches ${name}`;
    if (isDirect(name))
      throw unsupportedLayerError(path, `${got}; the model reads its weight directly`);
    if (!FORWARDS.includes(module.forward)) {
      throw unsupportedLayerError(
        path,
        `${got}, a ${module.constructor.name} with its own forward`,
      );
    }
  }
  return matches;
}

/**
 * Returns a function that tests whether a model of this library, possibly nested in another, reads
 * a layer's weight without its forward.
 */
function findDirectReads(model: Module): (name: string) => boolean {
  const libraryLayers = [...model.namedModules()].filter(
    ([, module]) => module.describe() !== null,
  );
  const prefixes = libraryLayers.map(([name]) => (name === '' ? '' : `${name}.`));
  return (name) =>
    READ_DIRECTLY.includes(lastPart(name)) && prefixes.some((prefix) => name.startsWith(prefix));
}

function noMatchError(
  { path, pattern }: { path: string; pattern: string },
  layers: readonly [string, Module][],
): DsError {
  const names = layers.slice(0, SHOWN).map(([name]) => name);
  const more = layers.length > SHOWN ? ', ...' : '';
  return new DsError({
    code: 'DS_CONFIG',
    op: `${path}.modules`,
    expected: 'expressions that match the name of a linear layer or an embedding',
    got: JSON.stringify(pattern),
    hint:
      names.length > 0 ? `Names are ${names.join(', ')}${more}.` : 'The model has no such layer.',
  });
}

function unsupportedLayerError(path: string, got: string): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `${path}.modules`,
    expected: 'layers that the model calls, with the forward of nn',
    got,
    hint: 'Change the expressions so that they exclude this layer.',
  });
}

function duplicateLayerError(
  { path }: LayerGroup,
  { name, before }: { name: string; before: string },
): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `${path}.modules`,
    expected: 'each layer in one group, by one expression',
    got: `${name}, which is in ${before} already`,
  });
}
