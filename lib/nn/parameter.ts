// Parameter: a leaf that requires a gradient and has no memory until its values are needed.

import { DsError } from '../errors.js';
import {
  type Box,
  intersectBoxes,
  isInside,
  isPart,
  type Region,
  wholeRegion,
} from '../runtime/box.js';
import { Buffer } from '../runtime/buffer.js';
import { preserveCall } from '../runtime/call.js';
import { cpu, type Device } from '../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../runtime/dtype.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { requireSizes } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { contiguousStrides, numel, type View } from '../runtime/view.js';
import { cast, held, noGrad, scope, Tensor, to, trainerOf } from '../tensor/index.js';
import { markChanged } from '../tensor/tape.js';
import { CutStoredValues, copyCut, writeCut } from './cut-values.js';
import { type Initializer, writeInitial } from './initializers.js';
import type { StoredValues } from './stored-values.js';

/** A parameter's memory: a part of a flat buffer, or a separate tensor. */
export type ParameterMemory = Pick<View, 'buffer' | 'dtype' | 'offset'>;

/**
 * A tensor that an optimizer trains. No scope owns it. The first use of its values allocates memory
 * on the CPU, in f32 or the dtype of its stored values, unless place() has moved it before. So a
 * large model never exists twice.
 */
export class Parameter extends Tensor {
  /** Whether a zero.GatheredParameters of its engine permits writes now. */
  isOpen = false;
  /** The dtype that moveTo() and an engine use in any case; null: the requested dtype. */
  fixedDtype: DType | null = null;
  /**
   * Whether another rank has the same values, and alone counts them in norms and writes them to
   * checkpoints. For parts of a tensor, see `region`.
   */
  isReplica = false;
  /**
   * Whether a gradient here is a partial sum from this rank's tokens. The parameter's gradient is
   * then the sum over the ranks that split the model's layers (sequence parallelism).
   */
  hasPartialGradient = false;
  /**
   * The tape's sequence number of the last change; also valid after the values move to other
   * memory.
   */
  private changed = 0;
  /**
   * The owner and the device of the values after vacate(); null while the parameter has memory or
   * initial values.
   */
  private vacant: { owner: string; device: Device } | null = null;
  /** The part of the whole tensor, of partOf(); null: all. */
  private cut: Region | null = null;
  /** Whether the initializer writes the whole tensor. cutTo() then keeps a part of it. */
  private startsWhole = false;
  /** The stored values of startFrom(); null: initial values come from the initializer. */
  private from: StoredValues | null = null;

  /**
   * `dtype` is the dtype of the first values: f32, or an integer dtype for stored values that are
   * never trained. Throws DS_SHAPE if the sizes do not fit, DS_ARGUMENT if `init` is no function.
   */
  constructor(
    shape: readonly number[],
    private init: Initializer,
    dtype: DType = 'f32',
  ) {
    super(Buffer.released, dtype, requireSizes('Parameter', shape));
    if (typeof init !== 'function') throw notInitializerError(init);
    this.owner?.surrender(this, null);
    this.requiresGrad = isFloating(dtype);
    if (!isFloating(dtype)) this.fixedDtype = dtype;
  }

  override get buffer(): Buffer {
    if (this.vacant) throw shardedError(this.vacant.owner);
    if (!this.isMaterialized && !this.isDisposed) preserveCall(() => this.materialize());
    return this.memory;
  }

  /** The device of the values, also after vacate(). */
  override get device(): Device {
    return this.vacant ? this.vacant.device : super.device;
  }

  override get missing(): string | null {
    return this.vacant ? `its values are in the shards of ${this.vacant.owner}` : super.missing;
  }

  /**
   * Throws DS_ARGUMENT if an engine has master weights: the next step would overwrite the write.
   */
  override requireWritable(op: string): void {
    if (this.isOpen || !trainerOf(this)) return;
    throw argumentError(
      op,
      'a model without an engine',
      'a model that an engine owns',
      'Write values before initialize(), in zero.GatheredParameters with a modifierRank, or use engine.loadCheckpoint().',
    );
  }

  /** @internal See Tensor; includes changes in earlier memory. */
  override get changedAt(): number {
    return Math.max(this.changed, super.changedAt);
  }

  /** @internal */
  override set changedAt(node: number) {
    this.changed = node;
    if (this.isMaterialized) super.changedAt = node;
  }

  /** Does nothing: parameters belong to their module. */
  override keep(): this {
    return this;
  }

  /** Whether it has memory, because its values were used. */
  get isMaterialized(): boolean {
    return this.memory !== Buffer.released;
  }

