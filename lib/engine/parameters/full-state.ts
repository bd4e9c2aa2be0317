// Reads and writes a parameter's master weights, gradient and optimizer state as a whole, wherever
// the parts are.
import { DsError } from '../../errors.js';
import type { Parameter } from '../../nn/parameter.js';
import {
  declaredState,
  perElement,
  portionOf,
  type StateTensor,
} from '../../optim/declared-state.js';
import { describe } from '../../runtime/view.js';
import { noGrad, scope, Tensor } from '../../tensor/index.js';
import { writePieces } from '../../zero/adopt.js';
import { takeOver } from '../../zero/collectives.js';
import { copyFlat, sliceFlat, slicePiece } from '../../zero/flat.js';
import type { LentState } from '../../zero/home/lent-state.js';
import { overlap, type Piece, shardOf } from '../../zero/layout.js';
import type { Partition, WeightPart } from '../../zero/partition.js';
import type { EngineCore } from '../engine-parts.js';
import { resync } from '../step/resync.js';
import { keepingWrites } from './open-writes.js';
import { type HeldParameter, type OwnedParameter, ownerOf } from './owned-parameters.js';

/**
 * The master weights of a parameter: f32 in its shape on the engine's device, the caller's to
 * dispose of. Null for a parameter that no engine trains. All ranks call it, between steps. Source:
 * deepspeed.utils.safe_get_full_fp32_param.
 */
export function safeGetFullFp32Param(parameter: Parameter): Tensor | null {
  return getState(parameter, 'master');
}

/**
 * The gradient that the coming step() will apply, over all ranks and micro-batches and without the
 * loss scale, before clipping: f32 as above. Null where there is none: before the backward that
 * completes the step's gradients, and with managed_gradient_accumulation false. All ranks call it.
 * Source: deepspeed.utils.safe_get_full_grad.
 */
export function safeGetFullGrad(parameter: Parameter): Tensor | null {
  const owned = ownerOf(parameter);
  if (!owned?.engine.parts.gradients.isDecided) return null;
  const { partition, engine } = owned;
  const grad = engine.parts.state.gradOf(partition);
  if (!grad) return null;
  return noGrad(() =>
    scope(() => {
      const whole = { ...stateOf(owned, 'master'), dtype: grad.dtype };
      const scaled = assemble(owned, whole, (piece) => slicePiece(grad, piece));
      grad.release();
      return scaled.to('f32').mul(1 / engine.parts.gradients.gradientScale);
    }),
  );
}

/**
 * A tensor of the optimizer's state, such as "exp_avg", or "fp32" for the master weights: as above,
 * but in the shape and dtype in which the optimizer keeps it, which for moments are the parameter's
 * and f32. Throws DS_ARGUMENT for one that it does not keep. Source:
 * deepspeed.utils.safe_get_full_optimizer_state.
 */
export function safeGetFullOptimizerState(parameter: Parameter, key: string): Tensor | null {
  return getState(parameter, key === 'fp32' ? 'master' : key);
}

/**
 * Sets the master weights, and the weights with them, on all ranks, which all give the same
 * `value`. Throws DS_SHAPE, and DS_ARGUMENT for a parameter that no engine trains. Source:
 * deepspeed.utils.safe_set_full_fp32_param.
 */
export function safeSetFullFp32Param(parameter: Parameter, value: Tensor): void {
  setState(parameter, value, 'master');
}

/**
 * Sets the gradient that the coming step() will apply, before clipping; norm and clipping follow
 * it. All ranks give the same `value`. Throws as above, and where safeGetFullGrad() gives null.
 * Source: deepspeed.utils.safe_set_full_grad.
 */
