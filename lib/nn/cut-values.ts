// Initial values of a parameter that is split over ranks: the elements that a single rank's tensor
// would have at the same indices.

import { type Box, type Region, rangesOf } from '../runtime/box.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import { type ElementPart, held, noGrad, scope, Tensor } from '../tensor/index.js';
import { type Initializer, writeInitial } from './initializers.js';
import type { StoredValues } from './stored-values.js';

/** Calls `body` with each box, contiguous in `out`, as a tensor of its shape. */
function forEachBox(
  out: Tensor,
  boxes: readonly Box[],
  body: (part: Tensor, box: Box) => void,
): void {
  let at = out.offset;
  for (const box of boxes) {
    const part = held(() => out.alias(box.shape, undefined, at));
    body(part, box);
    at += part.numel;
    part.release();
  }
}

/**
 * Returns the indices in the complete tensor of a box that is cut along at most one dim; null for
 * other boxes.
 */
function partOf({ offset, shape }: Box, whole: readonly number[]): ElementPart | null {
  const dims = shape.flatMap((size, d) => (size === whole[d] ? [] : [d]));
  if (dims.length > 1) return null;
  const dim = dims[0] ?? 0;
  const inner = numel(whole.slice(dim + 1));
  const along = (sizes: readonly number[]): number => (sizes[dim] ?? 1) * inner;
  return { first: (offset[dim] ?? 0) * inner, row: along(shape), stride: along(whole) };
}

/**
 * Writes the region of the tensor of `init` into `out`, contiguous. Creates the whole tensor
 * temporarily if `init` cannot create parts, or if boxes are cut along several dims.
 */
export function writeCut(init: Initializer, { whole, boxes }: Region, out: Tensor): void {
  const parts = boxes.map((box) => partOf(box, whole));
  if (init.part && parts.every((part) => part !== null)) {
    let i = 0;
    forEachBox(out, boxes, (part) => {
      if (part.numel > 0) init.part?.(part, { whole, ...required(parts[i]) });
      ++i;
    });
    return;
  }
  noGrad(() =>
    scope(() => {
      const all = Tensor.empty(whole, out.dtype, out.device);
      writeInitial(init, all);
      copyCut(all, boxes, out);
    }),
  );
}

/** Copies boxes of `whole` into `out` contiguously. */
export function copyCut(whole: Tensor, boxes: readonly Box[], out: Tensor): void {
  forEachBox(out, boxes, (part, { offset, shape }) => {
    const source = shape.reduce<Tensor>(
      (from, size, d) => from.narrow(d, required(offset[d]), size),
      whole,
    );
    kernels.copy({ in: source, out: part });
  });
}

/** Boxes of stored values, contiguous in memory. */
export class CutStoredValues implements StoredValues {
  constructor(
    private readonly values: StoredValues,
    private readonly boxes: readonly Box[],
  ) {}

  get dtype() {
    return this.values.dtype;
  }

  get origin(): string {
    return this.values.origin;
  }

  read(out: Tensor, from: number): void {
    for (const range of rangesOf(this.boxes, from, out.numel)) {
      const part = held(() => out.alias([range.numel], undefined, out.offset + range.offset));
      this.values.read(part, range.from, range.box);
      part.release();
    }
  }

  done(): void {
    this.values.done();
  }
}
