// Tensor: a strided view of a buffer, with an owner and a node of the autograd graph.

import { DsError } from '../errors.js';
import { Buffer } from '../runtime/buffer.js';
import { runCallsFor } from '../runtime/deferred-calls.js';
import { cpu, type Device, device as findDevice } from '../runtime/device.js';
import {
  type DType,
  dtypeSize,
  isFloating,
  type NumericArray,
  parseDType,
  rawArray,
  type TypedArray,
} from '../runtime/dtype.js';
import { finalizers } from '../runtime/finalizers.js';
import { formatValue } from '../runtime/format-value.js';
import { valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireSizes } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { Event } from '../runtime/stream.js';
import { contiguousStrides, describe, isContiguous, numel, type View } from '../runtime/view.js';
import { hostValues, rawValues } from './host-values.js';
import { currentScope, type Scope, scopedIn } from './scope.js';

/** Numbers, or nested lists of them; all lists of a level have the same length. */
export type Nested = number | boolean | bigint | readonly Nested[] | readonly TypedArray[];

/** Dtype and device of a new tensor. */
export interface TensorOptions {
  /** Dtype of the elements. */
  dtype?: DType;
  /** Device of the memory. */
  device?: Device | string;
}

/** Options of Tensor.from(). */
export interface FromOptions extends TensorOptions {
  /** Shape of the tensor. Default: the shape of the data. */
  shape?: readonly number[];
}

/**
 * The graph node of a tensor that requires a gradient. Only the tape (tape.ts) creates and reads
 * these.
 */
interface GraphNode {
  readonly name: string;
}

let liveCount = 0;

/**
 * The safety net for tensors without a scope: their memory is freed when they are
 * garbage-collected.
 */
const collectedBuffers = finalizers<Buffer>((buffer) => {
  liveCount--;
  buffer.release();
});

/** Receives every new tensor; null except during diagnostics. */
let observer: ((made: Tensor) => void) | null = null;

/** @internal Passes every new tensor to `next` from now on; null ends it. */
export function observeCreation(next: ((made: Tensor) => void) | null): void {
  observer = next;
}

/** The memory for the next tensor of its shape, dtype and device; null: none. */
let place: Tensor | null = null;

/**
 * @internal Runs `compute`. The first tensor of memory's shape, dtype and device that
 * Tensor.empty() makes meanwhile is a view of `memory`, so that an op writes its result there.
 */
export function placeResult(memory: Tensor, compute: () => Tensor): Tensor {
  const outer = place;
  place = memory;
  try {
    return compute();
  } finally {
    place = outer;
  }
}

/** Returns a view of the memory of placeResult(), once, if it is of this kind; else null. */
function takePlace(shape: readonly number[], dtype: DType, device: Device): Tensor | null {
  if (!place || place.dtype !== dtype || place.device !== device) return null;
  const { buffer, shape: own, strides, offset } = place;
  if (own.length !== shape.length || own.some((size, d) => size !== shape[d])) return null;
  place = null;
  return new Tensor(buffer.retain(), dtype, own, strides, offset);
}

/** Returns the number of tensors that hold memory. */
export function liveTensors(): number {
  return liveCount;
}

/**
 * An array of numbers of one dtype on a device. `shape`, `strides` and `offset` count elements and
 * never change. The owner is the scope in which the tensor was made, or the caller. A view shares
 * its buffer and has its own owner.
 */
export class Tensor implements View {
  /** @internal Buffer.released once the tensor has been freed. */
  protected memory: Buffer;
  readonly strides: readonly number[];
  /** Whether backward computes a gradient for this tensor. */
  requiresGrad = false;
  /** The graph node that produced the tensor; null for leaves. */
  gradFn: GraphNode | null = null;
  /** Index of this tensor among the outputs of `gradFn`. */
  gradIndex = 0;
  /**
   * The accumulated gradient of a leaf; null stands for zero. It has the leaf's owner, and is freed
   * with the leaf.
   */
  grad: Tensor | null = null;
  /** Leaf hook: called once per backward when this leaf's gradient is complete. */
  onGradReady: ((leaf: Tensor) => void) | null = null;
  /** The scope that will free it; null if the caller does. */
  owner: Scope | null;
  private references = 1;
  private isOwned = true;

  /** @internal Use Tensor.from(), Tensor.empty() or the functions that make tensors. */
  constructor(
    buffer: Buffer,
    /** Type of its elements. */
    readonly dtype: DType,
    /** Size of each dim; [] for a scalar. */
    readonly shape: readonly number[],
    strides?: readonly number[],
    readonly offset = 0,
  ) {
    this.memory = buffer;
    if (shape === undefined) throw constructorCalledError(buffer);
    this.strides = strides ?? contiguousStrides(shape);
    this.owner = currentScope();
    liveCount++;
    if (this.owner) this.owner.adopt(this);
    else collectedBuffers.register(this, buffer, this);
    observer?.(this);
  }