export function safeSetFullGrad(parameter: Parameter, value: Tensor): void {
  const owned = requireOwned('safeSetFullGrad', parameter);
  requireShape('safeSetFullGrad', parameter.shape, value);
  const { engine, partition } = owned;
  const { gradients, state } = engine.parts;
  const grad = gradients.isDecided ? state.gradOf(partition) : null;
  if (!grad) {
    throw new DsError({
      code: 'DS_AUTOGRAD',
      op: 'safeSetFullGrad',
      expected: 'the backward that completes the gradients of a step, and no step() since',
      got: 'no gradient of it',
    });
  }
  noGrad(() =>
    scope(() => {
      const scaled = wide(value, engine.device).mul(gradients.gradientScale).to(grad.dtype);
      const whole = stateOf(owned, 'master');
      writeParts(owned, { ...whole, values: scaled }, inMemory(grad));
      state.changed(partition);
      countAgain(owned, grad);
    }),
  );
  grad.release();
}

/** See safeSetFullFp32Param(). Source: deepspeed.utils.safe_set_full_optimizer_state. */
export function safeSetFullOptimizerState(parameter: Parameter, value: Tensor, key: string): void {
  setState(parameter, value, key === 'fp32' ? 'master' : key);
}

function getState(parameter: Parameter, name: string): Tensor | null {
  const owned = ownerOf(parameter);
  if (!owned) return null;
  const kept = stateOf(owned, name);
  const { partition, engine } = owned;
  resync(engine.parts);
  engine.parts.state.synchronize();
  return scope(() =>
    assemble(owned, kept, (piece) => borrow(engine, partition, piece, name).tensor),
  );
}

function setState(parameter: Parameter, value: Tensor, name: string): void {
  const op = name === 'master' ? 'safeSetFullFp32Param' : 'safeSetFullOptimizerState';
  const owned = requireOwned(op, parameter);
  const kept = stateOf(owned, name);
  requireShape(op, kept.shape, value);
  const { partition, engine } = owned;
  const { state } = engine.parts;
  resync(engine.parts);
  state.synchronize();
  noGrad(() =>
    scope(() => {
      const values = value.to(engine.device).to(kept.dtype).contiguous();
      writeParts(owned, { ...kept, values }, (piece) => borrow(engine, partition, piece, name));
    }),
  );
  state.changed(partition);
  if (name !== 'master') return;
  const { unit } = partition;
  const parameters = unit.layout.slots.map((slot) => unit.parameterOf(slot));
  keepingWrites(parameter, parameters, () => publishMasters(engine, [partition]));
}

/** Sets this rank's part of the master weights: `values` f32 on the device, the whole parameter. */
export function writeMaster({ engine, partition, slot }: OwnedParameter, values: Tensor): void {
  writePieces(engine.parts.state, partition, { slot, values });
}

/**
 * Keeps this rank's part of a frozen parameter as it is gathered now. The others of its unit are
 * still to be read: publishFrozen() follows once all are kept. Waits for the device.
 */
export function writeFrozen({ engine, part, slot, parameter }: HeldParameter): void {
  const values = { ...perElement(slot.shape), values: parameter };
  writeParts({ engine, part, slot }, values, (piece) => {
    const lent = part.place.lend(piece);
    lent.wait();
    return lent;
  });
}

/** Brings changed master weights to the weights of all ranks. All ranks call it. */
export function publishMasters(engine: EngineCore, partitions: Iterable<Partition>): void {
  const { state } = engine.parts;
  for (const partition of partitions) {
    state.synchronize();
    state.refresh(partition);
    publish(engine, partition);
  }
}

/** Brings frozen weights that were kept to later gathers. All ranks call it. */
export function publishFrozen(engine: EngineCore, parts: Iterable<WeightPart>): void {
  for (const part of parts) publish(engine, part);
}

/** A sharded unit leaves with what it was, and is brought again to whoever holds it. */
function publish({ parts, device }: EngineCore, part: WeightPart): void {
  const { stage, hooks } = parts;
  stage.publish(part, device.compute);
  if (!stage.shardsWeights || hooks.holds(part.unit)) stage.acquire(part.unit);
}

/** A piece of master weights or state, there; the caller releases its tensor. */
function borrow(
  { parts }: EngineCore,
  partition: Partition,
  piece: Piece,
  name: string,
): LentState {
  const lent = parts.state.lend(partition, piece, name);
  lent.wait();
  return lent;
}

/** Where a piece is written: `tensor`, of which keep() says that it was. */
type Place = Pick<LentState, 'tensor' | 'keep'>;

