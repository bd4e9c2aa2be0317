// Creation: constants, ranges, random tensors, and casts and moves between devices.
import { DsError } from '../../errors.js';
import { cpu, type Device, device as findDevice } from '../../runtime/device.js';
import { type DType, dtypeSize, dtypes } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { record } from '../autograd.js';
import { nextRandom } from '../random.js';
import { Tensor, type TensorOptions } from '../tensor.js';
import { packed } from './shapes.js';

function create(shape: readonly number[], options: TensorOptions): Tensor {
  return Tensor.empty(shape, options.dtype ?? 'f32', findDevice(options.device ?? cpu()));
}

/** A tensor filled with `value`; default f32 on the CPU. */
export function full(shape: readonly number[], value: number, options: TensorOptions = {}): Tensor {
  const out = create(shape, options);
  kernels.fill({ out, value });
  return out;
}

export function zeros(shape: readonly number[], options: TensorOptions = {}): Tensor {
  return full(shape, 0, options);
}

export function ones(shape: readonly number[], options: TensorOptions = {}): Tensor {
  return full(shape, 1, options);
}

export function zerosLike(like: Tensor): Tensor {
  return full(like.shape, 0, { dtype: like.dtype, device: like.device });
}

export function onesLike(like: Tensor): Tensor {
  return full(like.shape, 1, { dtype: like.dtype, device: like.device });
}

/** [start, start + step, ...) of `count` elements; default f32 on the CPU. */
export function arange(
  count: number,
  options: TensorOptions & { start?: number; step?: number } = {},
): Tensor {
  const out = create([count], options);
  kernels.arange({ out, start: options.start ?? 0, step: options.step ?? 1 });
  return out;
}

/** Normal numbers from the library's generator: the same on every device. */
export function randn(
  shape: readonly number[],
  options: TensorOptions & { mean?: number; stddev?: number } = {},
): Tensor {
  const out = create(shape, options);
  const { seed, offset } = nextRandom();
  kernels.randomNormal({ out, mean: options.mean ?? 0, stddev: options.stddev ?? 1, seed, offset });
  return out;
}

/** Uniform numbers in [low, high) from the library's generator: the same on every device. */
export function uniform(
  shape: readonly number[],
  options: TensorOptions & { low?: number; high?: number } = {},
): Tensor {
  const out = create(shape, options);
  const { seed, offset } = nextRandom();
  kernels.randomUniform({ out, low: options.low ?? 0, high: options.high ?? 1, seed, offset });
  return out;
}

function converted(x: Tensor, dtype: DType): Tensor {
  const out = Tensor.emptyLike(x, dtype);
  kernels.copy({ in: x, out });
  return out;
}

/**
 * The same values in `dtype`; the tensor itself when it has it. Differentiable between floating
 * dtypes.
 */
export function cast(x: Tensor, dtype: DType): Tensor {
  if (x.dtype === dtype) return x;
  const out = converted(x, dtype);
  const from = x.dtype;
  record('cast', [x], [out], [], ([grad], sink) => {
    sink.give(0, converted(grad as Tensor, from));
  });
  return out;
}

function moved(x: Tensor, device: Device): Tensor {
  const source = packed(x);
  const out = Tensor.empty(x.shape, x.dtype, device);
  const size = dtypeSize(x.dtype);
  const from = source.offset * size;
  const queue = device.kind === 'cpu' ? source.device.compute : device.compute;
  if (out.bytes > 0) out.buffer.copyFrom(source.buffer, { from, bytes: out.bytes }, queue);
  if (source !== x) source.dispose();
  return out;
}

/**
 * The tensor on another device and, or, in another dtype; itself when nothing changes.
 * Differentiable. A copy to the host blocks until it is there.
 */
export function to(x: Tensor, ...targets: (DType | Device | string)[]): Tensor {
  let out = x;
  for (const target of targets) {
    if (typeof target === 'string' && (dtypes as readonly string[]).includes(target)) {
      out = cast(out, target as DType);
    } else out = toDevice(out, findDevice(target));
  }
  return out;
}

function toDevice(x: Tensor, device: Device): Tensor {
  const home = x.device;
  if (home === device) return x;
  if (home.kind !== 'cpu' && device.kind !== 'cpu') {
    throw new DsError({
      code: 'DS_DEVICE',
      op: 'to',
      expected: `a move between the CPU and ${device.name}`,
      got: `one from ${home.name}`,
      hint: "Go through the CPU: x.to('cpu').to(...).",
    });
  }
  const out = moved(x, device);
  record('to', [x], [out], [], ([grad], sink) => sink.give(0, moved(grad as Tensor, home)));
  return out;
}
