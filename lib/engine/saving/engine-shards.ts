// What of an engine goes into a checkpoint as tensors: which rank saves which part, and under which
// name.
import { isRemote, type Remote, type Shard, type TensorInfo } from '../../checkpoint/index.js';
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
import type { DType } from '../../runtime/dtype.js';
import { numel } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import { sliceFlat } from '../../zero/flat.js';
import type { Piece, Range, Slot } from '../../zero/layout.js';
import type { Partition, WeightPart } from '../../zero/partition.js';
import type { EngineCore } from '../engine-parts.js';
import { partOfRemote, remoteState, remoteWeights } from './remote-state.js';

/** "<name>.fp32" for the master weights, "<name>.<state>" otherwise. */
export const stateKey = (name: string, state: string): string =>
  `${name}.${state === 'master' ? 'fp32' : state}`;

/**
 * What a checkpoint keeps of a parameter, by name: its master weights and what the optimizer
 * declares.
 */
export function keptState({ parts }: EngineCore, { group, shape }: Slot): DeclaredState {
  return {
    master: perElement(shape),
    ...savedState(declaredState(parts.optimizer, group, shape)),
  };
}

/**
 * What of a state a part of its parameter has, as elements of a tensor, whose shape is that of
 * `region`.
 */
export function statePart(
  state: StateTensor,
  { slot, from, numel: count }: Piece,
): { region: Region; from: number; numel: number } {
  if (state.per === 1) return { region: slot.region, from, numel: count };
  const part = portionOf(state, { from, numel: count });
  return { region: wholeRegion(state.shape), ...part };
}

/** The pieces of which this rank has the state. */
export function* heldPieces(engine: EngineCore): Generator<{ partition: Partition; piece: Piece }> {
  for (const partition of engine.parts.stage.partitions) {
    for (const piece of partition.pieces) yield { partition, piece };
  }
}

/**
 * Those of them that no other rank saves: stage 0 has everything everywhere, and each data rank
 * saves its share.
 */
function* savedOf<Part extends WeightPart>(
  engine: EngineCore,
  parts: readonly Part[],
): Generator<{ part: Part; piece: Piece }> {
  for (const part of parts) {
    for (const piece of part.pieces) {
      if (!saves(engine, part.unit.parameterOf(piece.slot))) continue;
      const saved = clipPiece(piece, part.counted);
      if (saved) yield { part, piece: saved };
    }
  }
}

function clipPiece(piece: Piece, window: Range): Piece | null {
  const offset = Math.max(piece.offset, window.offset);
  const end = Math.min(piece.offset + piece.numel, window.offset + window.numel);
  if (end <= offset) return null;
  return {
    slot: piece.slot,
    from: piece.from + offset - piece.offset,
    offset,
    numel: end - offset,
  };
}

const saves = ({ parts: { ranks } }: EngineCore, parameter: Parameter): boolean =>
  !ranks.isCopy && ranks.answersFor(parameter);

/** Elements of a tensor's box from number `from` on, as a tensor that the caller releases. */
export interface BoxedPart {
  box: Box;
  from: number;
  tensor: Tensor;
}

/**
 * `tensor`, elements from number `from` of what this rank holds, by the boxes in which they lie.
 * Takes it over.
 */
export function boxedParts(region: Region, from: number, tensor: Tensor): BoxedPart[] {
  const parts = boxedRanges(region, from, tensor.numel).map(({ range, ...place }) => {
    const isAll = range.numel === tensor.numel;
    return { ...place, tensor: isAll ? tensor.retain() : sliceFlat(tensor, range) };
  });
  tensor.release();
  return parts;
}

/**
 * `count` elements from number `from` of what this rank holds, by box, and where among them each
 * part lies.
 */
function boxedRanges({ whole, boxes }: Region, from: number, count: number) {
  if (numel(whole) === 0) {
    return [{ box: wholeBox(whole), from: 0, range: { offset: 0, numel: count } }];
  }
  return rangesOf(boxes, from, count).map(({ offset, numel: own, ...place }) => {
    return { box: place.box, from: place.from, range: { offset, numel: own } };
  });
}

function shardsOf(name: string, region: Region, from: number, values: Tensor | Remote): Shard[] {
  const { whole: shape } = region;
  if (!isRemote(values)) {
    return boxedParts(region, from, values).map((part) => ({ name, shape, ...part }));
  }
  return boxedRanges(region, from, values.numel).map(({ box, from: first, range }) => {
    return { name, shape, box, from: first, tensor: partOfRemote(values, range) };
  });
}

/** Master weights and state; the caller releases the tensors. */
export function optimizerShards(engine: EngineCore): Shard[] {
  const shards: Shard[] = [];
  for (const { part, piece } of savedOf(engine, engine.parts.stage.partitions)) {
    const { slot } = piece;
    for (const [name, state] of Object.entries(keptState(engine, slot))) {
      const { region, from, numel: count } = statePart(state, piece);
      // Of a state that every rank has which has a part of the parameter, the one with its start
      // saves all.
      if (count === 0 || (state.per === null && piece.from > 0)) continue;
      const values = stateValues(engine, part, piece, { name, state, numel: count });
      shards.push(...shardsOf(stateKey(slot.name, name), region, from, values));
    }
  }
  return shards;
}

