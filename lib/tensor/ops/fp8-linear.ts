// The linear layer in FP8: operands are quantized for each product, and sums are f32.

import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { keysOf } from '../../runtime/typed-keys.js';
import type { View } from '../../runtime/view.js';
import { isContiguous } from '../../runtime/view.js';
import { refuseBatchInvariant } from '../batch-invariant.js';
import { activeCollector } from '../grad-sink.js';
import { isRecomputable, SavedTensor } from '../recompute.js';
import { held, scope } from '../scope.js';
import { type GradSink, isGradEnabled, record, type Saved } from '../tape.js';
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

export const FP8_RECIPES = keysOf(RECIPES);

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
const pad = (n: number, multiple: number): number => Math.ceil(n / multiple) * multiple;

function scaleShape(scaling: Scaling, rows: number, columns: number): number[] {
  if (scaling === 'tensor') return [1];
  if (scaling === 'row') return [rows];
  if (scaling === 'group') return [groupsOf(columns), pad(rows, 4)];
  return [groupsOf(rows), pad(groupsOf(columns), 4)];
}

function allocateCodes(
  [rows, columns]: readonly [number, number],
  { format, scaling }: Pick<Codes, 'format' | 'scaling'>,
  device: Device,
  sharedScale?: Tensor,
): Codes {
  const codes = Tensor.empty([rows, pad(columns, FP8_MULTIPLE)], 'u8', device);
  const scale = sharedScale ?? Tensor.empty(scaleShape(scaling, rows, columns), 'f32', device);
  return { codes, scale, format, scaling };
}

