// Formats a tensor as text: dtype, shape, device, and values abbreviated as in NumPy.

import { dtypeSize, isFloating, type NumericArray, rawArray } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { contiguousStrides, describe, type View } from '../runtime/view.js';
import { held } from './scope.js';
import { Tensor } from './tensor.js';

/** Tensors with more elements show only the first and last EDGE elements of each dim. */
const SUMMARISED = 1000;
const EDGE = 3;
const DIGITS = 4;
const WIDTH = 80;

/** Nested lists of numbers by shape; a number for shape []. NaN and infinities are null in JSON. */
export type NestedNumbers = number | NestedNumbers[];

/**
 * Returns the heading "Tensor([2, 2] f32, cpu)" and the values in columns, with 4 digits. Of more
 * than 1000 elements, "..." replaces the middle. Reads the values from the device. For a tensor
 * without values, returns the reason instead. Source: NumPy's and PyTorch's printing.
 */
function formatTensor(x: Tensor): string {
  const head = formatHead(x);
  if (x.missing !== null) return head;
  const { cells, shape } = readCorners(x);
  const text = formatBlock(alignCells(cells), shape, x.shape);
  const isOnOwnLines = text.includes('\n') || head.length + text.length >= WIDTH;
  return `${head}${isOnOwnLines ? '\n' : ' '}${text}`;
}

function formatHead(x: Tensor): string {
  const { missing } = x;
  if (missing !== null) return `Tensor(${describe(x)}, ${missing})`;
  const graph = x.gradFn ? `, from ${x.gradFn.name}` : x.requiresGrad ? ', requiresGrad' : '';
  return `Tensor(${describe(x)}, ${x.device.name}${graph})`;
}

interface Cells {
  /** Cells in row-major order. */
  cells: (number | bigint | boolean)[];
  shape: readonly number[];
}

/** Returns the values to show, and copies only these from the device. */
function readCorners(x: Tensor): Cells {
  const isCut = x.numel > SUMMARISED;
  const shape = x.shape.map((size) => (isCut ? Math.min(size, 2 * EDGE) : size));
  const narrow = x.dtype === 'f16' || x.dtype === 'bf16';
  const cornerValues = held(() => Tensor.empty(shape, narrow ? 'f32' : x.dtype, x.device));
  try {
    if (cornerValues.numel > 0) copyCorners(x, cornerValues);
    const raw: NumericArray = rawArray(cornerValues.dtype, cornerValues.numel);
    if (cornerValues.numel > 0)
      cornerValues.buffer.read(cornerValues.offset * dtypeSize(cornerValues.dtype), raw);
    if (x.dtype === 'bool') return { cells: Array.from(raw, Boolean), shape };
    // Number() would round values of i64 above 2^53: bigints keep all digits.
    const cells = isFloating(x.dtype) ? Array.from(raw, Number) : Array.from(raw, BigInt);
    return { cells, shape };
  } finally {
    cornerValues.release();
  }
}

/**
 * Copies the first and the last elements of every dim of `from` that exceeds `to`, block by block.
 */
function copyCorners(from: View, to: View, dim = 0): void {
  if (dim === from.shape.length) {
    kernels.copy({ in: from, out: to });
    return;
  }
  const size = required(from.shape[dim]);
  if (size === to.shape[dim]) copyCorners(from, to, dim + 1);
  else {
    copyCorners(edgeOf(from, dim, 0), edgeOf(to, dim, 0), dim + 1);
    copyCorners(edgeOf(from, dim, size - EDGE), edgeOf(to, dim, EDGE), dim + 1);
  }
}

/** Returns EDGE elements of `dim` from `start` on, as a view. */
function edgeOf({ buffer, dtype, offset, shape, strides }: View, dim: number, start: number): View {
  const at = offset + start * required(strides[dim]);
  return { buffer, dtype, offset: at, shape: shape.with(dim, EDGE), strides };
}

/** Formats all cells with one width; the finite values other than 0 determine the digits. */
function alignCells(cells: Cells['cells']): string[] {
  const texts = cells.map(chooseStyle(cells));
  const width = texts.reduce((max, { length }) => Math.max(max, length), 0);
  return texts.map((text) => text.padStart(width));
}

