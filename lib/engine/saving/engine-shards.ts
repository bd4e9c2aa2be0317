// The tensors of an engine's checkpoint: their names, and the elements that each rank saves.
import {
  isRemote,
  type PendingTensor,
  partsOf,
  type Remote,
  type Shard,
  type TensorInfo,
} from '../../checkpoint/index.js';
import type { Parameter } from '../../nn/parameter.js';
import {
  type DeclaredState,
  declaredState,
  perElement,
  portionOf,
  type StateTensor,
  savedState,
} from '../../optim/declared-state.js';
import { type Box, type Region, rangesOf, wholeBox, wholeRegion } from '../../runtime/box.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { numel } from '../../runtime/view.js';
import { sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, LayoutEntry, Range } from '../../zero/layout.js';
import type { Partition, WeightShard } from '../../zero/partition.js';
import type { LentState } from '../../zero/state/memory.js';
import type { EngineCore } from '../engine-parts.js';

/**
 * Returns the name of a state in a checkpoint: "<name>.fp32" for master weights, else
 * "<name>.<state>".
 */
export const stateKey = (name: string, state: string): string =>
  `${name}.${state === 'master' ? 'fp32' : state}`;

/**
 * Returns the saved state of a parameter by name: its master weights, and the state that its
 * optimizer declares.
 */
export function keptState({ parts }: EngineCore, { group, shape }: LayoutEntry): DeclaredState {
  return {
    master: perElement(shape),
    ...savedState(declaredState(parts.optimizer, group, shape)),
  };
}

/**
 * Returns the elements of a state that belong to a fragment of its parameter: `numel` elements of
 * `region` from element `from` on.
 */
export function statePart(
  state: StateTensor,
  { entry, from, numel: count }: Fragment,
): { region: Region; from: number; numel: number } {
  if (state.per === 1) return { region: entry.region, from, numel: count };
  const part = portionOf(state, { from, numel: count });
  return { region: wholeRegion(state.shape), ...part };
}

/** Yields all fragments in this rank's optimizer state. */
export function* heldFragments(
  engine: EngineCore,
): Generator<{ partition: Partition; fragment: Fragment }> {
  for (const partition of engine.parts.stage.partitions) {
    for (const fragment of partition.fragments) yield { partition, fragment };
  }
}

/**
 * Yields the fragments that this rank saves. At stage 0, every rank has all state, and each data
 * rank saves only the range that it counts.
 */
function* savedOf<Held extends WeightShard>(
  engine: EngineCore,
  shards: readonly Held[],
): Generator<{ shard: Held; fragment: Fragment }> {
  for (const shard of shards) {
    for (const fragment of shard.fragments) {
      if (!isSavedHere(engine, shard.unit.parameterOf(fragment.entry))) continue;
      const saved = clipFragment(fragment, shard.counted);
      if (saved) yield { shard, fragment: saved };
    }
  }
}

function clipFragment(fragment: Fragment, window: Range): Fragment | null {
  const offset = Math.max(fragment.offset, window.offset);
  const end = Math.min(fragment.offset + fragment.numel, window.offset + window.numel);
  if (end <= offset) return null;
  return {
    entry: fragment.entry,
    from: fragment.from + offset - fragment.offset,
    offset,
    numel: end - offset,
  };
}

const isSavedHere = ({ parts: { ranks } }: EngineCore, parameter: Parameter): boolean =>
  !ranks.isReplica && ranks.isPrimary(parameter);

/** Elements of one box of a tensor. `from` is the index of the first element in the box. */
export interface BoxedPart {
  box: Box;
  from: number;
  tensor: Tensor;
}

/**
 * Divides `tensor` by box: it has elements of `region`, which this rank holds, from element `from`
 * on. Takes ownership of `tensor`.
 */
export function divideByBox(region: Region, from: number, tensor: Tensor): BoxedPart[] {
  const parts = divideRange(region, from, tensor.numel).map(({ range, ...position }) => {
    const isAll = range.numel === tensor.numel;
    return { ...position, tensor: isAll ? tensor.retain() : sliceFlat(tensor, range) };
  });
  tensor.release();
  return parts;
}

/**
 * Divides the `count` elements of `region` from element `from` on by box. `range` counts from the
 * first of these elements.
 */
function divideRange({ whole, boxes }: Region, from: number, count: number) {
  if (numel(whole) === 0) {
    return [{ box: wholeBox(whole), from: 0, range: { offset: 0, numel: count } }];
  }
  return rangesOf(boxes, from, count).map(({ offset, numel: own, ...position }) => {
    return { box: position.box, from: position.from, range: { offset, numel: own } };
  });
}