/** Quantizes the rows of a matrix, its columns, or both, in one pass. */
function quantize(
  matrix: View,
  device: Device,
  {
    format,
    scaling,
    ...outputs
  }: Pick<Codes, 'format' | 'scaling'> & {
    rows?: boolean;
    columns?: boolean;
  },
): { rows: Codes | null; columns: Codes | null } {
  const [height, width] = leading(matrix.shape, 2);
  const kind = { format, scaling };
  const rows = outputs.rows ? allocateCodes([height, width], kind, device) : null;
  const isOne = scaling === 'tensor';
  const shared = isOne ? rows?.scale : undefined;
  const columns = outputs.columns ? allocateCodes([width, height], kind, device, shared) : null;
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

/** Computes out (+)= a b^T (+ bias). */
function multiplyCodes(
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

/** Codes and scales of the rows of a matrix by "rowwise": e4m3, and powers of two. */
interface RowCodes {
  /** [rows, columns padded to 16] u8. */
  readonly codes: Tensor;
  /** [rows] f32. */
  readonly scale: Tensor;
}

const BY_ROW = { format: 'e4m3', scaling: 'row' } as const;

/** Quantizes the rows of a contiguous matrix, into `memory` or new tensors. */
export function quantizeRows(matrix: Tensor, memory?: RowCodes): RowCodes {
  const out = memory ?? allocateCodes([matrix.size(0), matrix.size(1)], BY_ROW, matrix.device);
  kernels.fp8Quantize({
    in: matrix,
    out: out.codes,
    transposed: null,
    scale: out.scale,
    transposedScale: null,
    ...BY_ROW,
  });
  return out;
}

/** Computes out = a b^T (+ bias). */
export function multiplyRows(a: RowCodes, b: RowCodes, out: View, bias: Tensor | null): void {
  multiplyCodes({ ...a, ...BY_ROW }, { ...b, ...BY_ROW }, out, { bias, fast: true });
}

/**
 * The codes of a layer's input. The backward reads the codes of its transpose, which nodes hold as
 * a saved tensor. Layers of one input share them (shareCasts).
 */
class InputCodes implements Saved {
  private references = 0;
  private rows: Codes | null = null;
  private transposed: Codes | null = null;

  /** Returns the codes of the rows. Quantizes missing codes; for `backward` also the transpose. */
  cast(matrix: View, device: Device, scaling: Scaling, backward: boolean): Codes {
    const kind = { format: 'e4m3', scaling } as const;
    const missing = { rows: !this.rows, columns: backward && !this.transposed };
    if (missing.rows || missing.columns) {
      const quantized = held(() => quantize(matrix, device, { ...kind, ...missing }));
      this.rows ??= quantized.rows;
      this.transposed ??= quantized.columns;
      // Rows and columns may share their scale; each has a reference of its own.
      if (quantized.rows && quantized.columns?.scale === quantized.rows.scale)
        quantized.rows.scale.retain();
    }
    return required(this.rows);
  }

  /** The operand of the weight gradient, after a cast for the backward. */
  get columns(): Codes {
    return required(this.transposed);
  }

  /** Frees the codes that only the forward reads. */
  endForward(): void {
    freeCodes(this.rows);
    this.rows = null;
  }

  retain(): this {
    this.references++;
    // retain() tells the replay of a checkpointed function that the node will read these codes, so
    // the replay computes them.
    this.transposed?.codes.retain().release();
    return this;
  }

  release(): void {
    if (--this.references > 0) return;
    this.endForward();
    freeCodes(this.transposed);
    this.transposed = null;
  }
}

function freeCodes(codes: Codes | null): void {
  codes?.codes.release();
  codes?.scale.release();
}

/**
 * The innermost shareCasts(): its input, that input's last change, and the recipe of the first
 * layer.
 */
interface Sharing {
  readonly x: Tensor;
  readonly changedAt: number;
  readonly codes: InputCodes;
  recipe: Fp8Recipe | null;
}
let activeSharing: Sharing | null = null;

/**
 * Runs `body`, which calls linear layers with the input `x`: FP8 layers among them share its casts.
 */
export function shareCasts<T>(x: Tensor, body: () => T): T {
  const outer = activeSharing;
  const codes = new InputCodes().retain();
  activeSharing = { x, changedAt: x.changedAt, codes, recipe: null };
  try {
    return body();
  } finally {
    activeSharing = outer;
    codes.endForward();
    codes.release();
  }
}

function sharedCodes(x: Tensor, recipe: Fp8Recipe): InputCodes | null {
  if (activeSharing?.x !== x || activeSharing.changedAt !== x.changedAt) return null;
  activeSharing.recipe ??= recipe;
  return activeSharing.recipe === recipe ? activeSharing.codes : null;
}

/**
 * Returns x W^T + b with FP8 operands; shapes and errors as in linear(). The weight's dims must be
 * multiples of 16 on a GPU that is to use its tensor cores. `addsBias` as in linearOfRank(). The
 * backward keeps the codes of x^T instead of x.
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
  const backward = isGradEnabled() && weight.requiresGrad;
  // If the backward can recompute x, it keeps no codes.
  const kept = backward && isRecomputable(x) ? new SavedTensor(x) : null;
  const shared = sharedCodes(x, recipe);
  const codes = (shared ?? new InputCodes()).retain();
  try {
    scope(() => {
      const a = codes.cast(gemmRows(x), device, parts.rows, backward && !kept);
      const b = rowsOf(weight, device, 'e4m3', parts.weight);
      multiplyCodes(a, b, asRows(out), { bias: addsBias ? bias : null, fast: true });
    });
    const inputs = bias ? [x, weight, bias] : [x, weight];
    const operand = kept ?? codes;
    record('fp8_linear', inputs, [out], backward ? [operand, weight] : [weight], ([grad], sink) => {
      scope(() => productsBackward(grad, operand, weight, parts, sink));
      if (bias) sink.write(2, (db, accumulate) => sumToShape(gemmRows(grad), db, accumulate));
    });
  } finally {
    if (!shared) codes.endForward();
    codes.release();
  }
  return out;
}

/** Computes dx = dz W and dW = dz^T x from dz [.., out]. One pass quantizes dz and dz^T. */
function productsBackward(
  dz: Tensor,
  x: SavedTensor | InputCodes,
  weight: Tensor,
  { rows: scaling, weight: ofWeight, gradient: format }: RecipeParts,
  sink: GradSink,
): void {
  const { device } = dz;
  const matrix = gemmRows(dz);
  const isPrompt = sink.needs(1) && !activeCollector();
  if (isPrompt && x instanceof SavedTensor) x.begin();
  const kind = { format, scaling, rows: sink.needs(0), columns: isPrompt };
  const codes = kind.rows || kind.columns ? quantize(matrix, device, kind) : null;
  sink.write(0, (dx, accumulate) =>
    scope(() => {
      const b = columnsOf(weight, device, 'e4m3', ofWeight);
      multiplyCodes(required(codes?.rows), b, asRows(dx), { accumulate });
    }),
  );
  sink.markComplete(0);
  sink.writeDeferred(1, [dz, x], (dw, accumulate) =>
    scope(() => {
      const a = codes?.columns ?? columnsOf(gemmRows(dz), device, format, scaling);
      const b =
        x instanceof SavedTensor
          ? columnsOf(gemmRows(x.value()), device, 'e4m3', scaling)
          : x.columns;
      multiplyCodes(a, b, dw, { accumulate });
    }),
  );
}
