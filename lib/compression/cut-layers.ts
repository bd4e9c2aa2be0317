// Which rows and columns of linear layers stay when what is pruned is taken away, with those of the
// layers behind or in front.
import { isDeepStrictEqual } from 'node:util';
import { DsError } from '../errors.js';
import type { Linear } from '../nn/layers.js';
import type { Module } from '../nn/module.js';
import type { Compression } from './compress.js';
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

/**
 * The cuts that related_modules ask for, by layer. The i-th layer of `modules` goes with the i-th
 * of each of its related ones, both in the model's order. Throws DS_CONFIG where layers do not pair
 * up, are not of the sizes of what lies behind each other, or are to lose different things on one
 * side.
 */
export function cutsOf(model: Module, { section, layers }: Compression): Map<string, Cut> {
  const cuts = new Map<string, Cut>();
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
          const pair = { layer, name, other, beside: linears.get(other) as Linear };
          cutPair(place, pair, (at, part) => keep(cuts, place, [at, part]));
        });
      }
    }
  }
  return cuts;
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
  const expression = new RegExp(pattern);
  return names.filter((name) => expression.test(name));
}

interface Pair {
  layer: CompressedLinear;
  name: string;
  other: string;
  beside: Linear;
}

function cutPair(
  place: Place,
  { layer, name, other, beside }: Pair,
  keep: (name: string, part: Partial<Cut>) => void,
): void {
  const { path, technique } = place;
  const { mask } = techniqueOf(layer, place) as Technique;
  const kept = numbersOf(mask?.().toArray() ?? []);
  const [outputs, inputs] = layer.weight.shape as [number, number];
  const [rows, columns] = beside.weight.shape as [number, number];
  if (technique === 'row_pruning') {
    requireSize(
      path,
      { name: other, got: columns, expected: `${outputs} inputs, as ${name} has outputs` },
      outputs,
    );
    keep(name, { rows: kept });
    keep(other, { columns: kept });
    return;
  }
  requireSize(
    path,
    { name: other, got: rows, expected: `${inputs} outputs, as ${name} has inputs` },
    inputs,
  );
  const heads = layer.head_pruning_scores?.size(1) ?? 1;
  const width = inputs / heads;
  const places = kept.flatMap((head) => Array.from({ length: width }, (_, i) => head * width + i));
  keep(name, { columns: places });
  keep(other, { rows: places });
}

/** Where a mask is 1. */
const numbersOf = (mask: readonly number[]): number[] =>
  mask.flatMap((value, i) => (value === 0 ? [] : [i]));

function requireSize(
  path: string,
  { name, got, expected }: { name: string; got: number; expected: string },
  size: number,
): void {
  if (got === size) return;
  const op = `${path}.related_modules, ${name}`;
  const hint = 'Name the linear layers that lie beside it; without related_modules what goes is 0.';
  throw new DsError({ code: 'DS_CONFIG', op, expected, got: String(got), hint });
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
