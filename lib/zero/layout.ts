// Who owns which flat range: pure arithmetic from parameter shapes to offsets, with no device in sight.
import type { ParameterPlace } from '../optim/optimizer.js';
import { type Region, wholeRegion } from '../runtime/box.js';
import { numel } from '../runtime/view.js';

/** Every parameter starts on a multiple of this many elements, so that 16-byte accesses stay aligned. */
export const slotAlignment = 64;

export interface ParameterShape {
  name: string;
  shape: readonly number[];
  /** Index of its optimizer group. */
  group: number;
  /** What it is of a tensor of which other ranks have the rest. Default: all of its own. */
  region?: Region;
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

/** The part of a unit that one optimizer group updates, padding included. */
export interface GroupRange extends Range {
  group: number;
  /** Its parameters, and parts of them, by offset from the range's start. */
  places: readonly ParameterPlace[];
}

export interface UnitLayout {
  slots: readonly Slot[];
  /** One contiguous range per optimizer group present. */
  groups: readonly GroupRange[];
  /** Elements between parameters that belong to none: gradients must be zero there. */
  gaps: readonly Range[];
  /** Total elements, a multiple of slotAlignment times the number of shards. */
  numel: number;
}

const alignUp = (n: number, unit = slotAlignment): number => Math.ceil(n / unit) * unit;

/**
 * Lays parameters out one after the other, those of one optimizer group together, order kept otherwise. The end is
 * padded so that `shards` equal parts are aligned as well.
 */
export function layoutUnit(parameters: readonly ParameterShape[], shards = 1): UnitLayout {
  const ordered = [...parameters].sort((a, b) => a.group - b.group);
  const slots: Slot[] = [];
  const groups: (GroupRange & { places: ParameterPlace[] })[] = [];
  const gaps: Range[] = [];
  let end = 0;
  for (const parameter of ordered) {
    const size = numel(parameter.shape);
    const padded = alignUp(size);
    const region = parameter.region ?? wholeRegion(parameter.shape);
    slots.push({ ...parameter, offset: end, numel: size, region });
    if (padded > size) gaps.push({ offset: end + size, numel: padded - size });
    let last = groups.at(-1);
    if (last?.group !== parameter.group) {
      last = { group: parameter.group, offset: end, numel: 0, places: [] };
      groups.push(last);
    }
    const { name, shape } = parameter;
    last.places.push({ name, shape, offset: end - last.offset, numel: size });
    last.numel += padded;
    end += padded;
  }
  const total = alignUp(end, slotAlignment * shards);
  const last = groups.at(-1);
  if (last && total > end) {
    gaps.push({ offset: end, numel: total - end });
    last.numel += total - end;
  }
  return { slots, groups, gaps, numel: total };
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

/** The groups' parts inside `window`, by offset from its start, with the parameters in them and parts of such. */
export function clipGroups({ groups }: UnitLayout, window: Range): GroupRange[] {
  return groups.flatMap(({ group, places, ...range }) => {
    const { offset, numel } = overlap(range, window);
    if (numel === 0) return [];
    const shifted = places.map((place) => ({
      ...place,
      offset: range.offset + place.offset - offset,
    }));
    const here = shifted.filter((place) => place.offset + place.numel > 0 && place.offset < numel);
    const clipped = here.map((place) => ({ ...place, ...overlap(place, { offset: 0, numel }) }));
    return [{ group, offset: offset - window.offset, numel, places: clipped }];
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
