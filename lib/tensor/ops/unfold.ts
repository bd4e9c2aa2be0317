// Sliding windows of images as rows of a matrix (im2col): a convolution becomes a matrix product.

import { valueError } from '../../runtime/input-errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { leading, required } from '../../runtime/required.js';
import { describe, type View } from '../../runtime/view.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { requireTensor, shapeError, viewOf } from './shapes.js';

/** One number for both dims, or height and width. */
export type Pair = number | readonly [number, number];

/** Placement of windows on an image. */
export interface WindowOptions {
  /** Distance between neighbouring windows. Default: 1. */
  stride?: Pair;
  /** Zeros on each side. Default: 0. */
  padding?: Pair;
  /** Distance between elements of a window. Default: 1. */
  dilation?: Pair;
}

/** Returns `value` as [height, width]. Throws DS_ARGUMENT unless both are integers from `min`. */
function pairOf(op: string, value: Pair, min: number): readonly [number, number] {
  const list: readonly unknown[] = Array.isArray(value) ? value : [value, value];
  if (list.length === 2) {
    return [requireInteger(op, list[0], min), requireInteger(op, list[1], min)];
  }
  const expected = 'a number, or one for the height and one for the width';
  throw valueError(op, expected, value);
}

/** Windows along one dim. */
interface Axis {
  size: number;
  kernel: number;
  stride: number;
  padding: number;
  dilation: number;
  count: number;
}

function axisOf(
  x: Tensor,
  dim: number,
  of: (name: keyof WindowOptions | 'kernel') => number,
): Axis {
  const size = required(x.shape[dim]);
  const [kernel, stride, padding, dilation] = [
    of('kernel'),
    of('stride'),
    of('padding'),
    of('dilation'),
  ] as [number, number, number, number];
  const reach = dilation * (kernel - 1) + 1;
  const count = Math.floor((size + 2 * padding - reach) / stride) + 1;
  if (count >= 1) return { size, kernel, stride, padding, dilation, count };
  const padded = padding > 0 ? ` with ${padding} zeros on each side` : '';
  throw shapeError('unfold', `at least ${reach} elements in dim ${dim}`, describe(x) + padded);
}

/**
 * Returns the windows of x [N, C, H, W] as columns: [N, C kh kw, L], where L counts the windows row
 * by row; the memory has [N, L, C kh kw]. Throws DS_SHAPE if no window fits, DS_ARGUMENT. Source:
 * torch.nn.functional.unfold.
 */
export function unfold(x: Tensor, kernelSize: Pair, given: WindowOptions = {}): Tensor {
  requireTensor('unfold', x);
  const options = readOptions('unfold', given, namesOf.WindowOptions);
  if (x.ndim !== 4) throw shapeError('unfold', 'images [N, C, H, W]', describe(x));
  const pairs = {
    kernel: pairOf('unfold kernelSize', kernelSize, 1),
    stride: pairOf('unfold stride', options.stride ?? 1, 1),
    padding: pairOf('unfold padding', options.padding ?? 0, 0),
    dilation: pairOf('unfold dilation', options.dilation ?? 1, 1),
  };
  const rows = axisOf(x, 2, (name) => pairs[name][0]);
  const columns = axisOf(x, 3, (name) => pairs[name][1]);
  const [N, C] = leading(x.shape, 2);
  const shape = [N, rows.count, columns.count, C, rows.kernel, columns.kernel];
  const memory = Tensor.empty(shape, x.dtype, x.device);
  const padded = paddedImage(x, rows, columns);
  kernels.copy({ in: windowsOf(padded, rows, columns), out: memory });
  if (padded !== x) padded.dispose();
  const length = rows.count * columns.count;
  const width = C * rows.kernel * columns.kernel;
  const out = memory.alias([N, width, length], [length * width, 1, width]);
  memory.dispose();
  record('unfold', [x], [out], [], ([grad], sink) => {
    sink.write(0, (dx, accumulate) => fold(grad, dx, [rows, columns], accumulate));
  });
  return out;
}

/** Returns x with zero padding, row-major; x itself if there is no padding. */
function paddedImage(x: Tensor, rows: Axis, columns: Axis): Tensor {
  if (rows.padding === 0 && columns.padding === 0) return x;
  const [N, C, H, W] = leading(x.shape, 4);
  const shape = [N, C, H + 2 * rows.padding, W + 2 * columns.padding];
  const out = Tensor.empty(shape, x.dtype, x.device);
  kernels.fill({ out, value: 0 });
  kernels.copy({ in: x, out: interior(out, rows, columns) });
  return out;
}

/** Returns the image inside its padding, as a view. */
function interior(padded: Tensor, rows: Axis, columns: Axis): View {
  const [N, C] = leading(padded.shape, 2);
  const [, , down = 0, right = 0] = padded.strides;
  const offset = padded.offset + rows.padding * down + columns.padding * right;
  return viewOf(padded, [N, C, rows.size, columns.size], padded.strides, offset);
}

/** Returns all windows of a padded image as a view [N, rows, columns, C, kh, kw]. */
function windowsOf(padded: View, rows: Axis, columns: Axis): View {
  const [N, C] = leading(padded.shape, 2);
  const [image = 0, channel = 0, down = 0, right = 0] = padded.strides;
  const shape = [N, rows.count, columns.count, C, rows.kernel, columns.kernel];
  const strides = [
    image,
    down * rows.stride,
    right * columns.stride,
    channel,
    down * rows.dilation,
    right * columns.dilation,
  ];
  return viewOf(padded, shape, strides);
}

/** Adds the gradients of all windows to the elements that they read. */
function fold(grad: Tensor, dx: Tensor, axes: readonly [Axis, Axis], accumulate: boolean): void {
  const [rows, columns] = axes;
  const [N, C] = leading(dx.shape, 2);
  const isPadded = rows.padding > 0 || columns.padding > 0;
  const shape = [N, C, rows.size + 2 * rows.padding, columns.size + 2 * columns.padding];
  const into = isPadded ? Tensor.empty(shape, dx.dtype, dx.device) : dx;
  if (isPadded || !accumulate) kernels.fill({ out: into, value: 0 });
  const windows = windowsOf(into, rows, columns);
  const [batch = 0, feature = 0, window = 0] = grad.strides;
  const sizes = [N, rows.count, columns.count, C];
  const spread = rows.kernel * columns.kernel * feature;
  const strides = [batch, columns.count * window, window, spread];
  // Windows overlap; elements with the same offset in them do not.
  for (let i = 0; i < rows.kernel; ++i) {
    for (let j = 0; j < columns.kernel; ++j) {
      const at = grad.offset + (i * columns.kernel + j) * feature;
      const to = windows.offset + i * (windows.strides[4] ?? 0) + j * (windows.strides[5] ?? 0);
      const target = viewOf(into, sizes, windows.strides.slice(0, 4), to);
      const slice = viewOf(grad, sizes, strides, at);
      kernels.binary({ a: target, b: slice, out: target, op: 'add', accumulate: false });
    }
  }
  if (!isPadded) return;
  const inner = interior(into, rows, columns);
  if (accumulate) kernels.binary({ a: dx, b: inner, out: dx, op: 'add', accumulate: false });
  else kernels.copy({ in: inner, out: dx });
}
