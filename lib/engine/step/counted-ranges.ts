// Selects the ranges of a partition's gradient that this rank counts in the norm, without
// duplicates between ranks.
import type { Parameter } from '../../nn/parameter.js';
import { overlap, type Range } from '../../zero/layout.js';
import type { Partition } from '../../zero/partition.js';

/**
 * Returns the ranges of `partition.counted` in parameters that this rank `answersFor`. Padding
 * between parameters is zero, so adjacent ranges are merged. Empty if this rank counts no
 * parameter.
 */
export function countedRanges(
  { unit, fragments, counted }: Pick<Partition, 'unit' | 'fragments' | 'counted'>,
  answersFor: (parameter: Parameter) => boolean,
): Range[] {
  const isOwn = fragments.map(({ entry }) => answersFor(unit.parameterOf(entry)));
  if (isOwn.every(Boolean)) return [counted];
  const ranges: Range[] = [];
  let isApart = true;
  for (const [i, fragment] of fragments.entries()) {
    const { offset, numel } = overlap(fragment, counted);
    const last = ranges.at(-1);
    if (!isOwn[i]) isApart = true;
    if (!isOwn[i] || numel === 0) continue;
    if (last && !isApart) last.numel = offset + numel - last.offset;
    else ranges.push({ offset, numel });
    isApart = false;
  }
  return ranges;
}
