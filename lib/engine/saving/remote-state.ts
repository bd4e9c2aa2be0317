// Reads state and weights on a disk in parts, when a checkpoint is written or read.
import { type PendingTensor, partsOf, type Remote } from '../../checkpoint/index.js';
import type { StateTensor } from '../../optim/declared-state.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { sliceFlat } from '../../tensor/flat.js';
import type { Fragment, Range } from '../../zero/layout.js';
import type { LentState } from '../../zero/state/memory.js';
import type { WeightShard } from '../../zero/unit.js';

/** Returns the part of a fragment that starts at its element `offset`. */
const fragmentIn = ({ entry, from, offset }: Fragment, range: Range): Fragment => ({
  entry,
  from: from + range.offset,
  offset: offset + range.offset,
  numel: range.numel,
});

/**
 * Returns `numel` elements of a fragment's state as remote values; `lend` reads a fragment. A state
 * that is not per element is small and is read whole.
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

/** Returns the weights of a fragment, or null if they are in memory. */
export function remoteWeights({ storage, unit }: WeightShard, fragment: Fragment): Remote | null {
  if (storage.memory) return null;
  const { dtype } = unit;
  return remoteState((fragment) => storage.lend(fragment), fragment, {
    per: 1,
    dtype,
    numel: fragment.numel,
  });
}

/** Returns a range of a remote shard. */
export function sliceRemote(remote: Remote, { offset, numel }: Range): Remote {
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
