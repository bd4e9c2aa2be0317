// Computes the layout of units: the offsets of parameters and shards in flat buffers. No memory is
// allocated here.

import type { ParameterPlace } from '../optim/optimizer.js';
import { type Region, wholeRegion } from '../runtime/box.js';
import { required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import type { Range } from '../tensor/flat.js';

export type { Range };

/** Every parameter starts at a multiple of this many elements, so 16-byte accesses stay aligned. */
export const parameterAlignment = 64;

export interface ParameterShape {
  name: string;
  shape: readonly number[];
  group: number;
  /** The region of the whole tensor that this rank holds. Default: the whole. */
  region?: Region;
}

export interface LayoutOptions {
  /** Number of shards of equal size. Default: 1. */
  shards?: number;
  /**
   * Returns the elements per block of a parameter's state, a power of two. All parameters and
   * shards of the unit start at multiples of the largest block. Default: parameterAlignment.
   */
  blockOf?: (parameter: ParameterShape) => number;
  /**
   * Returns the kind of a parameter's state. Parameters of one kind are adjacent. Default: one
   * kind.
   */
  kindOf?: (parameter: ParameterShape) => string;
}

/** The location of a parameter in its unit's flat buffers. Offsets and sizes in elements. */
export interface LayoutEntry extends ParameterShape {
  offset: number;
  numel: number;
  region: Region;
}

/**
 * Adjacent parameters with the same optimizer group and the same kind of state, with their padding.
 */
export interface GroupRange extends Range {
  group: number;
  /** The shape of one of these parameters. The state of the padding follows it. */
  like: readonly number[];
  /** The parameters of the range, whole or in part. Offsets count from the start of the range. */
  places: readonly ParameterPlace[];
}

export interface UnitLayout {
  entries: readonly LayoutEntry[];
  /** One contiguous range per optimizer group and kind of state. */
  groups: readonly GroupRange[];
  /** Padding between parameters. Gradients must be zero there. */
  gaps: readonly Range[];
  /** Total elements, a multiple of the alignment times the number of shards. */
  numel: number;
}

/** Returns `n` rounded up to a multiple of `unit`. */
export const alignUp = (n: number, unit: number): number => Math.ceil(n / unit) * unit;

/**
 * Returns the layout of `parameters`, sorted by optimizer group, then by kind of state. Within a
 * kind, they keep their order. Padding at the end makes the shards equal and aligned.
 */
export function layoutUnit(
  parameters: readonly ParameterShape[],
  { shards = 1, blockOf = () => 1, kindOf = () => '' }: LayoutOptions = {},
): UnitLayout {
  const alignment = Math.max(parameterAlignment, ...parameters.map(blockOf));
  const entries: LayoutEntry[] = [];
  const groups: (GroupRange & { places: ParameterPlace[] })[] = [];
  const gaps: Range[] = [];
  let end = 0;
  for (const members of groupParameters(parameters, kindOf)) {
    const { group, shape: like } = required(members[0]);
    const range = { group, like, offset: end, numel: 0, places: [] as ParameterPlace[] };
    groups.push(range);
    for (const parameter of members) {
      const { name, shape } = parameter;
      const size = numel(shape);
      const padded = alignUp(size, alignment);
      const region = parameter.region ?? wholeRegion(shape);
      entries.push({ ...parameter, offset: end, numel: size, region });
      if (padded > size) gaps.push({ offset: end + size, numel: padded - size });
      range.places.push({ name, shape, from: 0, offset: end - range.offset, numel: size });
      range.numel += padded;
      end += padded;
    }
  }
  const total = alignUp(end, alignment * shards);
  const last = groups.at(-1);
  if (last && total > end) {
    gaps.push({ offset: end, numel: total - end });
    last.numel += total - end;
  }
  return { entries, groups, gaps, numel: total };
}

/**
 * Returns lists of parameters with the same group and kind. Groups are in order, kinds in the order
 * of their first parameter.
 */
function groupParameters(
  parameters: readonly ParameterShape[],
  kindOf: (parameter: ParameterShape) => string,
): Iterable<ParameterShape[]> {
  const byKind = new Map<string, ParameterShape[]>();
  for (const parameter of [...parameters].sort((a, b) => a.group - b.group)) {
    const key = `${parameter.group} ${kindOf(parameter)}`;
    const list = byKind.get(key) ?? [];
    byKind.set(key, list);
    list.push(parameter);
  }
  return byKind.values();
}

/** Returns the shard of `rank`. `numel` must be a multiple of `shards`. */
export function shardOf(numel: number, rank: number, shards: number): Range {
  const size = numel / shards;
  return { offset: rank * size, numel: size };
}

/** The elements of one parameter in a partition. Source: DeepSpeed's tensor fragments. */
export interface Fragment {
  readonly entry: LayoutEntry;
  /** Index of the fragment's first element in the parameter. */
  readonly from: number;
  /** Offset of the fragment from the start of the partition. */
  readonly offset: number;
  readonly numel: number;
}

/** Returns the intersection of `range` and `window`. Its numel is 0 if they do not meet. */
export const overlap = (range: Range, window: Range): Range => {
  const offset = Math.max(range.offset, window.offset);
  const end = Math.min(range.offset + range.numel, window.offset + window.numel);
  return { offset, numel: Math.max(0, end - offset) };
};

/**
 * Returns the intersections of the unit's group ranges with `window`. Offsets count from the start
 * of `window`.
 */
export function clipGroups({ groups }: UnitLayout, window: Range): GroupRange[] {
  return groups.flatMap(({ group, like, places, ...range }) => {
    const { offset, numel } = overlap(range, window);
    if (numel === 0) return [];
    const shifted = places.map((place) => ({
      ...place,
      offset: range.offset + place.offset - offset,
    }));
    const inWindow = shifted.filter(
      (place) => place.offset + place.numel > 0 && place.offset < numel,
    );
    const clipped = inWindow.map((place) => {
      const part = overlap(place, { offset: 0, numel });
      return { ...place, ...part, from: part.offset - place.offset };
    });
    return [{ group, like, offset: offset - window.offset, numel, places: clipped }];
  });
}

/** Returns the fragments of all parameters inside `window`. */
export function fragmentsOf({ entries }: UnitLayout, window: Range): Fragment[] {
  return entries.flatMap((entry) => {
    const { offset, numel } = overlap(entry, window);
    if (numel === 0) return [];
    return [{ entry, from: offset - entry.offset, offset: offset - window.offset, numel }];
  });
}