/** The places of pieces in a flat tensor that starts where their part does. */
const inMemory =
  (flat: Tensor) =>
  (piece: Piece): Place => ({ tensor: slicePiece(flat, piece), keep() {} });

/**
 * The whole of a state, of which `read` gives this rank's pieces; the tensors it gives are
 * released.
 */
function assemble(
  { engine, partition, slot }: OwnedParameter,
  state: StateTensor,
  read: (piece: Piece) => Tensor,
): Tensor {
  const { device, parts } = engine;
  const { shards } = parts.ranks;
  const full = Tensor.empty(state.shape, state.dtype, device);
  for (const piece of partition.pieces.filter((one) => one.slot === slot)) {
    const part = read(piece);
    const { from, numel } = portionOf(state, piece);
    copyFlat(full, { offset: from, numel }, part, { offset: 0, numel }, device.compute);
    part.release();
  }
  device.compute.synchronize();
  if (partition.isWhole) return full;
  for (let shard = 0; shard < shards.size; ++shard) {
    const range = shardOf(partition.unit.layout.numel, shard, shards.size);
    const { offset, numel } = overlap(slot, range);
    const first = offset - slot.offset;
    if (numel === 0 || (state.per === null && first > 0)) continue;
    const portion = portionOf(state, { from: first, numel });
    const part = sliceFlat(full, { offset: portion.from, numel: portion.numel });
    takeOver(shards, part, shard);
    part.release();
  }
  return full;
}

/**
 * Copies this rank's pieces of `values` to where `placeOf` says; the tensors it has are released.
 */
function writeParts(
  { engine, part, slot }: Pick<HeldParameter, 'engine' | 'part' | 'slot'>,
  { values, ...state }: StateTensor & { values: Tensor },
  placeOf: (piece: Piece) => Place,
): void {
  const { compute } = engine.device;
  for (const piece of part.pieces.filter((one) => one.slot === slot)) {
    const place = placeOf(piece);
    const { from, numel } = portionOf(state, piece);
    copyFlat(place.tensor, { offset: 0, numel }, values, { offset: from, numel }, compute);
    compute.synchronize();
    place.keep();
    place.tensor.release();
  }
}

/**
 * Computes the norm and what it decides once more, with the gradient of `partition` as it is now.
 */
function countAgain({ engine, partition }: OwnedParameter, grad: Tensor): void {
  const { control } = engine.parts;
  const { compute } = engine.device;
  const kept = partition.grad;
  const all = { offset: 0, numel: partition.numel };
  if (!kept) {
    partition.grad = Tensor.empty([partition.numel], grad.dtype, engine.device);
    copyFlat(partition.grad, all, grad, all, compute);
  }
  control.add(partition, compute);
  partition.grad = kept;
  control.decide(engine.parts.gradients.gradientScale);
}

/** f32, contiguous, on `device`. */
function wide(value: Tensor, device: Tensor['device']): Tensor {
  return value.to(device).to('f32').contiguous();
}

function requireOwned(op: string, parameter: Parameter): OwnedParameter {
  const owned = ownerOf(parameter);
  if (owned) return owned;
  const got = 'one that is frozen, in no group, or not given to initialize()';
  throw new DsError({ code: 'DS_ARGUMENT', op, expected: 'a parameter that is trained', got });
}

function requireShape(op: string, shape: readonly number[], value: Tensor): void {
  if (value.shape.join() === shape.join()) return;
  const expected = `[${shape.join(', ')}]`;
  throw new DsError({ code: 'DS_SHAPE', op, expected, got: describe(value) });
}

/** What is kept under this name. Throws DS_ARGUMENT where that is nothing. */
function stateOf({ engine, slot }: OwnedParameter, name: string): StateTensor {
  const { optimizer } = engine.parts;
  const declared = declaredState(optimizer, slot.group, slot.shape);
  const found = name === 'master' ? perElement(slot.shape) : declared[name];
  if (found) return found;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'optimizer state',
    expected: `${['fp32', ...Object.keys(declared)].join(', ')}, which ${optimizer.name} keeps`,
    got: JSON.stringify(name),
  });
}
