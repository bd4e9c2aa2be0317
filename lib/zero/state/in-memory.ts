// Reads and writes of parts with masters and state in device or host memory.
import type { Optimizer } from '../../optim/optimizer.js';
import { copyFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, Range } from '../layout.js';
import { namedFragment } from './range-state.js';
import type { ShardPart } from './strategies.js';

/** See Placement.writeMaster. */
export function writeInMemory(part: ShardPart, fragment: Fragment, values: Tensor): void {
  const all = { offset: 0, numel: fragment.numel };
  copyFlat(part.master as Tensor, fragment, values, all, part.partition.device.compute);
}

/** Returns the master weights (name "master") or the state `name` of a fragment; not a copy. */
export function tensorInMemory(
  { master, ranges }: ShardPart,
  optimizer: Optimizer,
  fragment: Fragment,
  name: string,
): Tensor {
  return namedFragment({ optimizer, master: master as Tensor, ranges }, fragment, name);
}

/** See Placement.eachMaster: one call with all masters. */
export function masterInMemory(
  { master }: ShardPart,
  body: (master: Tensor, range: Range) => void,
): void {
  const all = master as Tensor;
  body(all, { offset: 0, numel: all.numel });
}
