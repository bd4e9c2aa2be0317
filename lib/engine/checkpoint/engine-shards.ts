// What of an engine goes into a checkpoint as tensors: which rank saves which part, and under which name.
import type { Shard, TensorInfo } from '../../checkpoint/index.js';
import type { DType } from '../../runtime/dtype.js';
import { slicePiece } from '../../zero/home/range-state.js';
import type { Piece, Range, Slot } from '../../zero/layout.js';
import type { Partition } from '../../zero/partition.js';
import type { EngineCore as Engine } from '../engine-parts.js';

/** "<name>.fp32" for the master weights, "<name>.<state>" otherwise. */
export const stateKey = (name: string, state: string): string =>
  `${name}.${state === 'master' ? 'fp32' : state}`;

/** What is kept of a parameter: its master weights and the state of its group. */
export function stateNames(engine: Engine, slot: Slot): string[] {
  return ['master', ...Object.keys(engine.parts.optimizer.initialState(slot.group))];
}

/** The pieces of which this rank has the state. */
export function* heldPieces(engine: Engine): Generator<{ partition: Partition; piece: Piece }> {
  for (const partition of engine.parts.stage.partitions) {
    for (const piece of partition.pieces) yield { partition, piece };
  }
}

/**
 * Those of them that no other rank saves: stage 0 has everything everywhere, and each data rank saves
 * its share; copies of them save nothing.
 */
export function* savedPieces(engine: Engine): Generator<{ partition: Partition; piece: Piece }> {
  if (engine.parts.ranks.isCopy) return;
  for (const { partition, piece } of heldPieces(engine)) {
    const saved = clipPiece(piece, partition.counted);
    if (saved) yield { partition, piece: saved };
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

/** Master weights and state; the caller releases the tensors. */
export function optimizerShards(engine: Engine): Shard[] {
  const shards: Shard[] = [];
  for (const { partition, piece } of savedPieces(engine)) {
    const { slot, from } = piece;
    for (const state of stateNames(engine, slot)) {
      const lent = engine.parts.state.lend(partition, piece, state);
      lent.wait();
      shards.push({
        name: stateKey(slot.name, state),
        shape: slot.shape,
        from,
        tensor: lent.tensor,
      });
    }
  }
  return shards;
}

/** This rank's parts of the weights; the caller releases the tensors. */
export function weightShards(engine: Engine): Shard[] {
  return Array.from(savedPieces(engine), ({ partition, piece }) => {
    const { slot, from } = piece;
    const tensor = slicePiece(partition.weights, piece);
    return { name: slot.name, shape: slot.shape, from, tensor };
  });
}

/** Frozen parameters and buffers, which every rank has; the tensors themselves, held once more. */
export function untrainedShards(engine: Engine): Shard[] {
  const trained = new Set(slotsOf(engine).map(({ name }) => name));
  const all = [...engine.module.namedParameters(), ...engine.module.namedBuffers()];
  return all
    .filter(([name]) => !trained.has(name))
    .map(([name, tensor]) => ({ name, shape: tensor.shape, tensor: tensor.retain() }));
}

/** Every weight and buffer as a whole. */
export function wholeModel(engine: Engine): Shard[] {
  const all = [...engine.module.namedParameters(), ...engine.module.namedBuffers()];
  return all.map(([name, tensor]) => ({ name, shape: tensor.shape, tensor: tensor.retain() }));
}

/** Every trained parameter. */
export function slotsOf(engine: Engine): Slot[] {
  return engine.parts.stage.partitions.flatMap(({ unit }) => unit.layout.slots);
}

/** Every tensor of all ranks by name. */
export function catalogOf(engine: Engine): {
  model: Map<string, TensorInfo>;
  optimizer: Map<string, TensorInfo>;
} {
  const dtypes = new Map<string, DType>();
  const optimizer = new Map<string, TensorInfo>();
  for (const { unit } of engine.parts.stage.partitions) {
    for (const slot of unit.layout.slots) {
      dtypes.set(slot.name, unit.dtype);
      for (const state of stateNames(engine, slot)) {
        optimizer.set(stateKey(slot.name, state), { dtype: 'f32', shape: slot.shape });
      }
    }
  }
  const model = new Map<string, TensorInfo>();
  for (const [name, { dtype, shape }] of engine.module.namedParameters()) {
    model.set(name, { dtype: dtypes.get(name) ?? dtype, shape });
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
  for (const { tensor } of shards) tensor.release();
}
