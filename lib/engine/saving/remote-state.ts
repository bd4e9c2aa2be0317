// Reads state and weights on a disk in parts, when a checkpoint is written or read.
import { type Borrowed, partsOf, type Remote } from '../../checkpoint/index.js';
import type { StateTensor } from '../../optim/declared-state.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { sliceFlat } from '../../zero/flat.js';
import type { LentState } from '../../zero/home/lent-state.js';
import type { Piece, Range } from '../../zero/layout.js';
import type { WeightPart } from '../../zero/partition.js';

/** Returns the part of a piece that starts at its element `offset`. */
const within = ({ slot, from, offset }: Piece, range: Range): Piece => ({
  slot,
  from: from + range.offset,
  offset: offset + range.offset,
  numel: range.numel,
});

/**
 * Returns `numel` elements of a piece's state as remote values; `lend` reads a piece. A state that
 * is not per element is small and is read whole.
 */
export function remoteState(
  lend: (piece: Piece) => LentState,
  piece: Piece,
  { per, dtype, numel }: Pick<StateTensor, 'per' | 'dtype'> & { numel: number },
): Remote {
  const borrow = (offset: number, count: number): Borrowed => {
    const range = { offset, numel: count };
    return per === 1 ? lend(within(piece, range)) : sliced(lend(piece), range);
  };
  const bytes = numel * dtypeSize(dtype);
  return { dtype, numel, bytes, grain: per === 1 ? 1 : Math.max(1, numel), borrow };
}

/** Returns the weights of a piece, or null if they are in memory. */
export function remoteWeights({ place, unit }: WeightPart, piece: Piece): Remote | null {
  if (place.memory) return null;
  const { dtype } = unit;
  return remoteState((part) => place.lend(part), piece, { per: 1, dtype, numel: piece.numel });
}

/** Returns a range of a remote shard. */
export function partOfRemote(whole: Remote, { offset, numel }: Range): Remote {
  const { dtype, grain } = whole;
  return {
    dtype,
    numel,
    bytes: numel * dtypeSize(dtype),
    grain: Math.min(grain, Math.max(1, numel)),
    borrow: (first, count) => whole.borrow(offset + first, count),
  };
}

/** Divides a piece of state on a disk, so that each read needs little memory. */
export function* inParts(piece: Piece, { per, dtype }: StateTensor): Generator<Piece> {
  if (per !== 1 || piece.numel === 0) return yield piece;
  const { numel } = piece;
  const size = { dtype, numel, bytes: numel * dtypeSize(dtype), grain: 1 };
  for (const [offset, count] of partsOf(size)) yield within(piece, { offset, numel: count });
}

function sliced(lent: LentState, range: Range): Borrowed {
  const tensor = sliceFlat(lent.tensor, range);
  lent.tensor.release();
  return { tensor, wait: () => lent.wait(), arrived: () => lent.arrived() };
}
