// Operands of ops: converts tensors of several dtypes, and numbers, to one dtype.

import { type DType, isFloating } from '../../runtime/dtype.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { CompareOp } from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { fits, integerRange } from '../host-values.js';
import { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { constant, notTensorError, requireSameDevice, requireSameType } from './shapes.js';

/** A tensor, or a number that stands for one of shape []. */
export type Operand = Tensor | number;

/** Integers from narrow to wide. */
const INTEGERS: readonly DType[] = ['bool', 'u8', 'i32', 'i64'];

/**
 * Calls body(x, y) with `a` and `b` converted to tensors of one dtype, as PyTorch does. A number
 * takes the tensor's dtype. Integers take a floating tensor's dtype, or the wider of two integer
 * dtypes. An integer tensor and a fraction become f32. Two floating dtypes do not mix. Frees
 * temporaries. Throws DS_DTYPE, DS_DEVICE, DS_ARGUMENT.
 */
export function withOperands<Result>(
  op: string,
  a: Operand,
  b: Operand,
  body: (x: Tensor, y: Tensor) => Result,
): Result {
  const isPlain = a instanceof Tensor && b instanceof Tensor && a.dtype === b.dtype;
  if (isPlain && a.device === b.device) return body(a, b);
  return withConverted(op, [a, b], commonDType(op, a, b), body);
}

function withConverted<Result>(
  op: string,
  [a, b]: readonly [Operand, Operand],
  dtype: DType,
  body: (x: Tensor, y: Tensor) => Result,
): Result {
  const home = (a instanceof Tensor ? a : (b as Tensor)).device;
  if (a instanceof Tensor && b instanceof Tensor) requireSameDevice(op, a, b);
  const convert = (value: Operand): Tensor =>
    value instanceof Tensor ? cast(value, dtype) : constant(value, dtype, home);
  const [x, y] = [convert(a), convert(b)];
  try {
    return body(x, y);
  } finally {
    if (x !== a) x.dispose();
    if (y !== b) y.dispose();
  }
}

function commonDType(op: string, a: Operand, b: Operand): DType {
  if (a instanceof Tensor && b instanceof Tensor) return dtypeOfBoth(op, a, b);
  if (a instanceof Tensor && typeof b === 'number') return dtypeWithNumber(op, a, b);
  if (b instanceof Tensor && typeof a === 'number') return dtypeWithNumber(op, b, a);
  const other = a instanceof Tensor || typeof a === 'number' ? b : a;
  throw notTensorError(op, 'tensors, or a tensor and a number', other);
}

function dtypeOfBoth(op: string, a: Tensor, b: Tensor): DType {
  if (a.dtype === b.dtype) return a.dtype;
  const [i, j] = [INTEGERS.indexOf(a.dtype), INTEGERS.indexOf(b.dtype)];
  if (i < 0 && j < 0) requireSameType(op, a, b);
  if (i < 0) return a.dtype;
  return j < 0 ? b.dtype : required(INTEGERS[Math.max(i, j)]);
}

/** Returns the common dtype of a tensor and a number. */
function dtypeWithNumber(op: string, { dtype, shape }: Tensor, value: number): DType {
  if (isFloating(dtype)) return dtype;
  if (!Number.isInteger(value)) return 'f32';
  const integerDtype = dtype === 'bool' ? 'i64' : dtype;
  if (fits(value, integerDtype)) return integerDtype;
  const [min, max] = integerRange(integerDtype);
  throw argumentError(
    op,
    `a number in [${min}, ${max}] with ${describe({ dtype, shape })}`,
    String(value),
    "Cast the tensor: .to('i64') or .to('f32').",
  );
}

/**
 * Returns the comparison of integers of `dtype` with an integer that is equal to `op` with
 * `number`: x < 1.5 is x <= 1. Returns true or false if all or no integers of `dtype` satisfy it,
 * and null if `number` itself is an integer of `dtype`.
 */
export function toIntegerComparison(
  op: CompareOp,
  dtype: DType,
  number: number,
): { op: CompareOp; number: number } | boolean | null {
  const integerDtype = dtype === 'bool' ? 'i64' : (dtype as 'u8' | 'i32' | 'i64');
  if (fits(number, integerDtype)) return null;
  if (op === 'eq' || op === 'ne' || Number.isNaN(number)) return op === 'ne';
  const isBelow = op === 'lt' || op === 'le';
  const nearest = isBelow ? Math.floor(number) : Math.ceil(number);
  if (fits(nearest, integerDtype)) return { op: isBelow ? 'le' : 'ge', number: nearest };
  return isBelow === number > 0;
}
