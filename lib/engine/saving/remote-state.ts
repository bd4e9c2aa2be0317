// State and weights on a disk as the values of shards: parts of them come to memory when they are
// written or read.
import { type Borrowed, partsOf, type Remote } from '../../checkpoint/index.js';
import type { StateTensor } from '../../optim/declared-state.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { sliceFlat } from '../../zero/flat.js';
import type { LentState } from '../../zero/home/lent-state.js';
import type { Piece, Range } from '../../zero/layout.js';
import type { WeightPart } from '../../zero/partition.js';

/** A part of a piece, from element `offset` of it on. */
const within = ({ slot, from, offset }: Piece, range: Range): Piece => ({
  slot,
  from: from + range.offset,
  offset: offset + range.offset,
  numel: range.numel,
});

/**
 * A piece's part of a state that `lend` gives of any piece, `numel` elements. What is not of single
 * elements comes as a whole, which is little.
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

/** The weights of a piece; null where they are in memory. */
export function remoteWeights({ place, unit }: WeightPart, piece: Piece): Remote | null {
  if (place.memory) return null;
  const { dtype } = unit;
  return remoteState((part) => place.lend(part), piece, { per: 1, dtype, numel: piece.numel });
}

/** A range of a remote shard. */
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

/**
 * The pieces, one after the other, in which a piece of state on a disk is read: each takes little
 * memory.
 */
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