  /**
   * Writes the current values, or the initial values if it has no memory yet, into an f32 tensor,
   * or an integer tensor of its dtype. Stored values are written from element `from` on. Throws
   * DS_RELEASED if an engine had the values in shards and was destroyed, DS_IO for stored values.
   */
  writeInitial(out: Tensor, from = 0): void {
    if (this.vacant) throw destroyedError(this.vacant.owner);
    if (!this.isMaterialized) {
      this.writeFirst(out, from);
      return;
    }
    noGrad(() => scope(() => kernels.copy({ in: to(cast(this, out.dtype), out.device), out })));
  }

  /**
   * @internal Starts with stored values of their dtype. They are read when needed: at ZeRO stage 3
   * each rank reads only its shard. The parameter must be unused.
   */
  startFrom(values: StoredValues): void {
    this.from = this.startsWhole ? new CutStoredValues(values, this.region.boxes) : values;
    (this as { dtype: DType }).dtype = values.dtype;
  }

  /** @internal The stored values, if they are not read yet. */
  get stored(): StoredValues | null {
    return this.from;
  }

  /** The elements of the whole tensor in this parameter: all, unless partOf() declares a part. */
  get region(): Region {
    return this.cut ?? wholeRegion(this.shape);
  }

  /**
   * Declares that other ranks have the rest of the tensor, as in a layer that is cut along its
   * outputs, inputs or heads. The memory, in row-major order, is `boxes` of the tensor one after
   * another: for a packed projection, this rank's rows of q, of k and of v. Checkpoints hold the
   * whole tensor, independent of the ranks' parts. Before initialize(). Throws DS_SHAPE for boxes
   * that lie outside the tensor, overlap, or differ in size from the parameter.
   */
  partOf(region: Region): this {
    const { whole, boxes } = region;
    const volume = boxes.reduce((sum, { shape }) => sum + numel(shape), 0);
    const isDisjoint = boxes.every((box, i) =>
      boxes.every((item, j) => j <= i || !intersectBoxes(box, item)),
    );
    const sizes = [whole, ...boxes.flatMap(({ offset, shape }) => [offset, shape])];
    for (const size of sizes) requireSizes('Parameter.partOf', size);
    if (volume === this.numel && isDisjoint && boxes.every((box) => isInside(box, whole))) {
      this.cut = region;
      return this;
    }
    const text = boxes.map(
      ({ offset, shape }) => `[${shape.join(', ')}] at [${offset.join(', ')}]`,
    );
    throw new DsError({
      code: 'DS_SHAPE',
      op: 'Parameter.partOf',
      expected: `boxes of [${whole.join(', ')}] without overlap, ${this.numel} elements in all`,
      got: text.join(', ') || 'none',
    });
  }

  /** Whether other ranks have the rest of its tensor. */
  get isCut(): boolean {
    return isPart(this.region);
  }

  /**
   * Keeps only these boxes of its tensor; other ranks have the rest. It is partOf() for a parameter
   * that was made whole. Its shape becomes the shape of the boxes, concatenated along the cut dim.
   * Values that are not materialized will equal the whole tensor's values at the same indices, bit
   * for bit. The whole tensor is never created if the initializer can create parts (all of nn.init
   * can, except orthogonal). Before initialize(), and before gradients. Throws DS_SHAPE for errors
   * of partOf(), and for boxes of several shapes or along several dims.
   */
  cutTo(boxes: readonly Box[]): this {
    this.requireWritable('Parameter.cutTo');
    const whole = this.shape;
    const shape = joinedShape(whole, boxes);
    const values = this.isMaterialized ? this.valuesOf(boxes, shape) : null;
    const mutable = this as { shape: readonly number[]; strides: readonly number[] };
    mutable.shape = shape;
    mutable.strides = contiguousStrides(shape);
    this.partOf({ whole, boxes });
    this.startsWhole = true;
    if (this.from) this.from = new CutStoredValues(this.from, boxes);
    if (values) this.place(values);
    values?.release();
    return this;
  }

  private valuesOf(boxes: readonly Box[], shape: readonly number[]): Tensor {
    const out = held(() => Tensor.empty(shape, this.dtype, this.device));
    noGrad(() => scope(() => copyCut(this, boxes, out)));
    return out;
  }

  /**
   * Moves to the given memory, row-major from its offset, and shares its buffer. The caller has
   * already written the values there. Frees the old memory.
   */
  place({ buffer, dtype, offset }: ParameterMemory): void {
    this.replaceBuffer(buffer.retain());
    this.vacant = null;
    this.forgetStored();
    const mutable = this as { dtype: DType; offset: number };
    mutable.dtype = dtype;
    mutable.offset = offset;
  }

