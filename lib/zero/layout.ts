// Who owns which flat range: pure arithmetic from parameter shapes to offsets, with no device in sight.
import { numel } from '../runtime/view.js';

/** Every parameter starts on a multiple of this many elements, so that 16-byte accesses stay aligned. */
export const slotAlignment = 64;

export interface ParameterShape {
  name: string;
  shape: readonly number[];
  /** Index of its optimizer group. */
  group: number;
}

/** Where one parameter lies in its unit's flat buffers. Offsets and sizes in elements. */
export interface Slot extends ParameterShape {
  offset: number;
  numel: number;
}

/** A half-open range [offset, offset + numel) of elements. */
export interface Range {
  offset: number;
  numel: number;
}

export interface UnitLayout {
  slots: readonly Slot[];
  /** One contiguous range per optimizer group present, padding included. */
  groups: readonly (Range & { group: number })[];
  /** Elements between parameters that belong to none: gradients must be zero there. */
  gaps: readonly Range[];
  /** Total elements, a multiple of slotAlignment. */
  numel: number;
}

const alignUp = (n: number): number => Math.ceil(n / slotAlignment) * slotAlignment;

/** Lays parameters out one after the other, those of one optimizer group together, order kept otherwise. */
export function layoutUnit(parameters: readonly ParameterShape[]): UnitLayout {
  const ordered = [...parameters].sort((a, b) => a.group - b.group);
  const slots: Slot[] = [];
  const groups: (Range & { group: number })[] = [];
  const gaps: Range[] = [];
  let end = 0;
  for (const parameter of ordered) {
    const size = numel(parameter.shape);
    const padded = alignUp(size);
    slots.push({ ...parameter, offset: end, numel: size });
    if (padded > size) gaps.push({ offset: end + size, numel: padded - size });
    const last = groups.at(-1);
    if (last?.group === parameter.group) last.numel += padded;
    else groups.push({ group: parameter.group, offset: end, numel: padded });
    end += padded;
  }
  return { slots, groups, gaps, numel: end };
}
