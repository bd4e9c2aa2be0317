// DeepSpeed's safe_get_full_* and safe_set_full_*: read and write whole master weights, gradients
// and optimizer state, from and to the shards of all ranks.
import { DsError } from '../../errors.js';
import type { Parameter } from '../../nn/parameter.js';
import {
  declaredState,
  perElement,
  portionOf,
  type StateTensor,
} from '../../optim/declared-state.js';
import { describe } from '../../runtime/view.js';
import { copyFlat, sliceFlat } from '../../tensor/flat.js';
import { noGrad, scope, Tensor } from '../../tensor/index.js';
import { writeFragments } from '../../zero/flatten-model.js';
import { type Fragment, overlap, shardOf } from '../../zero/layout.js';
import { type Partition, sliceFragment, type WeightShard } from '../../zero/partition.js';
import type { LentState } from '../../zero/state/memory.js';
import { broadcastValues } from '../../zero/wire.js';
import type { EngineCore } from '../engine-parts.js';
import { resync } from '../step/step-decisions.js';
import { keepWrites } from './open-writes.js';
import { findOwned, type HeldParameter, type OwnedParameter } from './owned-parameters.js';

/**
 * Returns the master weights of a parameter: f32, in its shape, on the engine's device. The caller
 * disposes them. Returns null if no engine trains the parameter. All ranks must call it between
 * steps. Source: deepspeed.utils.safe_get_full_fp32_param.
 */
export function safeGetFullFp32Param(parameter: Parameter): Tensor | null {
  return getState(parameter, 'master');
}

/**
 * Returns the gradient that the next step() applies, before clipping: f32, in the parameter's
 * shape. It is the sum over all ranks and micro-batches, without the loss scale. Returns null
 * before the backward that completes the step, and if managed_gradient_accumulation is false. All
 * ranks must call it. Source: deepspeed.utils.safe_get_full_grad.
 */
export function safeGetFullGrad(parameter: Parameter): Tensor | null {
  const owned = findOwned(parameter);
  if (!owned?.engine.parts.gradients.isDecided) return null;
  const { partition, engine } = owned;
  const grad = engine.parts.state.gradOf(partition);
  if (!grad) return null;
  return noGrad(() =>
    scope(() => {
      const state = { ...stateOf(owned, 'master'), dtype: grad.dtype };
      const scaled = assemble(owned, state, (fragment) => sliceFragment(grad, fragment));
      grad.release();
      return scaled.to('f32').mul(1 / engine.parts.gradients.gradientScale);
    }),
  );
}

/**
 * Returns a tensor of the optimizer state, such as "exp_avg", or the master weights for "fp32". The
 * optimizer declares its shape and dtype. Moments are f32 in the parameter's shape, unless the
 * optimizer stores them otherwise. Throws DS_ARGUMENT if the optimizer has no such tensor. Source:
 * deepspeed.utils.safe_get_full_optimizer_state.
 */
export function safeGetFullOptimizerState(parameter: Parameter, key: string): Tensor | null {
  return getState(parameter, key === 'fp32' ? 'master' : key);
}

/**
 * Sets the master weights and the weights on all ranks. All ranks must pass the same `value`.
 * Throws DS_SHAPE for another shape, and DS_ARGUMENT if no engine trains the parameter. Source:
 * deepspeed.utils.safe_set_full_fp32_param.
 */
export function safeSetFullFp32Param(parameter: Parameter, value: Tensor): void {
  setState(parameter, value, 'master');
}

/**
 * Sets the gradient that the next step() applies, before clipping. The norm and the clip factor are
 * computed again. All ranks must pass the same `value`. Throws as safeSetFullFp32Param() does, and
 * DS_AUTOGRAD when safeGetFullGrad() returns null. Source: deepspeed.utils.safe_set_full_grad.
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
      expected: 'a call between the last backward() of a step and its step()',
      got: 'a parameter without a gradient',
    });
  }
  noGrad(() =>
    scope(() => {
      const scaled = toWide(value, engine.device).mul(gradients.gradientScale).to(grad.dtype);
      const masterState = stateOf(owned, 'master');
      writeOwned(owned, { ...masterState, values: scaled }, targetIn(grad));
      state.markChanged(partition);
      recountNorm(owned, grad);
    }),
  );
  grad.release();
}

/**
 * Sets a tensor of the optimizer state; "fp32" is the master weights. Otherwise like
 * safeSetFullFp32Param(). Source: deepspeed.utils.safe_set_full_optimizer_state.
 */
