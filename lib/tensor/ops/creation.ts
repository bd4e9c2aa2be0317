// Creation: constants, ranges, random tensors, and casts and moves between devices.
import { DsError } from '../../errors.js';
import { cpu, type Device, deviceFor, device as findDevice } from '../../runtime/device.js';
import { type DType, dtypeSize, isDType, parseDType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import {
  requireFinite,
  requireInteger,
  requireNumber,
  requireSizes,
} from '../../runtime/require-number.js';
import { requireRepresentable } from '../host-values.js';
import { inOrder, nextRandom } from '../random.js';
import { record } from '../tape.js';
import { Tensor, type TensorOptions } from '../tensor.js';
import { requireTensor, toRowMajor } from './shapes.js';

/** Returns an uninitialized tensor; default f32 on the CPU. */
function create(op: string, shape: readonly number[], options: TensorOptions): Tensor {
  requireSizes(op, shape);
  const dtype = parseDType(options.dtype ?? 'f32', op);
  return Tensor.empty(shape, dtype, findDevice(options.device ?? cpu()));
}

function fillTensor(
  op: string,
  shape: readonly number[],
  value: number,
  options: TensorOptions,
): Tensor {
  const out = create(op, shape, readOptions(op, options, namesOf.TensorOptions));
  kernels.fill({ out, value });
  return out;
}

// Operations: creation.

/**
 * Returns a tensor filled with `value`; default f32 on the CPU. Throws DS_SHAPE, DS_DTYPE or
 * DS_DEVICE if the tensors do not fit together, DS_ARGUMENT for invalid options.
 */
export function full(shape: readonly number[], value: number, options: TensorOptions = {}): Tensor {
  requireNumber('full value', value);
  requireRepresentable('full', value, parseDType(options?.dtype ?? 'f32', 'full'));
  return fillTensor('full', shape, value, options);
}

/**
 * Returns zeros. Default: f32 on the CPU. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE for an invalid
 * shape, dtype or device, and DS_OUT_OF_MEMORY if memory is short.
 */
export function zeros(shape: readonly number[], options: TensorOptions = {}): Tensor {
  return fillTensor('zeros', shape, 0, options);
}

/**
 * Returns ones. Default: f32 on the CPU. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE for an invalid
 * shape, dtype or device, and DS_OUT_OF_MEMORY if memory is short.
 */
export function ones(shape: readonly number[], options: TensorOptions = {}): Tensor {
  return fillTensor('ones', shape, 1, options);
}

/** Returns zeros of the shape, dtype and device of `like`. */
export function zerosLike(like: Tensor): Tensor {
  requireTensor('zerosLike', like);
  return fillTensor('zerosLike', like.shape, 0, { dtype: like.dtype, device: like.device });
}

/** Returns ones of the shape, dtype and device of `like`. */
export function onesLike(like: Tensor): Tensor {
  requireTensor('onesLike', like);
  return fillTensor('onesLike', like.shape, 1, { dtype: like.dtype, device: like.device });
}

/** Start and step of arange(). */
export interface RangeOptions extends TensorOptions {
  /** The first element. Default: 0. */
  start?: number;
  /** Distance of two numbers. Default: 1. */
  step?: number;
}

/**
 * Returns [start, start + step, ...) of `count` elements; default f32 on the CPU. Throws
 * DS_ARGUMENT unless `count` is an integer from 0 and the other numbers are finite.
 */
export function arange(count: number, given: RangeOptions = {}): Tensor {
  requireInteger('arange count', count, 0);
  const options = readOptions('arange', given, namesOf.RangeOptions);
  const start = requireFinite('arange start', options.start ?? 0);
  const step = requireFinite('arange step', options.step ?? 1);
  const out = create('arange', [count], options);
  kernels.arange({ out, start, step });
  return out;
}

/** Options of normally distributed numbers. */
export interface NormalOptions extends TensorOptions {
  /** Mean. Default: 0. */
  mean?: number;
  /** Standard deviation. Default: 1. */
  stddev?: number;
}

// Operations: random.

/**
 * Returns normal numbers from the library's generator, the same on every device. Throws DS_SHAPE if
 * the sizes do not fit, DS_ARGUMENT unless `mean` is finite and `stddev` is at least 0.
 */
export function randn(shape: readonly number[], given: NormalOptions = {}): Tensor {
  const options = readOptions('randn', given, namesOf.NormalOptions);
  const mean = requireFinite('randn mean', options.mean ?? 0);
  const stddev = requireFinite('randn stddev', options.stddev ?? 1, 0);
  const out = create('randn', shape, options);
  kernels.randomNormal({ out, mean, stddev, ...nextRandom(), ...inOrder });
  return out;
}

/** Options of evenly distributed numbers, from [low, high). */
export interface UniformOptions extends TensorOptions {
  /** Lower limit of the range. Default: 0. */
  low?: number;
  /** Upper limit of the range; it does not occur. Default: 1. */
  high?: number;
}

/**
 * Returns uniform numbers in [low, high) from the library's generator, the same on every device.
 * Throws DS_SHAPE if the sizes do not fit, DS_ARGUMENT unless the bounds are finite and rising.
 */
export function uniform(shape: readonly number[], given: UniformOptions = {}): Tensor {
  const options = readOptions('uniform', given, namesOf.UniformOptions);
  const low = requireFinite('uniform low', options.low ?? 0);
  const high = requireFinite('uniform high', options.high ?? 1, low);
  const out = create('uniform', shape, options);
  kernels.randomUniform({ out, low, high, ...nextRandom(), ...inOrder });
  return out;
}

function convertTensor(x: Tensor, dtype: DType): Tensor {
  const out = Tensor.emptyLike(x, dtype);
  kernels.copy({ in: x, out });
  return out;
}

// Operations: copies.

/**
 * Converts to `dtype`; returns the tensor itself if it has that dtype. Differentiable between
 * floating dtypes.
 */
export function cast(x: Tensor, dtype: DType): Tensor {
  requireTensor('cast', x);
  if (x.dtype === dtype) return x;
  parseDType(dtype, 'cast');
  const out = convertTensor(x, dtype);
  const from = x.dtype;
  record('cast', [x], [out], [], ([grad], sink) => {
    sink.addGrad(0, convertTensor(grad, from));
  });
  return out;
}

function moveTensor(x: Tensor, device: Device): Tensor {
  const source = toRowMajor(x);
  const out = Tensor.empty(x.shape, x.dtype, device);
  const size = dtypeSize(x.dtype);
  const from = source.offset * size;
  const queue = device.kind === 'cpu' ? source.device.compute : device.compute;
  if (out.bytes > 0) out.buffer.copyFrom(source.buffer, { from, bytes: out.bytes }, queue);
  if (source !== x) source.dispose();
  return out;
}

/**
 * Moves the tensor to another device or converts it to another dtype, or both; returns itself if
 * nothing changes. Differentiable. A copy to the host blocks until it is complete.
 */
export function to(x: Tensor, ...targets: (DType | Device | string)[]): Tensor {
  requireTensor('to', x);
  let out = x;
  for (const target of targets) {
    out = isDType(target) ? cast(out, target) : toDevice(out, deviceFor('to', target));
  }
  return out;
}

function toDevice(x: Tensor, device: Device): Tensor {
  const source = x.device;
  if (source === device) return x;
  if (source.kind !== 'cpu' && device.kind !== 'cpu') {
    throw new DsError({
      code: 'DS_DEVICE',
      op: 'to',
      expected: `a move between the CPU and ${device.name}`,
      got: `a move from ${source.name}`,
      hint: "Go through the CPU: x.to('cpu').to(...).",
    });
  }
  const out = moveTensor(x, device);
  record('to', [x], [out], [], ([grad], sink) => sink.addGrad(0, moveTensor(grad, source)));
  return out;
}