function chooseStyle(cells: Cells['cells']): (cell: Cells['cells'][number]) => string {
  const sizes: number[] = [];
  let areIntegers = true;
  for (const cell of cells) {
    if (typeof cell !== 'number') return String;
    if (!Number.isFinite(cell) || cell === 0) continue;
    sizes.push(Math.abs(cell));
    areIntegers &&= Number.isInteger(cell);
  }
  const [min, max] = [Math.min(...sizes), Math.max(...sizes)];
  const finite = (style: (value: number) => string) => (cell: Cells['cells'][number]) =>
    Number.isFinite(cell) ? style(cell as number) : infinite(cell as number);
  if (areIntegers && (sizes.length === 0 || max < 1e8)) return finite(String);
  const isWide = max / min > 1000 || max >= 1e8 || min < 1e-4;
  return finite((value) => (isWide ? value.toExponential(DIGITS) : value.toFixed(DIGITS)));
}

const infinite = (value: number): string =>
  Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';

/** Nests `texts` in brackets by `shape`; "..." stands where `fullShape` is larger. */
function formatBlock(
  texts: readonly string[],
  shape: readonly number[],
  fullShape: readonly number[],
): string {
  const strides = contiguousStrides(shape);
  const formatLevel = (dim: number, at: number): string => {
    if (dim === shape.length) return required(texts[at]);
    const parts = Array.from({ length: required(shape[dim]) }, (_, i) =>
      formatLevel(dim + 1, at + i * required(strides[dim])),
    );
    if (shape[dim] !== fullShape[dim]) parts.splice(EDGE, 0, '...');
    const indent = ' '.repeat(dim + 1);
    if (dim === shape.length - 1) return `[${joinParts(parts, indent)}]`;
    return `[${parts.join(`,${'\n'.repeat(shape.length - 1 - dim)}${indent}`)}]`;
  };
  return formatLevel(0, 0);
}

/** Joins parts into lines of at most WIDTH characters. */
function joinParts(parts: readonly string[], indent: string): string {
  const [first = ''] = parts;
  const each = Math.max(1, Math.floor((WIDTH - indent.length) / (first.length + 2)));
  const rows: string[] = [];
  for (let i = 0; i < parts.length; i += each) rows.push(parts.slice(i, i + each).join(', '));
  return rows.join(`,\n${indent}`);
}

/** Returns row-major `values` as lists nested by `shape`. */
function nest(values: readonly number[], shape: readonly number[]): NestedNumbers {
  const strides = contiguousStrides(shape);
  const nestLevel = (dim: number, at: number): NestedNumbers =>
    dim === shape.length
      ? required(values[at])
      : Array.from({ length: required(shape[dim]) }, (_, i) =>
          nestLevel(dim + 1, at + i * required(strides[dim])),
        );
  return nestLevel(0, 0);
}

declare module './tensor.js' {
  interface Tensor {
    /**
     * Returns the values as lists, nested as the shape is; a number for shape []. Waits for the
     * device.
     */
    toList(): NestedNumbers;
    /**
     * Returns toList(), so that Tensor.from(JSON.parse(JSON.stringify(x))) is x in f32; NaN and
     * infinities become null.
     */
    toJSON(): NestedNumbers;
  }
}

Tensor.prototype.toList = function (this: Tensor): NestedNumbers {
  return nest(this.toArray(), this.shape);
};

Tensor.prototype.toJSON = Tensor.prototype.toList;

Tensor.prototype.toString = function (this: Tensor): string {
  return formatTensor(this);
};

Object.defineProperties(Tensor.prototype, {
  /** The output of console.log(). */
  [Symbol.for('nodejs.util.inspect.custom')]: {
    configurable: true,
    writable: true,
    value(this: Tensor, depth: number): string {
      return depth < 0 ? formatHead(this) : formatTensor(this);
    },
  },
  /** `${loss}` is its text; Number(loss), loss * 2 and loss < 1 read the value of one element. */
  [Symbol.toPrimitive]: {
    configurable: true,
    writable: true,
    value(this: Tensor, hint: 'string' | 'number' | 'default'): string | number {
      return hint === 'number' ? this.item() : this.toString();
    },
  },
});