export function safeSetFullOptimizerState(parameter: Parameter, value: Tensor, key: string): void {
  setState(parameter, value, key === 'fp32' ? 'master' : key);
}

function getState(parameter: Parameter, name: string): Tensor | null {
  const owned = findOwned(parameter);
  if (!owned) return null;
  const state = stateOf(owned, name);
  const { partition, engine } = owned;
  resync(engine.parts);
  engine.parts.state.synchronize();
  return scope(() =>
    assemble(owned, state, (fragment) => borrow(engine, partition, fragment, name).tensor),
  );
}

function setState(parameter: Parameter, value: Tensor, name: string): void {
  const op = name === 'master' ? 'safeSetFullFp32Param' : 'safeSetFullOptimizerState';
  const owned = requireOwned(op, parameter);
  const declared = stateOf(owned, name);
  requireShape(op, declared.shape, value);
  const { partition, engine } = owned;
  const { state } = engine.parts;
  resync(engine.parts);
  state.synchronize();
  noGrad(() =>
    scope(() => {
      const values = value.to(engine.device).to(declared.dtype).contiguous();
      writeOwned(owned, { ...declared, values }, (fragment) =>
        borrow(engine, partition, fragment, name),
      );
    }),
  );
  state.markChanged(partition);
  if (name !== 'master') return;
  const { unit } = partition;
  const parameters = unit.layout.entries.map((entry) => unit.parameterOf(entry));
  keepWrites(parameter, parameters, () => publishMasters(engine, [partition]));
}

/**
 * Writes this rank's fragments of the master weights. `values`: the whole parameter, f32 on the
 * device.
 */
export function writeMaster({ engine, partition, entry }: OwnedParameter, values: Tensor): void {
  writeFragments(engine.parts.state, partition, { entry, values });
}

/**
 * Stores this rank's fragments of a frozen parameter from its gathered value. The caller calls
 * publishFrozen() after it has written all parameters, because other parameters of the unit may
 * still be read. Blocks until the fragments are stored.
 */
export function writeFrozen({ engine, shard, entry, parameter }: HeldParameter): void {
  const values = { ...perElement(entry.shape), values: parameter };
  writeOwned({ engine, shard, entry }, values, (fragment) => {
    const lent = shard.storage.lend(fragment);
    lent.wait();
    return lent;
  });
}

/** Rounds changed master weights to the weights of all ranks. All ranks must call it. */
export function publishMasters(engine: EngineCore, partitions: Iterable<Partition>): void {
  const { state } = engine.parts;
  for (const partition of partitions) {
    state.synchronize();
    state.refresh(partition);
    publish(engine, partition);
  }
}

/** Makes later gathers use the stored frozen weights. All ranks must call it. */
export function publishFrozen(engine: EngineCore, shards: Iterable<WeightShard>): void {
  for (const shard of shards) publish(engine, shard);
}

/**
 * Publishes a shard. A sharded unit then drops its gathered weights. If the unit is in use, this
 * gathers it again.
 */
function publish({ parts, device }: EngineCore, shard: WeightShard): void {
  const { stage, hooks } = parts;
  stage.publish(shard, device.compute);
  if (!stage.shardsWeights || hooks.isHeld(shard.unit)) stage.acquire(shard.unit);
}

/** Lends a fragment of master weights or state, complete. The caller releases its tensor. */
function borrow(
  { parts }: EngineCore,
  partition: Partition,
  fragment: Fragment,
  name: string,
): LentState {
  const lent = parts.state.lend(partition, fragment, name);
  lent.wait();
  return lent;
}

/** Where a fragment is written: the caller fills `tensor`, then calls keep() to store it. */
type Target = Pick<LentState, 'tensor' | 'keep'>;

/** Returns a function from a fragment to its target in `flat`, a flat tensor of the partition. */
const targetIn =
  (flat: Tensor) =>
  (fragment: Fragment): Target => ({ tensor: sliceFragment(flat, fragment), keep() {} });

