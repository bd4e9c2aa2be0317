// A chain of layers in checkpointed segments of several layers each.

import { argumentError, valueError } from '../../runtime/input-errors.js';
import { watchFirstAttention } from '../kept-results.js';
import { requireTensor } from '../ops/shapes.js';
import { scope } from '../scope.js';
import { isGradEnabled } from '../tape.js';
import type { Tensor } from '../tensor.js';
import { checkpoint } from './checkpoint.js';
import { currentPolicy, recordBefore } from './policy.js';

/**
 * A function, or a module (any object with call()), from one tensor to the next. It also receives
 * the arguments that all layers share.
 */
export type Layer<Given extends (Tensor | null)[] = []> =
  | ((x: Tensor, ...given: Given) => Tensor)
  | { call(x: Tensor, ...given: Given): Tensor };

function apply<Given extends (Tensor | null)[]>(layer: Layer<Given>, x: Tensor, given: Given) {
  return typeof layer === 'function' ? layer(x, ...given) : layer.call(x, ...given);
}

/** Calls the layers one after the other, and frees intermediate tensors as soon as possible. */
function chain<Given extends (Tensor | null)[]>(
  layers: readonly Layer<Given>[],
  input: Tensor,
  given: Given,
): Tensor {
  let x = input;
  for (const layer of layers) {
    const next = scope(() => apply(layer, x, given));
    if (x !== input && x !== next) x.dispose();
    x = next;
  }
  return x;
}

/**
 * Cuts `list` into `segments` of equal length (they differ by at most one item), at most one per
 * item. null uses number_checkpoints of configure(), else one per item. Throws DS_ARGUMENT unless
 * `segments` is an integer from 1.
 */
export function segmentsOf<Item>(list: readonly Item[], segments: number | null): Item[][] {
  const segmentCount = segments ?? currentPolicy().numberCheckpoints ?? list.length;
  if (!Number.isInteger(segmentCount) || (segmentCount < 1 && list.length > 0)) {
    throw argumentError(
      'checkpointSequential',
      'a positive number of segments, or null',
      String(segments),
    );
  }
  const count = Math.min(segmentCount, list.length);
  const border = (i: number): number => Math.floor((i * list.length) / count);
  return Array.from({ length: count }, (_, i) => list.slice(border(i), border(i + 1)));
}

const isList = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && Symbol.iterator in value;

/**
 * Runs the layers in order: in `segments` of equal numbers of layers (they differ by at most one),
 * each by checkpoint(). null uses numberCheckpoints of configure(), or one segment per layer. With
 * L layers of S bytes each and k layers per segment, the forward keeps L / k inputs and the
 * backward rebuilds k * S. If an input is as large as S, k = sqrt(L) needs the least memory.
 * Between segments only the kept inputs exist. Unlike PyTorch's checkpoint_sequential the last
 * segment is checkpointed too, unless configure() set keepLastSegment. Every layer receives
 * `given`, which lives until the last replay. Throws DS_ARGUMENT if `layers` is no list, or `input`
 * is no tensor. Source: Chen et al. 2016.
 */
export function checkpointSequential<Given extends (Tensor | null)[]>(
  layers: Iterable<Layer<Given>>,
  segments: number | null,
  input: Tensor,
  ...given: Given
): Tensor {
  if (!isList(layers)) {
    throw valueError('checkpointSequential', 'a list of layers', layers);
  }
  requireTensor('checkpointSequential', input);
  const { keepsLast, store } = currentPolicy();
  let x = input;
  const parts = segmentsOf([...layers], segments);
  const last = parts.length - (keepsLast ? 2 : 1);
  for (const [i, part] of parts.entries()) {
    const run = (first: Tensor, ...also: Given): Tensor => chain(part, first, also);
    const isKept = keepsLast && i === parts.length - 1 && isGradEnabled();
    const at = x;
    const next = isKept
      ? watchFirstAttention(
          () => store.prefetchNewest(at.device),
          () => run(at, ...given),
        )
      : recordBefore(last - i, () => checkpoint(run, at, ...given));
    if (x !== input) x.dispose();
    x = next;
  }
  return x;
}
