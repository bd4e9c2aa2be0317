// Sums partial gradients of tensor-parallel ranks, which have different tokens, before the data
// ranks reduce them. Source: Korthikanti et al. 2022 (sequence parallelism).

import { copyFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import type { Collectives } from './collectives.js';
import type { LayoutEntry, Range } from './layout.js';
import type { GradientFlow } from './stage.js';
import type { Unit } from './unit.js';

/** Wraps the flow `inner`. `group`: the tensor-parallel ranks. */
export function partialSums(inner: GradientFlow, group: Collectives): GradientFlow {
  const partialOf = new Map<Unit, readonly LayoutEntry[]>();
  return {
    route: inner.route,
    takesEach: inner.takesEach,
    get factor() {
      return inner.factor;
    },
    reduce(partition, receiver) {
      const { unit } = partition;
      const isPartial = (entry: LayoutEntry): boolean => unit.parameterOf(entry).hasPartialGradient;
      const entries = partialOf.get(unit) ?? unit.layout.entries.filter(isPartial);
      partialOf.set(unit, entries);
      if (entries.length > 0) sum(unit, entries, group);
      inner.reduce(partition, receiver);
    },
  };
}

/** Runs one all-reduce for all `entries` of the unit, in the order of the compute stream. */
function sum(unit: Unit, entries: readonly LayoutEntry[], group: Collectives): void {
  const { compute } = unit.device;
  const grad = unit.gradient.take();
  const count = entries.reduce((total, { numel }) => total + numel, 0);
  const packed = held(() => Tensor.empty([count], grad.dtype, unit.device));
  const each = (copy: (entry: LayoutEntry, packedAt: Range) => void): void => {
    let offset = 0;
    for (const entry of entries) {
      copy(entry, { offset, numel: entry.numel });
      offset += entry.numel;
    }
  };
  each((entry, at) => copyFlat(packed, at, grad, entry, compute));
  const purpose = `parts of gradients of ${unit.name}`;
  group.allReduce(packed, { stream: compute, purpose }).wait(compute);
  each((entry, at) => copyFlat(grad, entry, packed, at, compute));
  packed.release();
  grad.release();
}
