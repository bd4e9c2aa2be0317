// Layout of units: offsets of parameters and shards in flat buffers, by arithmetic only.

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
  /** The part of a tensor that this rank holds. Default: the whole. */
  region?: Region;
}

export interface LayoutOptions {
  /** Number of equal parts of the unit. Default: 1. */
  shards?: number;
  /**
   * Elements per block of a parameter's state, a power of two. All parameters of the unit, and its
   * shards, start at multiples of the largest block. Default: parameterAlignment.
   */
  blockOf?: (parameter: ParameterShape) => number;
  /** Kind of a parameter's state; parameters of one kind are adjacent. Default: one kind. */
  kindOf?: (parameter: ParameterShape) => string;
}

/** The location of a parameter in its unit's flat buffers. Offsets and sizes in elements. */
export interface LayoutEntry extends ParameterShape {
  offset: number;
  numel: number;
  region: Region;
}

/** Parameters of one optimizer group with the same kind of state, including padding. */
export interface GroupRange extends Range {
  group: number;
  /** The shape of one of the parameters; it determines the state of the padding. */
  like: readonly number[];
  /** The parameters of the range, whole or in part, by offset from the range's start. */
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

/** Rounds `n` up to a multiple of `unit`. */
export const alignUp = (n: number, unit: number): number => Math.ceil(n / unit) * unit;

/**
 * Lays out parameters one after another, by optimizer group, then by kind of state, else in order.
 * Pads the end, so that `shards` equal parts are aligned.
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

/** Groups parameters by group and kind: groups in order, kinds by first occurrence. */
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

/** Returns the range of `rank` in `numel` elements, a multiple of `shards`. */
export function shardOf(numel: number, rank: number, shards: number): Range {
  const size = numel / shards;
  return { offset: rank * size, numel: size };
}

/** The elements of one parameter in a partition. Source: DeepSpeed's tensor fragments. */
export interface Fragment {
  readonly entry: LayoutEntry;
  /** First element of the fragment, from the parameter's start. */
  readonly from: number;
  /** Offset of the fragment in the partition. */
  readonly offset: number;
  readonly numel: number;
}

/** Returns the part of `range` inside `window`, possibly empty. */
export const overlap = (range: Range, window: Range): Range => {
  const offset = Math.max(range.offset, window.offset);
  const end = Math.min(range.offset + range.numel, window.offset + window.numel);
  return { offset, numel: Math.max(0, end - offset) };
};

/** Returns the parts of groups inside `window`, by offset from its start. */
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

/** Returns the parameters inside `window`, whole or in part. */
export function fragmentsOf({ entries }: UnitLayout, window: Range): Fragment[] {
  return entries.flatMap((entry) => {
    const { offset, numel } = overlap(entry, window);
    if (numel === 0) return [];
    return [{ entry, from: offset - entry.offset, offset: offset - window.offset, numel }];
  });
}