  /**
   * Returns uninitialised memory: the caller overwrites every element. Throws DS_SHAPE or DS_DTYPE
   * for an invalid shape or dtype, DS_OUT_OF_MEMORY if memory is short.
   */
  static empty(shape: readonly number[], dtype: DType, device: Device): Tensor {
    requireSizes('Tensor.empty', shape);
    parseDType(dtype, 'Tensor.empty');
    const placed = takePlace(shape, dtype, device);
    if (placed) return placed;
    return new Tensor(Buffer.allocate(device, numel(shape) * dtypeSize(dtype)), dtype, shape);
  }

  /** Returns uninitialized memory with the shape and device of `like`, without size checks. */
  static emptyLike(like: Tensor, dtype: DType = like.dtype): Tensor {
    const { shape, device } = like;
    return new Tensor(Buffer.allocate(device, numel(shape) * dtypeSize(dtype)), dtype, shape);
  }

  /**
   * Creates a tensor from (nested arrays of) numbers or a typed array; default device cpu. The
   * default dtype is the typed array's, bool for booleans, i64 for bigints, else f32. Throws
   * DS_SHAPE for ragged arrays, DS_ARGUMENT for values that are not numbers or that an integer
   * dtype cannot hold.
   */
  static from(data: Nested | TypedArray, given: FromOptions = {}): Tensor {
    const options = readOptions('Tensor.from', given, namesOf.FromOptions);
    const device = findDevice(options.device ?? cpu());
    const { values, shape, natural } = hostValues(data);
    const dtype = parseDType(options.dtype ?? natural, 'Tensor.from');
    const target = options.shape ? requireSizes('Tensor.from', options.shape) : shape;
    if (numel(target) !== values.length) {
      throw new DsError({
        code: 'DS_SHAPE',
        op: 'Tensor.from',
        expected: `${numel(target)} values for shape [${target.join(', ')}]`,
        got: `${values.length}`,
      });
    }
    const narrow = dtype === 'f16' || dtype === 'bf16';
    const raw = rawValues(values, narrow ? 'f32' : dtype);
    const staged = Tensor.empty(target, narrow ? 'f32' : dtype, device);
    staged.buffer.write(0, raw);
    if (!narrow) return staged;
    const out = Tensor.empty(target, dtype, device);
    kernels.copy({ in: staged, out });
    staged.dispose();
    return out;
  }

  /** @internal The memory that the tensor is a view of. */
  get buffer(): Buffer {
    return this.memory;
  }

  /** Throws DS_RELEASED once the tensor has been freed. */
  get device(): Device {
    return this.liveBuffer().device;
  }

  /** Number of dims, at most six. */
  get ndim(): number {
    return this.shape.length;
  }

  /** Number of elements: the product of the sizes. */
  get numel(): number {
    return numel(this.shape);
  }

  /** Number of bytes of its elements, even if it shares memory. */
  get bytes(): number {
    return this.numel * dtypeSize(this.dtype);
  }

  /** Whether its elements lie row by row without gaps. */
  get isContiguous(): boolean {
    return isContiguous(this);
  }

  /** Returns the size of `dim`; negative counts from the end. */
  size(dim: number): number {
    const size = typeof dim === 'number' ? this.shape.at(dim) : undefined;
    if (size !== undefined && Number.isInteger(dim)) return size;
    throw new DsError({
      code: 'DS_SHAPE',
      op: 'size',
      expected: `a dim of ${describe(this)}`,
      got: formatValue(dim),
    });
  }

  /**
   * Returns another view of the same memory, outside the graph. Bounds are checked when an op uses
   * it.
   */
  alias(shape: readonly number[], strides?: readonly number[], offset = this.offset): Tensor {
    return new Tensor(this.liveBuffer().retain(), this.dtype, shape, strides, offset);
  }

  /** Returns a view of the same values outside the graph. */
  detach(): Tensor {
    return this.alias(this.shape, this.strides);
  }

  /** Marks a leaf: backward will compute its gradient. Floating dtypes only. */
  requireGrad(on = true): this {
    requireType('requireGrad', on, 'boolean');
    if (on && !isFloating(this.dtype)) {
      throw new DsError({
        code: 'DS_DTYPE',
        op: 'requireGrad',
        expected: 'a floating dtype',
        got: this.dtype,
      });
    }
    this.requiresGrad = on;
    return this;
  }

  /** Removes the tensor from its scope: the caller frees it with dispose() or `using`. */
  keep(): this {
    this.owner?.surrender(this, null);
    return this;
  }

  /**
   * @internal Changes the owner. Without an owner, the memory is freed at the latest when the
   * tensor is garbage-collected.
   */
  passTo(owner: Scope | null): void {
    this.owner = owner;
    if (owner) owner.adopt(this);
    else collectedBuffers.register(this, this.memory, this);
  }

