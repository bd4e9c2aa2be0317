// The linear layer in FP8: operands are quantized for each product, and sums are f32.

import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import type { View } from '../../runtime/view.js';
import { isContiguous } from '../../runtime/view.js';
import { refuseBatchInvariant } from '../batch-invariant.js';
import { lateGradients } from '../grad-sink.js';
import { SavedTensor } from '../recompute.js';
import { held, scope } from '../scope.js';
import { type GradSink, record, type Saved } from '../tape.js';
import { Tensor } from '../tensor.js';
import { checkLinear, outputShape } from './linear.js';
import { gemmRows } from './matmul.js';
import { asRows, sumToShape } from './shapes.js';
import { contiguous } from './views.js';

/** How FP8 layers scale their operands (docs/fp8.md). */
export type Fp8Recipe = 'tensorwise' | 'rowwise' | 'blockwise';

type Scaling = 'tensor' | 'row' | 'group' | 'square';
type Format = 'e4m3' | 'e5m2';

/** Scalings of activations and gradients, of weights, and the format of gradients. */
interface RecipeParts {
  readonly rows: Scaling;
  readonly weight: Scaling;
  readonly gradient: Format;
}

const RECIPES: Readonly<Record<Fp8Recipe, RecipeParts>> = {
  tensorwise: { rows: 'tensor', weight: 'tensor', gradient: 'e5m2' },
  rowwise: { rows: 'row', weight: 'row', gradient: 'e4m3' },
  blockwise: { rows: 'group', weight: 'square', gradient: 'e4m3' },
};

export const FP8_RECIPES = Object.keys(RECIPES) as readonly Fp8Recipe[];

/** Dims of a weight must be multiples of this: tensor cores read 16 codes at a time. */
export const FP8_MULTIPLE = 16;

/** An operand of a product a b^T: its rows as codes, and their scales. */
interface Codes {
  readonly codes: Tensor;
  readonly scale: Tensor;
  readonly format: Format;
  readonly scaling: Scaling;
}

const groupsOf = (n: number): number => Math.ceil(n / 128);
const padded = (n: number, multiple: number): number => Math.ceil(n / multiple) * multiple;

function scaleShape(scaling: Scaling, rows: number, columns: number): number[] {
  if (scaling === 'tensor') return [1];
  if (scaling === 'row') return [rows];
  if (scaling === 'group') return [groupsOf(columns), padded(rows, 4)];
  return [groupsOf(rows), padded(groupsOf(columns), 4)];
}

function emptyCodes(
  [rows, columns]: readonly [number, number],
  { format, scaling }: Pick<Codes, 'format' | 'scaling'>,
  device: Device,
): Codes {
  const codes = Tensor.empty([rows, padded(columns, FP8_MULTIPLE)], 'u8', device);
  const scale = Tensor.empty(scaleShape(scaling, rows, columns), 'f32', device);
  return { codes, scale, format, scaling };
}

/** The rows of a matrix, the rows of its transpose, or both, in one pass. */
function quantize(
  matrix: View,
  device: Device,
  {
    format,
    scaling,
    ...wanted
  }: Pick<Codes, 'format' | 'scaling'> & {
    rows?: boolean;
    columns?: boolean;
  },
): { rows: Codes | null; columns: Codes | null } {
  const [height, width] = leading(matrix.shape, 2);
  const kind = { format, scaling };
  const rows = wanted.rows ? emptyCodes([height, width], kind, device) : null;
  let columns = wanted.columns ? emptyCodes([width, height], kind, device) : null;
  const isOne = scaling === 'tensor';
  if (isOne && rows && columns) columns = { ...columns, scale: rows.scale };
  kernels.fp8Quantize({
    in: matrix,
    out: rows?.codes ?? null,
    transposed: columns?.codes ?? null,
    scale: rows?.scale ?? (isOne ? required(columns).scale : null),
    transposedScale: isOne ? null : (columns?.scale ?? null),
    format,
    scaling,
  });
  return { rows, columns };
}

const rowsOf = (matrix: View, device: Device, format: Format, scaling: Scaling): Codes =>
  required(quantize(matrix, device, { format, scaling, rows: true }).rows);
const columnsOf = (matrix: View, device: Device, format: Format, scaling: Scaling): Codes =>
  required(quantize(matrix, device, { format, scaling, columns: true }).columns);

/** out (+)= a b^T (+ bias). */
function product(
  a: Codes,
  b: Codes,
  out: View,
  {
    bias = null,
    fast = false,
    accumulate = false,
  }: {
    bias?: Tensor | null;
    fast?: boolean;
    accumulate?: boolean;
  },
): void {
  refuseBatchInvariant('a linear layer', 'products in f32, bf16 or f16', 'FP8');
  kernels.fp8Matmul({
    a: a.codes,
    b: b.codes,
    aScale: a.scale,
    bScale: b.scale,
    bias,
    out,
    aFormat: a.format,
    bFormat: b.format,
    aScaling: a.scaling,
    bScaling: b.scaling,
    fast,
    accumulate,
  });
}

/**
 * Codes of an input that several layers read: the forward casts it once, and so does the backward.
 * Nodes hold it as a saved tensor; codes are freed with the last hold.
 */