/**
 * A piece's part of the state called `name`, `numel` elements of it: as it is in memory, or remote.
 */
function stateValues(
  { parts: { state: kept } }: EngineCore,
  partition: Partition,
  piece: Piece,
  { name, state, numel: count }: { name: string; state: StateTensor; numel: number },
): Tensor | Remote {
  const lend = (part: Piece) => kept.lend(partition, part, name);
  if (kept.lendsCopies(partition)) return remoteState(lend, piece, { ...state, numel: count });
  const lent = lend(piece);
  lent.wait();
  return lent.tensor;
}

/** Which parameters and buffers are saved, by name. */
export type Wanted = (name: string) => boolean;

/** All of them, or all but those that are not trained. */
export function wantedOf({ module, parts }: EngineCore, withFrozen: boolean): Wanted {
  if (withFrozen) return () => true;
  const { partitions } = parts.stage;
  const trained = new Set(partitions.flatMap(({ unit }) => unit.layout.slots.map(nameOf)));
  const frozen = new Set(Array.from(module.namedParameters(), nameOfEntry));
  return (name) => trained.has(name) || !frozen.has(name);
}

const nameOf = ({ name }: Slot): string => name;
const nameOfEntry = ([name]: readonly [string, unknown]): string => name;

/** This rank's parts of the weights in units; the caller releases the tensors. */
export function weightShards(engine: EngineCore, wanted: Wanted): Shard[] {
  const { partitions, frozen } = engine.parts.stage;
  return [...savedOf(engine, [...partitions, ...frozen])].flatMap(({ part, piece }) => {
    const { slot, from } = piece;
    if (!wanted(slot.name)) return [];
    const values = remoteWeights(part, piece) ?? part.place.lend(piece).tensor;
    return shardsOf(slot.name, slot.region, from, values);
  });
}

/**
 * Buffers, and frozen parameters that are in no unit, which every rank has; the tensors themselves,
 * held once more.
 */
export function wholeTensors(engine: EngineCore, wanted: Wanted): Shard[] {
  const inUnits = new Set(unitSlotsOf(engine).map(nameOf));
  return wholeShards(engine, (name) => wanted(name) && !inUnits.has(name));
}

/** Every weight and buffer as a whole. */
export function wholeModel(engine: EngineCore, wanted: Wanted): Shard[] {
  return wholeShards(engine, wanted);
}

/** What this rank saves of the parameters and buffers that are `wanted`. */
function wholeShards(engine: EngineCore, wanted: Wanted): Shard[] {
  const { module, parts } = engine;
  const isElsewhere = (tensor: Tensor): boolean => parts.plan?.pipeline.isCopy(tensor) ?? false;
  const parameters = [...module.namedParameters()].filter(
    ([name, one]) => wanted(name) && saves(engine, one) && !isElsewhere(one),
  );
  const { isCopy, layers } = parts.ranks;
  const buffers =
    isCopy || (layers && layers.rank > 0)
      ? []
      : [...module.namedBuffers()].filter(([, one]) => !isElsewhere(one));
  return [
    ...parameters.flatMap(([name, one]) => shardsOf(name, one.region, 0, one.retain())),
    ...buffers
      .filter(([name]) => wanted(name))
      .map(([name, one]) => ({ name, shape: one.shape, tensor: one.retain() })),
  ];
}

/** Every trained parameter. */
export function slotsOf(engine: EngineCore): Slot[] {
  return engine.parts.stage.partitions.flatMap(({ unit }) => unit.layout.slots);
}

/** Every parameter in a unit, trained or frozen. */
export function unitSlotsOf({ parts }: EngineCore): Slot[] {
  const { partitions, frozen } = parts.stage;
  return [...partitions, ...frozen].flatMap(({ unit }) => unit.layout.slots);
}

/** Every tensor that is `wanted` and of which this rank has a part, as a whole, by name. */
export function catalogOf(
  engine: EngineCore,
  wanted: Wanted,
): {
  model: Map<string, TensorInfo>;
  optimizer: Map<string, TensorInfo>;
} {
  const dtypes = new Map<string, DType>();
  const optimizer = new Map<string, TensorInfo>();
  for (const { unit } of engine.parts.stage.partitions) {
    for (const slot of unit.layout.slots) {
      dtypes.set(slot.name, unit.dtype);
      for (const [name, state] of Object.entries(keptState(engine, slot))) {
        const { dtype } = state;
        const shape = state.per === 1 ? slot.region.whole : state.shape;
        optimizer.set(stateKey(slot.name, name), { dtype, shape });
      }
    }
  }
  const model = new Map<string, TensorInfo>();
  for (const [name, { dtype, region }] of engine.module.namedParameters()) {
    if (wanted(name)) model.set(name, { dtype: dtypes.get(name) ?? dtype, shape: region.whole });
  }
  for (const [name, { dtype, shape }] of engine.module.namedBuffers()) {
    model.set(name, { dtype, shape, buffer: true });
  }
  return { model, optimizer };
}

export function bytesOf(shards: readonly Shard[]): number {
  return shards.reduce((sum, { tensor }) => sum + tensor.bytes, 0);
}

export function releaseShards(shards: readonly Shard[]): void {
  for (const { tensor } of shards) if (!isRemote(tensor)) tensor.release();
}
