// Which rows and columns of linear layers stay when what is pruned is taken away, with those of the
// layers behind or in front.
import { isDeepStrictEqual } from 'node:util';
import { DsError } from '../errors.js';
import type { Linear } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { Regex } from '../runtime/regex/regex.js';
import { type CompressedEmbedding, type CompressedLinear, linearsOf } from './compressed-layers.js';
import type { CompressionSection, Technique } from './technique.js';

/** What stays of a layer: numbers of outputs and inputs; null: all. */
export interface Cut {
  rows: readonly number[] | null;
  columns: readonly number[] | null;
}

/** A pruning technique by which layers can be cut. */
type Structured = 'row_pruning' | 'head_pruning';

interface Place {
  /** The dotted path of the group. */
  path: string;
  technique: Structured;
}

/** The layers with techniques, and by which section they got them. */
interface Compressed {
  readonly section: CompressionSection;
  readonly layers: ReadonlyMap<string, CompressedLinear | CompressedEmbedding>;
}

/**
 * The cuts that related_modules ask for, by layer. Throws as requireRelated() does, and DS_CONFIG
 * where layers are to lose different things on one side.
 */
export function cutsOf(model: Module, compressed: Compressed): Map<string, Cut> {
  const cuts = new Map<string, Cut>();
  for (const pair of pairsOf(model, compressed)) {
    cutPair(pair, (name, part) => keep(cuts, pair.place, [name, part]));
  }
  return cuts;
}

/**
 * Whether the layers that related_modules name can be cut together, whatever is pruned of them.
 * Throws DS_CONFIG where they do not pair up or are not of the sizes of what lies behind each
 * other, DS_ARGUMENT for a weight that is tied to another: a smaller one could not be.
 */
export function requireRelated(model: Module, compressed: Compressed): void {
  const pairs = pairsOf(model, compressed);
  const cut = new Set(pairs.flatMap(({ name, other }) => [name, other]));
  for (const names of model.tiedNames()) {
    const tied = names.find((name) => cut.has(name.slice(0, name.lastIndexOf('.'))));
    if (!tied) continue;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'compression_training',
      expected: 'related_modules of layers with weights of their own',
      got: `${tied}, tied`,
      hint: 'Leave related_modules out: what goes is 0.',
    });
  }
}

/** The i-th layer of `modules` goes with the i-th of each related one, in the model's order. */
function pairsOf(model: Module, { section, layers }: Compressed): Pair[] {
  const pairs: Pair[] = [];
  const linears = linearsOf(model);
  for (const { place, patterns, related } of groupsOf(section)) {
    const masked = [...linears.keys()].filter((name) => techniqueOf(layers.get(name), place));
    for (const [i, pattern] of patterns.entries()) {
      const names = namesFitting(masked, pattern);
      for (const relatedPattern of related[i] ?? []) {
        const others = namesFitting([...linears.keys()], relatedPattern);
        if (others.length !== names.length) {
          throw unpaired(place, { pattern: relatedPattern, names, others });
        }
        names.forEach((name, n) => {
          const layer = layers.get(name) as CompressedLinear;
          const other = others[n] as string;
          const pair = { place, layer, name, other };
          requireSize(pair, (linears.get(other) as Linear).weight.shape);
          pairs.push(pair);
        });
      }
    }
  }
  return pairs;
}

const techniqueOf = (
  layer: CompressedLinear | CompressedEmbedding | undefined,
  { technique }: Place,
): Technique | undefined => layer?.techniques.find(({ kind }) => kind === technique);

/** A layer may lose outputs by one mask and inputs by another, but one side by one mask alone. */
function keep(
  cuts: Map<string, Cut>,
  { path }: Place,
  [name, part]: readonly [string, Partial<Cut>],
): void {
  const before = cuts.get(name) ?? { rows: null, columns: null };
  for (const side of ['rows', 'columns'] as const) {
    if (!before[side] || !part[side] || isDeepStrictEqual(before[side], part[side])) continue;
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${path}.related_modules, ${name}`,
      expected: `one mask by which it loses ${side}`,
      got: 'two that differ',
      hint: 'Prune one of the layers that meet there, or leave related_modules out: what goes is 0.',
    });
  }
  cuts.set(name, { ...before, ...part });
}

interface RelatedGroup {
  place: Place;
  patterns: readonly string[];
  related: readonly (readonly string[])[];
}

function groupsOf(section: CompressionSection): RelatedGroup[] {
  return (['row_pruning', 'head_pruning'] as const).flatMap((technique) => {
    const { shared_parameters: shared, different_groups: groups } = section[technique];
    if (!shared.enabled) return [];
    return Object.entries(groups).flatMap(([name, { modules, related_modules: related }]) => {
      const path = `compression_training.${technique}.different_groups.${name}`;
      return related ? [{ place: { path, technique }, patterns: [modules].flat(), related }] : [];
    });
  });
}

function namesFitting(names: readonly string[], pattern: string): string[] {
  if (pattern === '*') return [...names];
  const expression = new Regex(pattern);
  return names.filter((name) => expression.test(name));
}

/** A layer that is pruned, and one that lies beside it. */
interface Pair {
  place: Place;
  layer: CompressedLinear;
  name: string;
  other: string;
}

function cutPair(
  { place, layer, name, other }: Pair,
  keep: (name: string, part: Partial<Cut>) => void,
): void {
  const { mask } = techniqueOf(layer, place) as Technique;
  const kept = numbersOf(mask?.().toArray() ?? []);
  if (place.technique === 'row_pruning') {
    keep(name, { rows: kept });
    keep(other, { columns: kept });
    return;
  }
  const heads = layer.head_pruning_scores?.size(1) ?? 1;
  const width = layer.weight.size(1) / heads;
  const places = kept.flatMap((head) => Array.from({ length: width }, (_, i) => head * width + i));
  keep(name, { columns: places });
  keep(other, { rows: places });
}

/** Where a mask is 1. */
const numbersOf = (mask: readonly number[]): number[] =>
  mask.flatMap((value, i) => (value === 0 ? [] : [i]));

/** Of what is pruned of `layer`, the one beside it, of `shape`, has as much on its side. */
function requireSize({ place, layer, name, other }: Pair, shape: readonly number[]): void {
  const [outputs, inputs] = layer.weight.shape;
  const isRows = place.technique === 'row_pruning';
  const [wanted, got] = isRows ? [outputs, shape[1]] : [inputs, shape[0]];
  if (got === wanted) return;
  const [beside, own] = isRows ? ['inputs', 'outputs'] : ['outputs', 'inputs'];
  throw new DsError({
    code: 'DS_CONFIG',
    op: `${place.path}.related_modules, ${other}`,
    expected: `${wanted} ${beside}, as ${name} has ${own}`,
    got: String(got),
    hint: 'Name the linear layers that lie beside it; without related_modules what goes is 0.',
  });
}

function unpaired(
  { path }: Place,
  { pattern, names, others }: { pattern: string; names: string[]; others: string[] },
): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `${path}.related_modules`,
    expected: `${names.length} linear layers, one for each of ${names.slice(0, 3).join(', ')}`,
    got: `${others.length} that fit ${JSON.stringify(pattern)}`,
  });
}