function shardsOf(name: string, region: Region, from: number, values: Tensor | Remote): Shard[] {
  const { whole: shape } = region;
  if (!isRemote(values)) {
    return divideByBox(region, from, values).map((part) => ({ name, shape, ...part }));
  }
  return divideRange(region, from, values.numel).map(({ box, from: first, range }) => {
    return { name, shape, box, from: first, tensor: sliceRemote(values, range) };
  });
}

/** Returns the master weights and state that this rank saves. The caller releases the tensors. */
export function optimizerShards(engine: EngineCore): Shard[] {
  const shards: Shard[] = [];
  for (const { shard, fragment } of savedOf(engine, engine.parts.stage.partitions)) {
    const { entry } = fragment;
    for (const [name, state] of Object.entries(keptState(engine, entry))) {
      const { region, from, numel: count } = statePart(state, fragment);
      // Every rank with a fragment of the parameter holds all of this state. The rank with the
      // first fragment saves it.
      if (count === 0 || (state.per === null && fragment.from > 0)) continue;
      const values = stateValues(engine, shard, fragment, { name, state, numel: count });
      shards.push(...shardsOf(stateKey(entry.name, name), region, from, values));
    }
  }
  return shards;
}

/**
 * Returns `numel` elements of the state `name` of a fragment: as a tensor, or as remote values on a
 * disk.
 */
function stateValues(
  { parts: { state: optimizerState } }: EngineCore,
  partition: Partition,
  fragment: Fragment,
  { name, state, numel: count }: { name: string; state: StateTensor; numel: number },
): Tensor | Remote {
  const lend = (fragment: Fragment) => optimizerState.lend(partition, fragment, name);
  if (optimizerState.lendsCopies(partition))
    return remoteState(lend, fragment, { ...state, numel: count });
  const lent = lend(fragment);
  lent.wait();
  return lent.tensor;
}

/** Returns whether to save the parameter or buffer of this name. */
type NameFilter = (name: string) => boolean;

/** Returns a filter that selects all tensors, or all except frozen parameters. */
export function createNameFilter({ module, parts }: EngineCore, withFrozen: boolean): NameFilter {
  if (withFrozen) return () => true;
  const { partitions } = parts.stage;
  const trained = new Set(partitions.flatMap(({ unit }) => unit.layout.entries.map(nameOf)));
  const frozen = new Set(Array.from(module.namedParameters(), nameOfEntry));
  return (name) => trained.has(name) || !frozen.has(name);
}

const nameOf = ({ name }: LayoutEntry): string => name;
const nameOfEntry = ([name]: readonly [string, unknown]): string => name;

/** Returns the weights in units that this rank saves. The caller releases the tensors. */
export function weightShards(engine: EngineCore, isSelected: NameFilter): Shard[] {
  const { partitions, frozen } = engine.parts.stage;
  return [...savedOf(engine, [...partitions, ...frozen])].flatMap(({ shard, fragment }) => {
    const { entry, from } = fragment;
    if (!isSelected(entry.name)) return [];
    const values = remoteWeights(shard, fragment) ?? shard.storage.lend(fragment).tensor;
    return shardsOf(entry.name, entry.region, from, values);
  });
}

/**
 * Returns buffers, and frozen parameters that are in no unit. Every rank holds them. The caller
 * releases the tensors.
 */
export function wholeTensors(engine: EngineCore, isSelected: NameFilter): Shard[] {
  const inUnits = new Set(unitEntriesOf(engine).map(nameOf));
  return wholeShards(engine, (name) => isSelected(name) && !inUnits.has(name));
}

/** Returns all weights and buffers as whole tensors. The caller releases them. */
export function wholeModel(engine: EngineCore, isSelected: NameFilter): Shard[] {
  return wholeShards(engine, isSelected);
}

/** Returns the selected parameters and buffers that this rank saves as whole tensors. */
function wholeShards(engine: EngineCore, isSelected: NameFilter): Shard[] {
  const { module, parts } = engine;
  const isElsewhere = (tensor: Tensor): boolean => parts.plan?.pipeline.isCopy(tensor) ?? false;
  const parameters = [...module.namedParameters()].filter(
    ([name, parameter]) =>
      isSelected(name) && isSavedHere(engine, parameter) && !isElsewhere(parameter),
  );
  const { isReplica, tensorGroup } = parts.ranks;
  const buffers =
    isReplica || (tensorGroup && tensorGroup.rank > 0)
      ? []
      : [...module.namedBuffers()].filter(([, tensor]) => !isElsewhere(tensor));
  return [
    ...parameters.flatMap(([name, parameter]) =>
      shardsOf(name, parameter.region, 0, parameter.retain()),
    ),
    ...buffers
      .filter(([name]) => isSelected(name))
      .map(([name, tensor]) => ({ name, shape: tensor.shape, tensor: tensor.retain() })),
  ];
}

/** Returns all trained parameters. */
export function entriesOf(engine: EngineCore): LayoutEntry[] {
  return engine.parts.stage.partitions.flatMap(({ unit }) => unit.layout.entries);
}