class SharedCasts implements Saved {
  private holds = 0;
  private rows: Codes | null = null;
  private columns: Codes | null = null;

  /** The forward's operand; the first caller casts. */
  ofRows(cast: () => Codes): Codes {
    this.rows ??= held(cast);
    return this.rows;
  }

  /** The operand of the weight gradients; the first caller casts. */
  ofColumns(cast: () => Codes): Codes {
    this.columns ??= held(cast);
    return this.columns;
  }

  /** Frees the codes that only the forward reads. */
  endForward(): void {
    free(this.rows);
    this.rows = null;
  }

  retain(): this {
    this.holds++;
    return this;
  }

  release(): void {
    if (--this.holds > 0) return;
    this.endForward();
    free(this.columns);
    this.columns = null;
  }
}

function free(codes: Codes | null): void {
  codes?.codes.release();
  codes?.scale.release();
}

/** The innermost sharingCasts(): its input, unchanged since, and the recipe of its first layer. */
interface Sharing {
  readonly x: Tensor;
  readonly changedAt: number;
  readonly casts: SharedCasts;
  recipe: Fp8Recipe | null;
}
let sharing: Sharing | null = null;

/**
 * Runs `body`, which calls linear layers with the input `x`: FP8 layers among them share its casts.
 */
export function sharingCasts<T>(x: Tensor, body: () => T): T {
  const outer = sharing;
  const casts = new SharedCasts().retain();
  sharing = { x, changedAt: x.changedAt, casts, recipe: null };
  try {
    return body();
  } finally {
    sharing = outer;
    casts.endForward();
    casts.release();
  }
}

function sharedCasts(x: Tensor, recipe: Fp8Recipe): SharedCasts | null {
  if (sharing?.x !== x || sharing.changedAt !== x.changedAt) return null;
  sharing.recipe ??= recipe;
  return sharing.recipe === recipe ? sharing.casts : null;
}

/**
 * x W^T + b with FP8 operands; shapes and errors as in linear(). The weight's dims must be
 * multiples of 16 on a GPU that is to use its tensor cores. `addsBias` as in linearOfRank(). The
 * backward keeps x, and quantizes it again.
 */
export function fp8Linear(
  x: Tensor,
  weight: Tensor,
  bias: Tensor | null,
  recipe: Fp8Recipe,
  addsBias = true,
): Tensor {
  checkLinear('fp8_linear', x, weight, bias);
  if (!isContiguous(weight) || (bias && !isContiguous(bias))) {
    return fp8Linear(x, contiguous(weight), bias && contiguous(bias), recipe, addsBias);
  }
  const parts = RECIPES[recipe];
  const { device } = x;
  const out = Tensor.empty(outputShape(x, weight), x.dtype, device);
  const casts = sharedCasts(x, recipe);
  scope(() => {
    const matrix = gemmRows(x);
    const cast = (): Codes => rowsOf(matrix, device, 'e4m3', parts.rows);
    const a = casts ? casts.ofRows(cast) : cast();
    const b = rowsOf(weight, device, 'e4m3', parts.weight);
    product(a, b, asRows(out), { bias: addsBias ? bias : null, fast: true });
  });
  const kept = new SavedTensor(x);
  const inputs = bias ? [x, weight, bias] : [x, weight];
  const saved: Saved[] = weight.requiresGrad ? [kept, weight] : [weight];
  if (casts && weight.requiresGrad) saved.push(casts);
  record('fp8_linear', inputs, [out], saved, ([grad], sink) => {
    scope(() => productsBackward(grad, { kept, casts }, weight, parts, sink));
    if (bias) sink.write(2, (db, accumulate) => sumToShape(gemmRows(grad), db, accumulate));
  });
  return out;
}

/** From dz [.., out]: dx = dz W and dW = dz^T x. One pass over dz quantizes both of its forms. */
function productsBackward(
  dz: Tensor,
  { kept: x, casts }: { kept: SavedTensor; casts: SharedCasts | null },
  weight: Tensor,
  { rows: scaling, weight: ofWeight, gradient: format }: RecipeParts,
  sink: GradSink,
): void {
  const { device } = dz;
  const matrix = gemmRows(dz);
  const isPrompt = sink.needs(1) && !lateGradients();
  if (isPrompt) x.begin();
  const kind = { format, scaling, rows: sink.needs(0), columns: isPrompt };
  const codes = kind.rows || kind.columns ? quantize(matrix, device, kind) : null;
  sink.write(0, (dx, accumulate) =>
    scope(() => {
      const b = columnsOf(weight, device, 'e4m3', ofWeight);
      product(required(codes?.rows), b, asRows(dx), { accumulate });
    }),
  );
  sink.passed(0);
  sink.later(1, casts ? [dz, x, casts] : [dz, x], (dw, accumulate) =>
    scope(() => {
      const a = codes?.columns ?? columnsOf(gemmRows(dz), device, format, scaling);
      const inputs = gemmRows(x.value());
      const cast = (): Codes => columnsOf(inputs, device, 'e4m3', scaling);
      const b = casts ? casts.ofColumns(cast) : cast();
      product(a, b, dw, { accumulate });
    }),
  );
}