  /**
   * Restarts with other values, as nn.init.xavier_uniform_(parameter) in PyTorch. Computes nothing
   * until the values are needed: at ZeRO stage 3 each rank then writes its shard. Before
   * initialize(). Throws DS_ARGUMENT if `init` is not an initializer or an engine trains the
   * parameter, DS_RELEASED for one in shards.
   */
  initialize(init: Initializer): this {
    if (typeof init !== 'function') throw notInitializerError(init);
    this.requireWritable('Parameter.initialize');
    if (!this.isMaterialized && !this.vacant && !this.isDisposed) {
      this.init = init;
      this.forgetStored();
      return this;
    }
    noGrad(() =>
      scope(() => {
        const values = Tensor.empty(this.shape, 'f32', this.device);
        this.start(init, values);
        kernels.copy({ in: values, out: this });
      }),
    );
    markChanged(this);
    return this;
  }

  /**
   * Frees the memory. Until place(), `owner` has the values, an engine; errors contain this text.
   */
  vacate(owner: string): void {
    const { device } = this;
    this.replaceBuffer(Buffer.released);
    this.vacant = { owner, device };
  }

  /**
   * Moves the values, also initial values, to new memory. A fixed dtype is kept. Throws DS_DTYPE
   * for other dtypes.
   */
  moveTo(device: Device, requestedDtype: DType): void {
    const dtype = this.fixedDtype ?? requestedDtype;
    if (!isFloating(dtype) && dtype !== this.dtype) {
      throw new DsError({
        code: 'DS_DTYPE',
        op: 'Parameter.moveTo',
        expected: 'a floating dtype',
        got: dtype,
      });
    }
    noGrad(() =>
      scope(() => {
        const moved = held(() => Tensor.empty(this.shape, dtype, device));
        if (this.from || !isFloating(dtype)) this.writeInitial(moved);
        else {
          const values = Tensor.empty(this.shape, 'f32', device);
          this.writeInitial(values);
          kernels.copy({ in: values, out: moved });
        }
        this.place(moved);
        moved.release();
      }),
    );
  }

  private materialize(): void {
    const { dtype } = this;
    const memory = Buffer.allocate(cpu(), numel(this.shape) * dtypeSize(dtype));
    const values = held(() => new Tensor(memory, dtype, this.shape));
    try {
      this.writeFirst(values);
      this.replaceBuffer(memory.retain());
    } finally {
      values.release();
    }
    this.forgetStored();
  }

  private writeFirst(out: Tensor, from = 0): void {
    if (this.from) this.from.read(out, from);
    else this.start(this.init, out);
  }

  private start(init: Initializer, out: Tensor): void {
    if (this.startsWhole) writeCut(init, this.region, out);
    else writeInitial(init, out);
  }

  private forgetStored(): void {
    this.from?.done();
    this.from = null;
  }
}

/**
 * Returns the shape of boxes that are adjacent along one dim. Throws DS_SHAPE if they are cut along
 * other dims.
 */
function joinedShape(whole: readonly number[], boxes: readonly Box[]): number[] {
  const cut = whole.flatMap((size, d) => (boxes.every((box) => box.shape[d] === size) ? [] : [d]));
  const dim = cut[0] ?? 0;
  if (cut.length <= 1 && (boxes.length === 1 || dim === 0)) {
    const size = boxes.reduce((sum, box) => sum + required(box.shape[dim]), 0);
    return whole.map((length, d) => (d === dim ? size : length));
  }
  throw new DsError({
    code: 'DS_SHAPE',
    op: 'Parameter.cutTo',
    expected: `one box of [${whole.join(', ')}] that is cut along one dim, or several along the first`,
    got: boxes.map(({ shape }) => `[${shape.join(', ')}]`).join(', ') || 'none',
  });
}

function notInitializerError(init: unknown): DsError {
  return valueError(
    'Parameter',
    'an initializer: a function that writes the first values into a tensor',
    init,
    'For example nn.init.zeros or nn.init.normal(0.02).',
  );
}

function shardedError(owner: string): DsError {
  return new DsError({
    code: 'DS_RELEASED',
    op: `a parameter of ${owner}`,
    expected: 'its values on this rank',
    got: 'a shard of them (ZeRO stage 3)',
    hint: "Use it in its module's forward or GatheredParameters; see zero.registerExternalParameter.",
  });
}

function destroyedError(owner: string): DsError {
  return new DsError({
    code: 'DS_RELEASED',
    op: `a parameter of ${owner}`,
    expected: 'its values',
    got: 'no values: the engine with their shards was destroyed (ZeRO stage 3)',
    hint: 'Build a new model, and load the trained weights from a checkpoint.',
  });
}