/** Returns all parameters in units, trained or frozen. */
export function unitEntriesOf({ parts }: EngineCore): LayoutEntry[] {
  const { partitions, frozen } = parts.stage;
  return [...partitions, ...frozen].flatMap(({ unit }) => unit.layout.entries);
}

/**
 * Returns shape and dtype by name, for all selected tensors that this rank holds in part or whole.
 * The shape is that of the whole tensor.
 */
export function buildCatalog(
  engine: EngineCore,
  isSelected: NameFilter,
): {
  model: Map<string, TensorInfo>;
  optimizer: Map<string, TensorInfo>;
} {
  const optimizer = new Map<string, TensorInfo>();
  for (const { unit } of engine.parts.stage.partitions) {
    for (const entry of unit.layout.entries) {
      for (const [name, state] of Object.entries(keptState(engine, entry))) {
        const { dtype } = state;
        const shape = state.per === 1 ? entry.region.whole : state.shape;
        optimizer.set(stateKey(entry.name, name), { dtype, shape });
      }
    }
  }
  const model = new Map<string, TensorInfo>();
  for (const [name, { dtype, region }] of engine.module.namedParameters()) {
    if (isSelected(name)) model.set(name, { dtype, shape: region.whole });
  }
  for (const [name, { dtype, shape }] of engine.module.namedBuffers()) {
    model.set(name, { dtype, shape, buffer: true });
  }
  return { model, optimizer };
}

export function releaseShards(shards: readonly Shard[]): void {
  for (const { tensor } of shards) if (!isRemote(tensor)) tensor.release();
}

/**
 * Returns the bytes of all tensors in one checkpoint, without headers. It counts every rank with a
 * part of the model. Reads only shapes.
 */
export function checkpointBytes(engine: EngineCore, weightsOnly: boolean): number {
  const { model, optimizer } = buildCatalog(engine, () => true);
  const saved = weightsOnly ? [...model.values()] : [...model.values(), ...optimizer.values()];
  return saved.reduce((sum, info) => sum + bytesOf(info), 0);
}

const bytesOf = ({ dtype, shape }: TensorInfo): number => numel(shape) * dtypeSize(dtype);

// The functions below read state and weights on a disk in parts.

/** Returns the elements `range` of a fragment, as a fragment. */
const fragmentIn = ({ entry, from, offset }: Fragment, range: Range): Fragment => ({
  entry,
  from: from + range.offset,
  offset: offset + range.offset,
  numel: range.numel,
});

/**
 * Returns `numel` elements of a fragment's state as remote values. `lend` reads a fragment.
 * Per-element state is read in parts; other state is small and is read whole.
 */
export function remoteState(
  lend: (fragment: Fragment) => LentState,
  fragment: Fragment,
  { per, dtype, numel }: Pick<StateTensor, 'per' | 'dtype'> & { numel: number },
): Remote {
  const borrow = (offset: number, count: number): PendingTensor => {
    const range = { offset, numel: count };
    return per === 1 ? lend(fragmentIn(fragment, range)) : slice(lend(fragment), range);
  };
  const bytes = numel * dtypeSize(dtype);
  return { dtype, numel, bytes, grain: per === 1 ? 1 : Math.max(1, numel), borrow };
}

/** Returns the weights of a fragment as remote values. Returns null if they are in memory. */
function remoteWeights({ storage, unit }: WeightShard, fragment: Fragment): Remote | null {
  if (storage.memory) return null;
  const { dtype } = unit;
  return remoteState((fragment) => storage.lend(fragment), fragment, {
    per: 1,
    dtype,
    numel: fragment.numel,
  });
}

/** Returns a range of remote values. */
function sliceRemote(remote: Remote, { offset, numel }: Range): Remote {
  const { dtype, grain } = remote;
  return {
    dtype,
    numel,
    bytes: numel * dtypeSize(dtype),
    grain: Math.min(grain, Math.max(1, numel)),
    borrow: (first, count) => remote.borrow(offset + first, count),
  };
}

/** Divides a fragment of state on a disk, so that each read needs little memory. */
export function* divideFragment(
  fragment: Fragment,
  { per, dtype }: StateTensor,
): Generator<Fragment> {
  if (per !== 1 || fragment.numel === 0) return yield fragment;
  const { numel } = fragment;
  const size = { dtype, numel, bytes: numel * dtypeSize(dtype), grain: 1 };
  for (const [offset, count] of partsOf(size)) yield fragmentIn(fragment, { offset, numel: count });
}

function slice(lent: LentState, range: Range): PendingTensor {
  const tensor = sliceFlat(lent.tensor, range);
  lent.tensor.release();
  return { tensor, wait: () => lent.wait(), arrived: () => lent.arrived() };
}
