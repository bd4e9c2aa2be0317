// Lets a rank that waits in a save or a load fail the collectives of the ranks that do not come.
import type { CheckpointWorld } from '../../checkpoint/index.js';
import type { ProcessGroup } from '../../comm/index.js';
import { StoreWorld } from './store-world.js';

/** Ranks of `groups` fail in their next collective there: see StoreWorld.standBy(). */
export function standBy(world: CheckpointWorld, groups: () => readonly ProcessGroup[]): void {
  if (!(world instanceof StoreWorld)) return;
  world.standBy((text) => {
    for (const group of groups()) group.giveUp(text);
  });
}