/**
 * Returns the whole tensor of a state on every rank. `read` returns a fragment of this rank;
 * assemble() releases it. The owner of each shard broadcasts it.
 */
function assemble(
  { engine, partition, entry }: OwnedParameter,
  state: StateTensor,
  read: (fragment: Fragment) => Tensor,
): Tensor {
  const { device, parts } = engine;
  const { shardGroup } = parts.ranks;
  const full = Tensor.empty(state.shape, state.dtype, device);
  for (const fragment of partition.fragments.filter((fragment) => fragment.entry === entry)) {
    const slice = read(fragment);
    const { from, numel } = portionOf(state, fragment);
    copyFlat(full, { offset: from, numel }, slice, { offset: 0, numel }, device.compute);
    slice.release();
  }
  device.compute.synchronize();
  if (partition.isWhole) return full;
  for (let shard = 0; shard < shardGroup.size; ++shard) {
    const range = shardOf(partition.unit.layout.numel, shard, shardGroup.size);
    const { offset, numel } = overlap(entry, range);
    const first = offset - entry.offset;
    if (numel === 0 || (state.per === null && first > 0)) continue;
    const portion = portionOf(state, { from: first, numel });
    const slice = sliceFlat(full, { offset: portion.from, numel: portion.numel });
    broadcastValues(shardGroup, slice, shard);
    slice.release();
  }
  return full;
}

/**
 * Copies this rank's fragments of `values` to the targets of `targetOf`. Releases the targets'
 * tensors.
 */
function writeOwned(
  { engine, shard, entry }: Pick<HeldParameter, 'engine' | 'shard' | 'entry'>,
  { values, ...state }: StateTensor & { values: Tensor },
  targetOf: (fragment: Fragment) => Target,
): void {
  const { compute } = engine.device;
  for (const fragment of shard.fragments.filter((fragment) => fragment.entry === entry)) {
    const target = targetOf(fragment);
    const { from, numel } = portionOf(state, fragment);
    copyFlat(target.tensor, { offset: 0, numel }, values, { offset: from, numel }, compute);
    compute.synchronize();
    target.keep();
    target.tensor.release();
  }
}

/**
 * Computes the norm and the step decision again, after `grad` replaced the gradient of `partition`.
 */
function recountNorm({ engine, partition }: OwnedParameter, grad: Tensor): void {
  const { control } = engine.parts;
  const { compute } = engine.device;
  const previous = partition.grad;
  const range = { offset: 0, numel: partition.numel };
  if (!previous) {
    partition.grad = Tensor.empty([partition.numel], grad.dtype, engine.device);
    copyFlat(partition.grad, range, grad, range, compute);
  }
  control.add(partition, compute);
  partition.grad = previous;
  control.decide(engine.parts.gradients.gradientScale);
}

/** Returns `value` as f32, contiguous, on `device`. */
function toWide(value: Tensor, device: Tensor['device']): Tensor {
  return value.to(device).to('f32').contiguous();
}

function requireOwned(op: string, parameter: Parameter): OwnedParameter {
  const owned = findOwned(parameter);
  if (owned) return owned;
  const got = 'a parameter that is frozen, in no group, or not passed to initialize()';
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'a parameter that an engine trains',
    got,
  });
}

function requireShape(op: string, shape: readonly number[], value: Tensor): void {
  if (value.shape.join() === shape.join()) return;
  const expected = `[${shape.join(', ')}]`;
  throw new DsError({ code: 'DS_SHAPE', op, expected, got: describe(value) });
}

/**
 * Returns the declared state `name`; "master" is the master weights. Throws DS_ARGUMENT if the
 * optimizer lacks this state.
 */
function stateOf({ engine, entry }: OwnedParameter, name: string): StateTensor {
  const { optimizer } = engine.parts;
  const declared = declaredState(optimizer, entry.group, entry.shape);
  const found = name === 'master' ? perElement(entry.shape) : declared[name];
  if (found) return found;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'optimizer state',
    expected: `${['fp32', ...Object.keys(declared)].join(', ')} (the state of ${optimizer.name})`,
    got: JSON.stringify(name),
  });
}
