// What a rank does where others do not come to a save or a load: see StoreWorld.standBy().
import type { CheckpointWorld } from '../../checkpoint/index.js';
import type { ProcessGroup } from '../../comm/index.js';
import { StoreWorld } from './store-world.js';

/** Ranks of the groups learn of it in their next collective there. */
export function standBy(world: CheckpointWorld, groups: () => readonly ProcessGroup[]): void {
  if (!(world instanceof StoreWorld)) return;
  world.standBy((text) => {
    for (const group of groups()) group.giveUp(text);
  });
}
