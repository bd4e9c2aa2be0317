// Moves a model into units: parameters become views of flat weights, their values the partitions' master weights.
import type { Tensor } from '../tensor/index.js';
import { type Collectives, takeOver } from './collectives.js';
import { sliceFlat } from './flat.js';
import type { Slot } from './layout.js';
import type { OptimizerState } from './optimizer-state.js';
import type { Partition } from './partition.js';
import type { ZeroStages } from './zero-stage.js';

/**
 * Every rank of `alike` starts with the values of its first, of frozen units as well. Blocks until everything is in place.
 * Device memory beyond the result: one unit, and one parameter in f32.
 */
export function adoptModel(stage: ZeroStages, state: OptimizerState, alike: Collectives): void {
  for (const partition of stage.partitions) {
    state.adopt(partition);
    stage.adopting(partition.unit);
    partition.unit.adopt((slot, values) => {
      takeOver(alike, values);
      writePieces(state, partition, slot, values);
    });
    stage.adopted(partition);
  }
  for (const part of stage.frozen) {
    stage.adopting(part.unit);
    part.unit.adopt((_, values) => takeOver(alike, values));
    stage.adopted(part);
  }
  state.synchronize();
}

/** Sets the master weights of this rank's part of a parameter: `values` f32 on the device, the whole parameter. */
export function writePieces(
  state: OptimizerState,
  partition: Partition,
  slot: Slot,
  values: Tensor,
): void {
  for (const piece of partition.pieces) {
    if (piece.slot !== slot) continue;
    const part = sliceFlat(values, { offset: piece.from, numel: piece.numel });
    state.writeMaster(partition, piece, part);
    part.release();
  }
}
