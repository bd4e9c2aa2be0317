// Who owns which flat range: pure arithmetic from parameter shapes to offsets, with no device in
// sight.
import type { ParameterPlace } from '../optim/optimizer.js';
import { type Region, wholeRegion } from '../runtime/box.js';
import { numel } from '../runtime/view.js';

/**
 * Every parameter starts on a multiple of this many elements, so that 16-byte accesses stay
 * aligned.
 */
export const slotAlignment = 64;

export interface ParameterShape {
  name: string;
  shape: readonly number[];
  /** Index of its optimizer group. */
  group: number;
  /** What it is of a tensor of which other ranks have the rest. Default: all of its own. */
  region?: Region;
}

/** How parameters are laid out. */
export interface LayoutOptions {
  /** Into how many equal parts the unit can be cut. Default 1. */
  shards?: number;
  /**
   * Elements of a block of what is kept of a parameter, a power of two: those of its unit, and the
   * unit's shards, start at multiples of the largest. Default: of slotAlignment, as all do.
   */
  blockOf?: (parameter: ParameterShape) => number;
  /**
   * What kind of state is kept of a parameter: those of one kind lie together. Default: all are of
   * one.
   */
  kindOf?: (parameter: ParameterShape) => string;
}

/** Where one parameter lies in its unit's flat buffers. Offsets and sizes in elements. */
export interface Slot extends ParameterShape {
  offset: number;
  numel: number;
  region: Region;
}

/** A half-open range [offset, offset + numel) of elements. */
export interface Range {
  offset: number;
  numel: number;
}

/** Parameters of one optimizer group that keep the same kind of state, padding included. */
export interface GroupRange extends Range {
  group: number;
  /** The shape of one of them, for what is kept of padding alone. */
  like: readonly number[];
  /** Its parameters, and parts of them, by offset from the range's start. */
  places: readonly ParameterPlace[];
}

export interface UnitLayout {
  slots: readonly Slot[];
  /** One contiguous range per optimizer group, and kind of state in it, present. */
  groups: readonly GroupRange[];
  /** Elements between parameters that belong to none: gradients must be zero there. */
  gaps: readonly Range[];
  /** Total elements, a multiple of the alignment times the number of shards. */
  numel: number;
}

const alignUp = (n: number, unit: number): number => Math.ceil(n / unit) * unit;

/**
 * Lays parameters out one after the other, those of one optimizer group together, in it those of
 * one kind, order kept otherwise. The end is padded so that `shards` equal parts are aligned as
 * well.
 */
export function layoutUnit(
  parameters: readonly ParameterShape[],
  { shards = 1, blockOf = () => 1, kindOf = () => '' }: LayoutOptions = {},
): UnitLayout {
  const alignment = Math.max(slotAlignment, ...parameters.map(blockOf));
  const slots: Slot[] = [];
  const groups: (GroupRange & { places: ParameterPlace[] })[] = [];
  const gaps: Range[] = [];
  let end = 0;
  for (const alike of gathered(parameters, kindOf)) {
    const { group, shape: like } = alike[0] as ParameterShape;
    const range = { group, like, offset: end, numel: 0, places: [] as ParameterPlace[] };
    groups.push(range);
    for (const parameter of alike) {
      const { name, shape } = parameter;
      const size = numel(shape);
      const padded = alignUp(size, alignment);
      const region = parameter.region ?? wholeRegion(shape);
      slots.push({ ...parameter, offset: end, numel: size, region });
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
  return { slots, groups, gaps, numel: total };
}

/** Those of one group and kind, groups in order, kinds as they come. */
function gathered(
  parameters: readonly ParameterShape[],
  kindOf: (parameter: ParameterShape) => string,
): Iterable<ParameterShape[]> {
  const alike = new Map<string, ParameterShape[]>();
  for (const parameter of [...parameters].sort((a, b) => a.group - b.group)) {
    const key = `${parameter.group} ${kindOf(parameter)}`;
    const list = alike.get(key) ?? [];
    alike.set(key, list);
    list.push(parameter);
  }
  return alike.values();
}

/** The part of `numel` elements, a multiple of `shards`, that belongs to `rank`. */
export function shardOf(numel: number, rank: number, shards: number): Range {
  const size = numel / shards;
  return { offset: rank * size, numel: size };
}

/** Part of one parameter inside a partition. */
export interface Piece {
  readonly slot: Slot;
  /** Its first element, counted from the parameter's. */
  readonly from: number;
  /** Where it lies in the partition. */
  readonly offset: number;
  readonly numel: number;
}

/** The part of `range` inside `window`; no elements where there is none. */
export const overlap = (range: Range, window: Range): Range => {
  const offset = Math.max(range.offset, window.offset);
  const end = Math.min(range.offset + range.numel, window.offset + window.numel);
  return { offset, numel: Math.max(0, end - offset) };
};

/**
 * The groups' parts inside `window`, by offset from its start, with the parameters in them and
 * parts of such.
 */
export function clipGroups({ groups }: UnitLayout, window: Range): GroupRange[] {
  return groups.flatMap(({ group, like, places, ...range }) => {
    const { offset, numel } = overlap(range, window);
    if (numel === 0) return [];
    const shifted = places.map((place) => ({
      ...place,
      offset: range.offset + place.offset - offset,
    }));
    const here = shifted.filter((place) => place.offset + place.numel > 0 && place.offset < numel);
    const clipped = here.map((place) => {
      const part = overlap(place, { offset: 0, numel });
      return { ...place, ...part, from: part.offset - place.offset };
    });
    return [{ group, like, offset: offset - window.offset, numel, places: clipped }];
  });
}

/** The parameters, and parts of them, inside `window`. */
export function piecesOf({ slots }: UnitLayout, window: Range): Piece[] {
  return slots.flatMap((slot) => {
    const { offset, numel } = overlap(slot, window);
    if (numel === 0) return [];
    return [{ slot, from: offset - slot.offset, offset: offset - window.offset, numel }];
  });
}
