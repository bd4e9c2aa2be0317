// Selects the rows and columns of linear layers that remain after pruning, also in adjacent layers.

import { isDeepStrictEqual } from 'node:util';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import { argumentError } from '../runtime/input-errors.js';
import { Regex } from '../runtime/regex/regex.js';
import { required } from '../runtime/required.js';
import {
  type CompressedEmbedding,
  type CompressedLinear,
  listLinears,
} from './compressed-layers.js';
import type { CompressionSection, Technique } from './technique.js';

/** The remaining outputs and inputs of a layer by index; null: all of them. */
export interface KeptIndices {
  rows: readonly number[] | null;
  columns: readonly number[] | null;
}

/** A pruning technique that can shrink layers. */
type PruningTechnique = 'row_pruning' | 'head_pruning';

interface GroupKey {
  /** The dotted path of the group. */
  path: string;
  technique: PruningTechnique;
}

/** The compressed layers, and the section of their techniques. */
interface CompressedModel {
  readonly section: CompressionSection;
  readonly layers: ReadonlyMap<string, CompressedLinear | CompressedEmbedding>;
}

/**
 * Returns the cuts that related_modules request, by layer. Throws as requireRelated() does, and
 * DS_CONFIG if one side of a layer has two different cuts.
 */
export function computeCuts(model: Module, compressed: CompressedModel): Map<string, KeptIndices> {
  const cuts = new Map<string, KeptIndices>();
  for (const pair of pairRelated(model, compressed)) {
    cutPair(pair, (name, part) => recordCut(cuts, pair.key, [name, part]));
  }
  return cuts;
}

/**
 * Checks that the layers of related_modules can shrink together, for any masks. Throws DS_CONFIG if
 * they do not pair up or their sizes do not match, DS_ARGUMENT for a tied weight, which cannot
 * shrink.
 */
export function requireRelated(model: Module, compressed: CompressedModel): void {
  const pairs = pairRelated(model, compressed);
  const cut = new Set(pairs.flatMap(({ name, other }) => [name, other]));
  for (const names of model.tiedNames()) {
    const tied = names.find((name) => cut.has(name.slice(0, name.lastIndexOf('.'))));
    if (!tied) continue;
    throw argumentError(
      'compression_training',
      'related_modules of layers with untied weights',
      `${tied}, tied`,
      'Omit related_modules: pruned elements are then 0.',
    );
  }
}

/**
 * Pairs the i-th layer of `modules` with the i-th layer of each related expression, in the model's
 * order.
 */
function pairRelated(model: Module, { section, layers }: CompressedModel): RelatedPair[] {
  const pairs: RelatedPair[] = [];
  const linears = listLinears(model);
  for (const { key, patterns, related } of listRelatedGroups(section)) {
    const masked = [...linears.keys()].filter((name) => findTechnique(layers.get(name), key));
    for (const [i, pattern] of patterns.entries()) {
      const names = selectNames(masked, pattern);
      for (const relatedPattern of related[i] ?? []) {
        const others = selectNames([...linears.keys()], relatedPattern);
        if (others.length !== names.length) {
          throw unpairedError(key, { pattern: relatedPattern, names, others });
        }
        names.forEach((name, n) => {
          const layer = layers.get(name) as CompressedLinear;
          const other = required(others[n]);
          const pair = { key, layer, name, other };
          requireSize(pair, required(linears.get(other)).weight.shape);
          pairs.push(pair);
        });
      }
    }
  }
  return pairs;
}

const findTechnique = (
  layer: CompressedLinear | CompressedEmbedding | undefined,
  { technique }: GroupKey,
): Technique | undefined => layer?.techniques.find(({ kind }) => kind === technique);

/**
 * Records a cut of a layer. Throws DS_CONFIG if a side has two different masks. Outputs and inputs
 * may have different masks.
 */
function recordCut(
  cuts: Map<string, KeptIndices>,
  { path }: GroupKey,
  [name, part]: readonly [string, Partial<KeptIndices>],
): void {
  const before = cuts.get(name) ?? { rows: null, columns: null };
  for (const side of ['rows', 'columns'] as const) {
    if (!before[side] || !part[side] || isDeepStrictEqual(before[side], part[side])) continue;
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${path}.related_modules, ${name}`,
      expected: `one mask for its ${side}`,
      got: 'two different masks',
      hint: 'Prune one of the adjacent layers, or omit related_modules: pruned elements are then 0.',
    });
  }
  cuts.set(name, { ...before, ...part });
}

interface RelatedGroup {
  key: GroupKey;
  patterns: readonly string[];
  related: readonly (readonly string[])[];
}

function listRelatedGroups(section: CompressionSection): RelatedGroup[] {
  return (['row_pruning', 'head_pruning'] as const).flatMap((technique) => {
    const { shared_parameters: shared, different_groups: groups } = section[technique];
    if (!shared.enabled) return [];
    return Object.entries(groups).flatMap(([name, { modules, related_modules: related }]) => {
      const path = `compression_training.${technique}.different_groups.${name}`;
      return related ? [{ key: { path, technique }, patterns: [modules].flat(), related }] : [];
    });
  });
}

function selectNames(names: readonly string[], pattern: string): string[] {
  if (pattern === '*') return [...names];
  const expression = new Regex(pattern);
  return names.filter((name) => expression.test(name));
}

/** A pruned layer, and an adjacent layer. */
interface RelatedPair {
  key: GroupKey;
  layer: CompressedLinear;
  name: string;
  other: string;
}

function cutPair(
  { key, layer, name, other }: RelatedPair,
  keep: (name: string, part: Partial<KeptIndices>) => void,
): void {
  const { mask } = required(findTechnique(layer, key));
  const kept = listKept(mask?.().toArray() ?? []);
  if (key.technique === 'row_pruning') {
    keep(name, { rows: kept });
    keep(other, { columns: kept });
    return;
  }
  const heads = layer.head_pruning_scores?.size(1) ?? 1;
  const width = layer.weight.size(1) / heads;
  const indices = kept.flatMap((head) => Array.from({ length: width }, (_, i) => head * width + i));
  keep(name, { columns: indices });
  keep(other, { rows: indices });
}

/** Returns the indices of the elements that a mask keeps. */
const listKept = (mask: readonly number[]): number[] =>
  mask.flatMap((value, i) => (value === 0 ? [] : [i]));

/**
 * Checks that the side of the adjacent layer, of `shape`, has the size of the pruned side of
 * `layer`.
 */
function requireSize({ key, layer, name, other }: RelatedPair, shape: readonly number[]): void {
  const [outputs, inputs] = layer.weight.shape;
  const isRows = key.technique === 'row_pruning';
  const [expectedSize, got] = isRows ? [outputs, shape[1]] : [inputs, shape[0]];
  if (got === expectedSize) return;
  const [adjacentSide, prunedSide] = isRows ? ['inputs', 'outputs'] : ['outputs', 'inputs'];
  throw new DsError({
    code: 'DS_CONFIG',
    op: `${key.path}.related_modules, ${other}`,
    expected: `${expectedSize} ${adjacentSide}, as ${name} has ${prunedSide}`,
    got: String(got),
    hint: 'Name the adjacent linear layers, or omit related_modules: pruned elements are then 0.',
  });
}

function unpairedError(
  { path }: GroupKey,
  { pattern, names, others }: { pattern: string; names: string[]; others: string[] },
): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `${path}.related_modules`,
    expected: `${names.length} linear layers, one for each of ${names.slice(0, 3).join(', ')}`,
    got: `${others.length} layers that match ${JSON.stringify(pattern)}`,
  });
}