  /**
   * Releases the owner's reference. Memory and gradient are freed when no graph node holds them.
   * Idempotent.
   */
  dispose(): void {
    if (!this.isOwned) return;
    this.isOwned = false;
    this.release();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /** Whether the tensor has released its memory. */
  get isDisposed(): boolean {
    return this.references === 0;
  }

  /** @internal Adds a holder, such as a graph node that will read it. */
  retain(): this {
    runCallsFor(this.memory);
    this.references++;
    return this;
  }

  /** @internal The counterpart of retain(). */
  release(): void {
    if (--this.references > 0) return;
    liveCount--;
    this.isOwned = false;
    if (!this.owner) collectedBuffers.unregister(this);
    this.gradFn = null;
    if (this.grad?.owner === this.owner) this.grad?.dispose();
    this.grad = null;
    const buffer = this.memory;
    this.memory = Buffer.released;
    buffer.release();
  }

  /**
   * @internal The number, in the sequence of node numbers, of the last in-place change of these
   * values; 0 if they never changed.
   */
  get changedAt(): number {
    return this.memory.changedAt;
  }

  /** @internal See markChanged() (tape.ts). */
  set changedAt(node: number) {
    this.buffer.changedAt = node;
  }

  /** @internal Throws DS_ARGUMENT if an in-place change would be lost. */
  requireWritable(_op: string): void {}

  /** @internal Whether this is the only reference to the tensor and its memory. */
  get isExclusive(): boolean {
    return this.references === 1 && this.gradFn === null && !this.memory.isShared;
  }

  /**
   * Returns the raw bits in row-major order (f16 and bf16 as Uint16Array). Blocks until they
   * arrive.
   */
  toRaw(): NumericArray {
    const source = this.isContiguous ? this : this.contiguousCopy();
    const out = rawArray(this.dtype, this.numel);
    source.liveBuffer().read(source.offset * dtypeSize(this.dtype), out);
    if (source !== this) source.dispose();
    return out;
  }

  /** Returns the values as numbers in row-major order. Blocks until they arrive. */
  toArray(): number[] {
    if (this.dtype !== 'f16' && this.dtype !== 'bf16') return Array.from(this.toRaw(), Number);
    const wide = Tensor.empty(this.shape, 'f32', this.device);
    kernels.copy({ in: this, out: wide });
    const out = wide.toArray();
    wide.dispose();
    return out;
  }

  /** Returns the only value of a one-element tensor. Blocks until it arrives; see read(). */
  item(): number {
    if (this.numel === 1) return required(this.toArray()[0]);
    throw new DsError({
      code: 'DS_SHAPE',
      op: 'item',
      expected: 'one element',
      got: describe(this),
      hint: 'Reduce it with sum() or mean(); toArray() and toList() return all values.',
    });
  }

  /** Returns the values as of this point of the compute stream, without blocking the event loop. */
  async read(): Promise<number[]> {
    const narrow = this.dtype === 'f16' || this.dtype === 'bf16';
    const wide = Tensor.empty(this.shape, narrow ? 'f32' : this.dtype, this.device).keep();
    kernels.copy({ in: this, out: wide });
    const event = new Event(this.device).record(this.device.compute);
    await event.reached();
    event.dispose();
    const out = wide.toArray();
    wide.dispose();
    return out;
  }

  /** The reason why the tensor has no values to show; null if it has. */
  get missing(): string | null {
    return this.isDisposed || this.memory.isAbandoned ? 'released' : null;
  }

  /** @internal Moves to `buffer`, takes over its reference, and releases the old memory. */
  protected replaceBuffer(buffer: Buffer): void {
    this.memory.release();
    this.memory = buffer;
    if (this.owner) return;
    collectedBuffers.unregister(this);
    collectedBuffers.register(this, buffer, this);
  }

  private contiguousCopy(): Tensor {
    const out = Tensor.emptyLike(this);
    kernels.copy({ in: this, out });
    return out;
  }

  private liveBuffer(): Buffer {
    if (this.references > 0) return this.buffer;
    throw new DsError({
      code: 'DS_RELEASED',
      op: 'tensor',
      expected: 'a live tensor',
      got: `${describe(this)} that was released`,
      hint: 'Call keep() on a tensor that must outlive its scope; after dispose() it is gone.',
    });
  }
}

/** Returns the tensors that leave a scope when `value` is returned from it. */
export function tensorsIn(value: unknown): Tensor[] {
  return scopedIn(value).filter((each) => each instanceof Tensor);
}

/** Returns the error for a constructor call with values instead of memory. */
function constructorCalledError(given: unknown): DsError {
  return valueError(
    'new Tensor',
    'a buffer, a dtype and a shape',
    given,
    'Tensor.from([[1, 2], [3, 4]]) creates a tensor from numbers, zeros([2, 2]) from a shape.',
  );
}
