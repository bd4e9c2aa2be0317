// Tensors from rules: even steps, identity matrices, random integers and permutations, and products
// of vectors.

import { cpu, device as findDevice } from '../../runtime/device.js';
import { parseDType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger, requireSizes } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { integerRange } from '../host-values.js';
import { inOrder, nextRandom } from '../random.js';
import { scope } from '../scope.js';
import { noGrad } from '../tape.js';
import { Tensor, type TensorOptions } from '../tensor.js';
import { arange, cast, full, to, uniform, zeros } from './creation.js';
import { add, mul, scale } from './elementwise.js';
import { matmul } from './matmul.js';
import { requireSameType, requireTensor, shapeError, viewOf } from './shapes.js';
import { unsqueeze } from './views.js';

// Operations: creation.

/** Returns a tensor like `like` in shape, dtype and device, filled with `value`. */
export function fullLike(like: Tensor, value: number): Tensor {
  requireTensor('fullLike', like);
  return full(like.shape, value, { dtype: like.dtype, device: like.device });
}

/**
 * Returns `steps` numbers from `start` to `end`, both included, at equal distances; default f32 on
 * the CPU. Throws DS_ARGUMENT unless the ends are finite and `steps` is an integer from 0.
 */
export function linspace(
  start: number,
  end: number,
  steps: number,
  options: TensorOptions = {},
): Tensor {
  requireFinite('linspace start', start);
  requireFinite('linspace end', end);
  requireInteger('linspace steps', steps, 0);
  const given = readOptions('linspace', options, namesOf.TensorOptions);
  const step = steps > 1 ? (end - start) / (steps - 1) : 0;
  const out = arange(steps, { ...given, start, step });
  if (steps > 1) kernels.fill({ out: viewOf(out, [1], [1], out.offset + steps - 1), value: end });
  return out;
}

/**
 * Returns 1 on the diagonal of [rows, columns], 0 elsewhere; square without `columns`. Default: f32
 * on the CPU. Throws DS_ARGUMENT unless the sizes are integers from 0.
 */
export function eye(rows: number, columns?: number, options: TensorOptions = {}): Tensor {
  requireInteger('eye rows', rows, 0);
  const width = requireInteger('eye columns', columns ?? rows, 0);
  const out = zeros([rows, width], readOptions('eye', options, namesOf.TensorOptions));
  const diagonal = viewOf(out, [Math.min(rows, width)], [width + 1]);
  if (out.numel > 0) kernels.fill({ out: diagonal, value: 1 });
  return out;
}

/** Largest number of values of a random integer: two draws of 24 bits. */
const MAX_VALUES = 2 ** 48;

// Operations: random.

/**
 * Returns integers in [low, high) from the library's generator: the same on every device; default
 * i64 on the CPU. Throws DS_SHAPE if the sizes do not fit, DS_ARGUMENT unless `low` is below
 * `high`, both integers of the dtype.
 */
export function randint(
  low: number,
  high: number,
  shape: readonly number[],
  given: TensorOptions = {},
): Tensor {
  requireInteger('randint low', low, Number.MIN_SAFE_INTEGER);
  requireInteger('randint high', high, low + 1);
  requireFinite('randint high - low', high - low, 1, MAX_VALUES + 1);
  requireSizes('randint', shape);
  const options = readOptions('randint', given, namesOf.TensorOptions);
  const dtype = parseDType(options.dtype ?? 'i64', 'randint');
  const device = findDevice(options.device ?? cpu());
  if (dtype === 'u8' || dtype === 'i32') {
    const [min, max] = integerRange(dtype);
    requireFinite(`randint low for ${dtype}`, low, Number(min));
    requireFinite(`randint high for ${dtype}`, high, low, Number(max) + 2);
  }
  return noGrad(() =>
    scope(() => {
      const draw = (): Tensor => cast(uniform(shape, { device: cpu() }), 'f64');
      const unit = add(draw(), scale(draw(), 2 ** -24));
      return to(cast(add(cast(scale(unit, high - low), 'i64'), low), dtype), device);
    }),
  );
}

/**
 * Returns 0 to count - 1 in a random order from the library's generator: the same on every device;
 * default i64 on the CPU.
 */
export function randperm(count: number, given: TensorOptions = {}): Tensor {
  requireInteger('randperm', count, 0);
  const options = readOptions('randperm', given, namesOf.TensorOptions);
  const order = Array.from({ length: count }, (_, i) => i);
  const draws = scope(() => {
    const out = Tensor.empty([2, count], 'f32', cpu());
    kernels.randomUniform({ out, low: 0, high: 1, ...nextRandom(), ...inOrder });
    return out.toArray();
  });
  for (let i = count - 1; i > 0; --i) {
    const unit = required(draws[i]) + required(draws[count + i]) * 2 ** -24;
    const j = Math.floor(unit * (i + 1));
    [order[i], order[j]] = [required(order[j]), required(order[i])];
  }
  return Tensor.from(order, { dtype: 'i64', ...options });
}

function requireVectors(op: string, a: Tensor, b: Tensor): void {
  requireSameType(op, a, b);
  if (a.ndim === 1 && b.ndim === 1) return;
  throw shapeError(op, 'two vectors, [M] and [N]', `${describe(a)} and ${describe(b)}`);
}

// Operations: products; methods too.

/**
 * Returns a[i] b[j] of vectors [M] and [N]: [M, N]. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE if the
 * tensors do not fit together.
 */
export function outer(a: Tensor, b: Tensor): Tensor {
  requireVectors('outer', a, b);
  return mul(unsqueeze(a, 1), b);
}

/**
 * Returns the sum of a[i] b[i] of two vectors of one size; floating dtypes. Throws DS_SHAPE,
 * DS_DTYPE or DS_DEVICE if the tensors do not fit together.
 */
export function dot(a: Tensor, b: Tensor): Tensor {
  requireVectors('dot', a, b);
  return matmul(a, b);
}

/**
 * Returns the matrix product of each pair: [B, M, K] x [B, K, N]; nothing broadcasts. Throws
 * DS_SHAPE, DS_DTYPE or DS_DEVICE if the tensors do not fit together.
 */
export function bmm(a: Tensor, b: Tensor): Tensor {
  requireSameType('bmm', a, b);
  if (a.ndim === 3 && b.ndim === 3 && a.shape[0] === b.shape[0]) return matmul(a, b);
  throw shapeError('bmm', '[B, M, K] and [B, K, N]', `${describe(a)} and ${describe(b)}`);
}
